"""Why somebody waits: in short, in the error at a deadline and at a Ctrl-C; and as an event where it takes too long."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import msgspec

from rlinf_scheduler.comm.codec.interruptions import raised_by_signal_handler
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.errors import CommError, ResultTimeout, WaitTimeout
from rlinf_scheduler.observe.levels import Level
from rlinf_scheduler.queueing.stats import ChannelStats, Waiting
from rlinf_scheduler.session import Session

# Shorter waits are mostly polls: nobody is asked because of them.
ASK_FROM_S = 1.0
# A process asks so often at most.
ASK_EVERY_S = 5.0
# A deadline may end late by so much of itself, or by this (see the page on deadlines), and in any case by no more.
LATE_FRACTION, MIN_LATE_S, MAX_LATE_S = 0.1, 0.25, 2.0
# How long Ctrl-C may be held up; another one ends that.
INTERRUPTED_S = 1.0
_log = Reporter(__name__)


class AskReason(msgspec.Struct, frozen=True, array_like=True):
    """The question why a thread of a process, by its number, has waited so long; `within_s` is for the answer."""

    process: str
    within_s: float
    thread: int
    waited_s: float


# A level of the job's home, which answers by a text of few lines.
REASON = Level("job.reason", str, AskReason)


class Reasons:
    """Asks why this process waits; one for each session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._asked_at = -ASK_EVERY_S

    def reason(self, within_s: float, waited_s: float) -> str:
        """Why this thread has waited so long, if that is known in time, and was not asked just before; else ""."""
        now = self._session.messenger.now()
        if within_s <= 0 or now - self._asked_at < ASK_EVERY_S or self._session.messenger.on_io_thread():
            return ""
        self._asked_at = now
        session = self._session
        question = AskReason(session.name, within_s, threading.get_ident(), waited_s)
        asked = REASON.ask(session.messenger, session.home, question, timeout_s=within_s)
        try:
            # By this thread's clock, too: the I/O thread may be what is stuck.
            text: str = REASON.answer(asked.result(within_s))
        except (CommError, TimeoutError):
            return ""
        return text


def explain(session: Session | None, error: BaseException, limit_s: float | None, waited_s: float) -> None:
    """Add to what ended a wait why it did not end by itself: to a deadline, and to the driver's Ctrl-C.

    It only ever adds text: what fails on the way is logged, and takes the place of nothing.
    """
    if session is None or session.closed:
        return
    try:
        _explain(session, error, limit_s, waited_s)
    except Exception as failure:
        if raised_by_signal_handler(failure):
            raise
        _log.exception("why a wait ended could not be found out")


def _explain(session: Session, error: BaseException, limit_s: float | None, waited_s: float) -> None:
    if isinstance(error, WaitTimeout):
        if limit_s is not None and limit_s >= ASK_FROM_S:
            late_s = min(MAX_LATE_S, max(MIN_LATE_S, LATE_FRACTION * limit_s))
            error.explain(_reasons(session).reason(limit_s + late_s - waited_s, waited_s))
    elif isinstance(error, KeyboardInterrupt) and _is_home(session) and waited_s >= ASK_FROM_S:
        text = _reasons(session).reason(INTERRUPTED_S, waited_s)
        if text:
            error.add_note(f"it waited for this: {text}")


def offer_reasons(session: Session) -> None:
    """Let `explain` be asked by handles of this process's sends, receives and fetches, which know no session."""
    session.messenger.explain = partial(explain, session)


class explaining:  # noqa: N801 - used as a function is
    """A block that waits, begun now or then on the monotonic clock: what ends it is given to `explain`."""

    __slots__ = ("_began", "_limit_s", "_session")

    def __init__(self, session: Session | None, limit_s: float | None, started: float | None = None) -> None:
        self._session = session
        self._limit_s = limit_s
        self._began = time.monotonic() if started is None else started

    def __enter__(self) -> None:
        """It waits from here on."""

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if isinstance(error, (ResultTimeout, KeyboardInterrupt)):
            explain(self._session, error, self._limit_s, time.monotonic() - self._began)


def _reasons(session: Session) -> Reasons:
    # Not `service`, which waits for the I/O thread: that may be what is stuck.
    found = session.fact(Reasons)
    if found is None:
        session.provide(Reasons, found := Reasons(session))
    return found


def _is_home(session: Session) -> bool:
    return session.home.process_id == session.messenger.endpoint.process_id


# -- what takes too long -----------------------------------------------------------------------------


class Stall(msgspec.Struct, frozen=True, array_like=True):
    """A notice: something takes longer than `stall_after_s`.

    Attributes:
        group: whose call it is; "" of an operation on a channel.
        operation: the method, or the operation.
        processes: the ranks that have not answered, or the one whose operation it is.
    """

    group: str
    channel: str
    operation: str
    processes: tuple[str, ...]
    waited_s: float


# A level of the job's home, which answers nothing.
STALL = Level("job.stall", type(None), Stall)


def tell_stall(session: Session, stall: Stall) -> None:
    """Tell the job's home."""
    STALL.tell(session.messenger, session.home, stall)


class WaitersOfChannel:
    """Which operations on a channel wait for too long: each is told, and again when it has taken twice as long.

    >>> from rlinf_scheduler.queueing.stats import QueueDepth, QueueStats
    >>> queue = QueueStats(QueueDepth("default"), waiting=(Waiting("actor:0", "get", 12.0),))
    >>> channel = ChannelStats(name="c", shown=(queue,))
    >>> watch = WaitersOfChannel(10.0)
    >>> [each.who for each in watch.late(channel, now=100.0)]
    ['actor:0']
    >>> watch.late(channel, now=100.0)
    []
    """

    def __init__(self, stall_after_s: float) -> None:
        self._limit_s = stall_after_s
        # By process, queue, operation and about when it began: how long it had waited when it was told.
        self._told: dict[tuple[str, str, str, int], float] = {}

    def late(self, channel: ChannelStats, now: float) -> list[Waiting]:
        """Those that are to be told of now."""
        found, waiting = [], {}
        for queue in channel.shown:
            for each in queue.waiting:
                key = each.who, repr(queue.depth.name), each.operation, round(now - each.since_s)
                told_s = self._told.get(key, 0.0)
                if each.since_s >= max(self._limit_s, 2 * told_s):
                    operation = f"{each.operation} at queue {queue.depth.name!r}"
                    found.append(Waiting(each.who, operation, each.since_s))
                    told_s = each.since_s
                if told_s:
                    waiting[key] = told_s
        self._told = waiting
        return found
