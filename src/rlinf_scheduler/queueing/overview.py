"""A channel for those who look at it every second: its sums, and the few of its queues that matter most."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.queue_name import QueueName
from rlinf_scheduler.queueing.queue_set import Totals
from rlinf_scheduler.queueing.report import Unfinished, waiting_at

# Of each line of a queue so many who wait are looked at, and of all of the channel so many are told.
NUM_OF_LINE, NUM_WAITING = 4, 8
# In one look so many queues are looked at, and so many of the largest are looked at again in the next.
NUM_QUEUES, NUM_LARGEST = 1024, 64


class BusyQueue(NamedTuple):
    """A queue: its items, and since when the one is there that comes next, on the state's clock; None without one."""

    name: QueueName
    num_items: int
    oldest_since: float | None


class ChannelOverview(NamedTuple):
    """All queues of a channel; of more than `NUM_QUEUES` the next and the largest ones are looked at each time.

    Attributes:
        totals: what all hold.
        oldest_since: since when the item is there that has waited longest of those that come next; None without one.
        busiest: the queues with most items, subscriptions included.
        waiting: with the names of their queues, the gets and puts that have waited longest.
    """

    totals: Totals
    oldest_since: float | None
    busiest: list[BusyQueue]
    waiting: list[tuple[QueueName, Unfinished]]


class QueueSurvey:
    """Looks at all queues of a channel, some in each look: the largest known, and the next ones of the others."""

    def __init__(self) -> None:
        self._largest: list[NamedQueue] = []
        # Those that this round has not seen yet, the last one first.
        self._left: list[NamedQueue] = []

    def next(self, queues: Mapping[QueueName, NamedQueue]) -> list[NamedQueue]:
        """Return the queues to look at: all, as long as they are few."""
        if len(queues) <= NUM_QUEUES:
            return list(queues.values())
        if not self._left:
            self._left = list(queues.values())
            self._left.reverse()
        seen = dict.fromkeys((*self._largest, *reversed(self._left[-NUM_QUEUES:])))
        del self._left[-NUM_QUEUES:]
        found = [queue for queue in seen if queues.get(queue.name) is queue]
        self._largest = heapq.nlargest(NUM_LARGEST, found, key=_num_items)
        return found


def overview_of(
    queues: Iterable[NamedQueue], totals: Totals, waited_for: Iterable[NamedQueue], num_busiest: int
) -> ChannelOverview:
    """Return the overview of a channel.

    Args:
        queues: those that are looked at.
        totals: of all.
        waited_for: the queues at which somebody waits, or the first of these.
        num_busiest: so many queues are told by name.
    """
    busy: list[BusyQueue] = []
    for queue in queues:
        head = queue.fifo.head()
        busy.append(BusyQueue(queue.name, queue.fifo.num_items, None if head is None else head.since))
    waiting = [(queue.name, each) for queue in waited_for for each in waiting_at(queue, NUM_OF_LINE)]
    oldest = min((each.oldest_since for each in busy if each.oldest_since is not None), default=None)
    busiest = heapq.nlargest(num_busiest, busy, key=lambda each: each.num_items)
    longest = heapq.nsmallest(NUM_WAITING, waiting, key=lambda each: each[1].since)
    return ChannelOverview(totals, oldest, busiest, longest)


def _num_items(queue: NamedQueue) -> int:
    return queue.fifo.num_items
