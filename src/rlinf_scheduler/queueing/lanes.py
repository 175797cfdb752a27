"""Items in the order of the latest versions that may take them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.order import WeightedFifo
from rlinf_scheduler.queueing.out_of_turn import QueueClock


class LanedFifo(WeightedFifo):
    """A queue of items, in a lane for each `latest`; the lowest lane comes first, and within it the order is as usual.

    >>> fifo = LanedFifo()
    >>> for payload, latest in (("new", 8), ("old", 7)):
    ...     item = Item(payload)
    ...     item.latest = latest
    ...     fifo.push(item)
    >>> fifo.take().payload, fifo.num_in_lane(8)
    ('old', 1)
    """

    __slots__ = ("_lanes",)

    def __init__(self, clock: QueueClock | None = None) -> None:
        super().__init__(clock)
        self._lanes: dict[int, WeightedFifo] = {}

    def num_in_lane(self, latest: int) -> int:
        """How many items there are of one lane."""
        lane = self._lanes.get(latest)
        return 0 if lane is None else lane.num_items

    def push(self, item: Item) -> None:
        """Put an item at the tail of its lane, or of those of its priority there."""
        lane = self._lane(item)
        lane.num_entered = self.num_entered  # they count together
        lane.push(item)
        self.num_entered += 1
        self._count(item)

    def take(self) -> Item:
        """Take the head; the queue must not be empty."""
        latest = min(self._lanes)
        lane = self._lanes[latest]
        item = lane.take()
        if not lane.num_items:
            del self._lanes[latest]
        self._discount(item)
        return item

    def head(self) -> Item | None:
        """Return the item that `take` would give; None when there is none."""
        return self._lanes[min(self._lanes)].head() if self._lanes else None

    def first(self, number: int) -> list[Item]:
        """Return up to so many items, in the order in which `take` would give them now."""
        lanes = (self._lanes[latest].first(number) for latest in sorted(self._lanes))
        return list(islice(chain.from_iterable(lanes), number))

    def __iter__(self) -> Iterator[Item]:
        """All items, lane by lane."""
        return chain.from_iterable(self._lanes[latest] for latest in sorted(self._lanes))

    def oldest(self) -> int:
        """Return the smallest order of all items; there must be one."""
        return min(lane.oldest() for lane in self._lanes.values())

    def restore(self, items: Iterable[Item]) -> None:
        """Put items that were taken before back to the heads of their lanes, each at its old place."""
        for item in items:
            if item.lost:
                self.lost.append(item)
                continue
            self._lane(item).restore((item,))
            self._count(item)

    def drop_lost(self) -> None:
        """Take out what is lost."""
        for latest, lane in list(self._lanes.items()):
            lane.drop_lost()
            for item in lane.lost:
                self._discount(item)
            self.lost += lane.lost
            lane.lost = []
            if not lane.num_items:
                del self._lanes[latest]

    def contents(self) -> tuple[list[Item], list[Item]]:
        """Return the items that came back, and those that never left, both in order; the lanes one after the other."""
        returned: list[Item] = []
        rest: list[Item] = []
        for latest in sorted(self._lanes):
            its_returned, its_rest = self._lanes[latest].contents()
            returned += its_returned
            rest += its_rest
        return returned, rest

    def load(self, returned: list[Item], rest: Iterable[Item], num_entered: int) -> None:
        """Take what `contents` gave; the queue must be new."""
        self.num_entered = num_entered
        by_lane: dict[int, list[Item]] = {}
        for item in rest:
            by_lane.setdefault(item.latest, []).append(item)
            self._count(item)
        for items in by_lane.values():
            self._lane(items[0]).load([], items, num_entered)
        self.restore(returned)

    def _lane(self, item: Item) -> WeightedFifo:
        lane = self._lanes.get(item.latest)
        if lane is None:
            lane = self._lanes[item.latest] = WeightedFifo(self._clock)
        return lane
