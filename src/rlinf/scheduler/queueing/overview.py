"""A channel in a few numbers, for those who look at it every second: one short step a queue."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from rlinf.scheduler.queueing.named_queue import NamedQueue
from rlinf.scheduler.queueing.queue_name import QueueName, Tapped
from rlinf.scheduler.queueing.report import Unfinished, waiting_at

# Of each line of a queue so many who wait are looked at, and of all of the channel so many are told.
NUM_OF_LINE, NUM_WAITING = 4, 8


class BusyQueue(NamedTuple):
    """A queue: its items, and since when the one is there that comes next, on the state's clock; None without one."""

    name: QueueName
    num_items: int
    oldest_since: float | None


class ChannelOverview(NamedTuple):
    """All queues of a channel.

    Attributes:
        num_items: how many items getters can take; what subscriptions see are the same items, and not counted.
        num_leased: items on lease.
        oldest_since: since when the item is there that has waited longest of those that come next; None without one.
        busiest: the queues with most items, subscriptions included.
        waiting: with the names of their queues, the gets and puts that have waited longest.
        num_queues: how many there are, without subscriptions.
    """

    num_items: int
    num_leased: int
    oldest_since: float | None
    busiest: list[BusyQueue]
    waiting: list[tuple[QueueName, Unfinished]]
    num_queues: int


def overview_of(queues: Iterable[NamedQueue], num_busiest: int) -> ChannelOverview:
    """The queues of one channel, so many of them by name."""
    num_items = num_leased = num_queues = 0
    busy: list[BusyQueue] = []
    waiting: list[tuple[QueueName, Unfinished]] = []
    for queue in queues:
        head = queue.fifo.head()
        busy.append(BusyQueue(queue.name, queue.fifo.num_items, None if head is None else head.since))
        waiting.extend((queue.name, each) for each in waiting_at(queue, NUM_OF_LINE))
        if type(queue.name) is not Tapped:
            num_queues += 1
            num_items += queue.fifo.num_items
            num_leased += queue.leased_items
    oldest = min((each.oldest_since for each in busy if each.oldest_since is not None), default=None)
    busiest = heapq.nlargest(num_busiest, busy, key=lambda each: each.num_items)
    longest = heapq.nsmallest(NUM_WAITING, waiting, key=lambda each: each[1].since)
    return ChannelOverview(num_items, num_leased, oldest, busiest, longest, num_queues)
