"""Watch-dogs: what takes longer than its user allows is an event of the job, with the reason in it."""

from __future__ import annotations

from functools import partial

import msgspec

from rlinf_scheduler.comm import Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.events import Stalled
from rlinf_scheduler.observe.process_stats import JobActivity
from rlinf_scheduler.observe.survey import AskActivity, Survey
from rlinf_scheduler.observe.why import WITHIN_S, Conclusions
from rlinf_scheduler.queueing import ChannelStats, Waiting
from rlinf_scheduler.session import Session
from rlinf_scheduler.wording import seconds_text

# A service of the job's home.
STALL = "job.stall"
# Who stalls together is explained by one look.
MAX_AGE_S = 1.0
# Of the ranks of a call, so many are told of one by one.
MAX_TOLD = 4
_log = Reporter(__name__)


class Stall(msgspec.Struct, frozen=True, array_like=True):
    """A notice: something takes longer than `stall_after_s`.

    Attributes:
        group: whose call it is; "" of an operation on a channel.
        channel: which; "" of a call.
        operation: the method, or the operation.
        processes: the ranks that have not answered, or the one whose operation it is.
        waited_s: how long it takes already, in seconds.
    """

    group: str
    channel: str
    operation: str
    processes: tuple[str, ...]
    waited_s: float


class StallService:
    """Tells of stalls as events; a service of the job's home.

    Args:
        session: the home's.
    """

    def __init__(self, session: Session) -> None:
        self._bus = session.bus
        self._call_later = session.messenger.call_later
        self._conclusions = session.service(Conclusions)
        self._survey = session.service(Survey)
        session.messenger.serve(STALL, self._on_stall, Stall)

    def _on_stall(self, notice: Request) -> None:
        done = partial(run_beside_in_time, self._call_later, self._tell, notice.head)
        # Nobody asked for it: so nobody is disturbed.
        self._survey.call(AskActivity(WITHIN_S, MAX_AGE_S, by_signal=False), done)

    def _tell(self, stall: Stall, look: JobActivity) -> None:
        found = self._conclusions.of(look)
        short = "\n".join(found.about(process) for process in stall.processes[:MAX_TOLD])
        why = f"{short}\n{found}"
        what, since = stall.channel or stall.group, seconds_text(stall.waited_s)
        _log.warning("'%s': %s takes %s already: %s", what, stall.operation, since, short)
        told = stall.group, stall.channel, stall.operation, stall.processes, stall.waited_s, why
        self._bus.emit(Stalled(*told))


def tell_stall(session: Session, stall: Stall) -> None:
    """Tell the job's home."""
    session.messenger.notify(session.home, STALL, stall)


class WaitersOfChannel:
    """Which operations on a channel wait for too long: each is told, and again when it has taken twice as long.

    >>> from rlinf_scheduler.queueing import QueueDepth, QueueStats
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
