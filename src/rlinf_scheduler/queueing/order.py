"""The order of a queue's items, with their total weight: as they came, but for those that may leave out of turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, nsmallest
from itertools import chain, islice

from rlinf_scheduler.queueing.item import Exact, Item, exact
from rlinf_scheduler.queueing.out_of_turn import GroupIndex, GroupName, QueueClock, RankedItems


class WeightedFifo:
    """A queue of items that knows its total weight.

    Every operation is O(1) amortised per item; what was put back, or has a priority, costs the logarithm of how much.

    Args:
        clock: the channel's, by which items of a lower priority have their turns; None: they have none.

    >>> fifo = WeightedFifo()
    >>> fifo.push(Item("short", weight=2))
    >>> fifo.push(Item("long", weight=4))
    >>> fifo.weight, fifo.take().payload, fifo.weight
    (6, 'short', 4)
    """

    __slots__ = (
        "_clock",
        "_items",
        "_ranked",
        "_returned",
        "groups",
        "lost",
        "num_entered",
        "num_items",
        "size_bytes",
        "weight",
    )

    def __init__(self, clock: QueueClock | None = None) -> None:
        self._clock = clock or QueueClock()
        self._items: deque[Item] = deque()
        # Where they are instead while they have priorities.
        self._ranked: RankedItems | None = None
        # What was taken and came back, by its order: all of it stands before what never left.
        self._returned: list[tuple[int, Item]] = []
        # Once an item has had a group.
        self.groups: GroupIndex | None = None
        # What was to be here and is lost, until the queue takes note of it.
        self.lost: list[Item] = []
        self.num_entered = 0
        self.num_items = 0
        self.weight: Exact = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return self.num_items

    def push(self, item: Item) -> None:
        """Put an item at the tail, or of those of its priority."""
        item.order = self.num_entered
        self.num_entered += 1
        self._append(item)
        self._count(item)

    def _append(self, item: Item) -> None:
        if self._ranked is None and item.is_special:
            self._rank()
        if self._ranked is None:
            self._items.append(item)
        else:
            self._ranked.push(item)

    @property
    def is_plain(self) -> bool:
        """Whether everything leaves in the order in which it came, and nothing has come back."""
        return self._ranked is None and not self._returned and not self.lost and self.groups is None

    def pass_by(self, item: Item) -> None:
        """An item enters and leaves at once; nothing is here."""
        item.order = self.num_entered
        self.num_entered += 1

    def take(self) -> Item:
        """Take the head; the queue must not be empty."""
        if self._returned:
            item = heappop(self._returned)[1]
        elif self._ranked is None:
            item = self._items.popleft()
        else:
            item = self._take_ranked(self._ranked)
        self._discount(item)
        return item

    def take_group(self, group: GroupName, size: int) -> list[Item]:
        """Take the first items of a group, at most so many, wherever they are; there must be one."""
        items = self.groups.members(group, size) if self.groups is not None else []
        for item in items:
            self._remove(item)
            self._discount(item)
        return items

    def take_oldest(self) -> Item:
        """Take the item that entered first of all that are here; there must be one."""
        order = self.oldest()
        if self._returned and self._returned[0][0] == order:
            item = heappop(self._returned)[1]
        elif self._ranked is None:
            item = self._items.popleft()
        else:
            item = self._ranked[order]
            self._remove(item)
        self._discount(item)
        return item

    def discard(self, item: Item) -> None:
        """Drop an item, wherever it is; takes as long as there are items."""
        if self._ranked is None and (item.order, item) not in self._returned:
            self._items.remove(item)
        else:
            self._remove(item)
        self._discount(item)

    def take_all(self) -> list[Item]:
        """Take everything, in order."""
        return [self.take() for _ in range(len(self))]

    def head(self) -> Item | None:
        """Return the item that `take` would give; None when there is none."""
        if self._returned:
            return self._returned[0][1]
        if self._ranked is not None:
            return self._ranked.head()
        return self._items[0] if self._items else None

    def first(self, number: int) -> list[Item]:
        """Return up to so many items, in the order in which `take` would give them now."""
        items = [item for _, item in nsmallest(number, self._returned, key=_order)]
        left = number - len(items)
        items += islice(self._items, left) if self._ranked is None else self._ranked.first(left)
        return items

    def oldest(self) -> int:
        """Return the smallest order of all items; there must be one."""
        orders = [self._returned[0][0]] if self._returned else []
        if self._ranked is not None:
            orders.append(self._ranked.oldest())
        elif self._items:
            orders.append(self._items[0].order)
        return min(orders)

    def restore(self, items: Iterable[Item]) -> None:
        """Put items that were taken before back to the head, each at its old place."""
        for item in items:
            if item.lost:
                self.lost.append(item)
                continue
            heappush(self._returned, (item.order, item))
            self._count(item)

    def drop_lost(self) -> None:
        """Take out what is lost."""
        lost = [item for item in self if item.lost]
        for item in lost:
            self._remove(item)
            self._discount(item)
        if self._ranked is None:
            self._items = deque(item for item in self._items if not item.lost)
        self.lost += lost

    def __iter__(self) -> Iterator[Item]:
        """All items, those that came back first."""
        rest: Iterable[Item] = self._items if self._ranked is None else self._ranked
        return chain((item for _, item in self._returned), rest)

    def contents(self) -> tuple[list[Item], list[Item]]:
        """Return the items that came back, and those that never left, both in order."""
        rest: Iterable[Item] = self._items if self._ranked is None else self._ranked
        return [item for _, item in sorted(self._returned, key=_order)], list(rest)

    def load(self, returned: list[Item], rest: Iterable[Item], num_entered: int) -> None:
        """Take what `contents` gave; the queue must be new."""
        self.num_entered = num_entered
        for item in rest:
            self._append(item)
            self._count(item)
        self.restore(returned)

    def _count(self, item: Item) -> None:
        self.num_items += 1
        weight = item.weight
        self.weight += weight if type(weight) is int else exact(weight)
        self.size_bytes += item.size_bytes
        if item.group is not None:
            if self.groups is None:
                self.groups = GroupIndex()
            self.groups.add(item)

    def _discount(self, item: Item) -> None:
        self.num_items -= 1
        weight = item.weight
        self.weight -= weight if type(weight) is int else exact(weight)
        self.size_bytes -= item.size_bytes
        if self.groups is not None:
            self.groups.discard(item)

    def _remove(self, item: Item) -> None:
        ranked = self._ranked
        if ranked is not None and item in ranked:
            ranked.remove(item)
            if not ranked:
                self._ranked = None
        elif (item.order, item) in self._returned:
            self._returned.remove((item.order, item))
            heapify(self._returned)

    def _rank(self) -> None:
        self._ranked = RankedItems(self._clock)
        for item in self._items:
            self._ranked.push(item)
        self._items.clear()

    def _take_ranked(self, ranked: RankedItems) -> Item:
        item = ranked.take()
        if not ranked:
            self._ranked = None
        return item


def _order(returned: tuple[int, Item]) -> int:
    return returned[0]
