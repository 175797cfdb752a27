"""How much a queue holds, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_scheduler.queueing.groups import GroupName
from rlinf_scheduler.queueing.queue_name import QueueName


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The depth of one queue: its items, and the numbers of those that wait for it.

    Attributes:
        name: the queue's name.
        num_items: items that a getter can take.
        weight: their total weight.
        size_bytes: their total size.
        num_getters: waiting gets and batches.
        num_putters: waiting puts, those whose bytes are on their way included.
        num_delivering: gets and batches whose items were sent and not yet confirmed, those on lease not included.
        num_leased: items on lease, and those that come back after a delay.
        num_dead: dead letters.
        num_lost: items that are lost, of which no getter was told yet.
        groups: each group that has items here, and how many.
        num_dropped: of a subscription, items that it has given up since its beginning.
    """

    name: QueueName
    num_items: int
    weight: int | float
    size_bytes: int
    num_getters: int
    num_putters: int
    num_delivering: int
    num_leased: int = 0
    num_dead: int = 0
    num_lost: int = 0
    groups: tuple[tuple[GroupName, int], ...] = ()
    num_dropped: int = 0
