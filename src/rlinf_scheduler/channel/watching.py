"""Lets a channel be seen by whoever looks at its process, and tells of operations that wait for too long."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.observe.own_activity import OwnActivity
from rlinf_scheduler.observe.own_stats import OwnStats
from rlinf_scheduler.observe.process_stats import Activity, ProcessStats
from rlinf_scheduler.observe.stalls import Stall, WaitersOfChannel, tell_stall
from rlinf_scheduler.queueing import ChannelStats
from rlinf_scheduler.session import Session

_log = Reporter(__name__)
Told = TypeVar("Told", Activity, ProcessStats)
Say = Callable[[], ChannelStats | None]


def watch_channel(session: Session, spec: ChannelSpec, activity: Say, stats: Say) -> Callable[[], None]:
    """Let a channel of this process be seen until the function that is returned is called, once or again.

    Args:
        session: this process's.
        spec: the channel.
        activity: says what goes on in it, on the I/O thread; None: it is no more.
        stats: says how much is in it and went through it, likewise.
    """
    forget = session.service(OwnActivity).add(partial(_add, activity))
    uncount = session.service(OwnStats).add(partial(_add, stats))
    watch = _StallWatch(session, spec, activity) if spec.stall_after_s else None

    def stop() -> None:
        forget()
        uncount()
        if watch is not None:
            watch.is_over = True

    return stop


def _add(say: Callable[[], Any], told: Told) -> Told:
    said = say()
    return told if said is None else replace(told, channels=(*told.channels, said))


class _StallWatch:
    """Looks again and again who waits at a channel, on the I/O thread."""

    def __init__(self, session: Session, spec: ChannelSpec, activity: Say) -> None:
        self.is_over = False
        self._session = session
        self._name = spec.name
        self._activity = activity
        self._waiters = WaitersOfChannel(spec.stall_after_s)
        self._pause_s = spec.stall_after_s / 4
        session.messenger.submit(self._begin)

    def _begin(self) -> None:
        self._session.messenger.call_later(self._pause_s, self._look)

    def _look(self) -> None:
        if self.is_over or self._session.messenger.why_closed:
            return
        try:
            self._tell()
        except Exception:  # noqa: BLE001 - whatever it is: the next look may go well
            _log.exception("channel '%s': who waits there could not be found out", self._name)
        finally:
            self._begin()

    def _tell(self) -> None:
        found = self._activity()
        for late in () if found is None else self._waiters.late(found, self._session.messenger.now()):
            stall = Stall("", self._name, late.operation, (late.who,), late.since_s)
            tell_stall(self._session, stall)
