"""Items by priority: higher first, in order within one, and none passed over for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from rlinf.scheduler.queueing.item import Item

# After so many items that passed an older one, the oldest is next, whatever its priority.
MAX_PASSES = 8
# What was taken out of its turn is forgotten when it is more than the rest, and more than this.
MIN_STALE = 64


class RankedItems:
    """Items of different priorities.

    One that has `n` older ones before it is taken after at most (n + 1) * (MAX_PASSES + 1) others, however many of
    higher priority come.

    Attributes:
        passes: how many have passed an older one since the oldest was taken.
    """

    __slots__ = ("_by_age", "_by_rank", "_items", "passes")

    def __init__(self) -> None:
        self._items: dict[int, Item] = {}
        # Orders; those of items that were taken by the other way are skipped.
        self._by_rank: list[tuple[int, int]] = []
        self._by_age: deque[int] = deque()
        self.passes = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        """All items, the oldest first but for those that came back."""
        return iter(self._items.values())

    def __contains__(self, item: Item) -> bool:
        return self._items.get(item.order) is item

    def __getitem__(self, order: int) -> Item:
        return self._items[order]

    def push(self, item: Item) -> None:
        """Put an item behind those of its priority."""
        self._items[item.order] = item
        heappush(self._by_rank, (-item.priority, item.order))
        self._by_age.append(item.order)

    def head(self) -> Item:
        """Return the item that `take` would give; there must be one."""
        return self._items[self._next()]

    def oldest(self) -> int:
        """Return the smallest order; there must be an item."""
        while self._by_age[0] not in self._items:
            self._by_age.popleft()
        return self._by_age[0]

    def take(self) -> Item:
        """Take the item whose turn it is; there must be one."""
        order = self._next()
        self.passes = 0 if order == self.oldest() else self.passes + 1
        return self._items.pop(order)

    def remove(self, item: Item) -> None:
        """Take an item out of its turn."""
        del self._items[item.order]
        if len(self._by_rank) > 2 * len(self._items) + MIN_STALE:
            self._by_rank = sorted((-each.priority, order) for order, each in self._items.items())
            self._by_age = deque(sorted(self._items))

    def _next(self) -> int:
        if self.passes >= MAX_PASSES:
            return self.oldest()
        while self._by_rank[0][1] not in self._items:
            heappop(self._by_rank)
        return self._by_rank[0][1]
