"""Watch-dogs: what takes longer than its user allows is an event of the job, with the reason in it."""

from __future__ import annotations

import msgspec

from rlinf_scheduler.observe.levels import Level
from rlinf_scheduler.queueing import ChannelStats, Waiting
from rlinf_scheduler.session import Session


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
