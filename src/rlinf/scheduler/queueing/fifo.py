"""Items in order, with their total weight at hand, so that 'is a batch ready?' never scans the queue."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from rlinf.scheduler.queueing.item import Item
from rlinf.scheduler.queueing.ranked import RankedItems
from rlinf.scheduler.queueing.weights import Exact


class WeightedFifo:
    """A queue of items that knows its total weight and hands out batches by weight.

    Every operation is O(1) amortised per item; what was put back, or has a priority, costs the logarithm of how much.

    >>> fifo = WeightedFifo()
    >>> fifo.push(Item("short", weight=2))
    >>> fifo.take_batch(5) is None
    True
    >>> fifo.push(Item("long", weight=4))
    >>> [item.payload for item in fifo.take_batch(5)]
    ['short', 'long']
    """

    __slots__ = ("_items", "_ranked", "_returned", "num_entered", "num_items", "size_bytes", "weight")

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        # Where they are instead while they have priorities.
        self._ranked: RankedItems | None = None
        # What was taken and came back, by its order: all of it stands before what never left.
        self._returned: list[tuple[int, Item]] = []
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
        if item.priority and self._ranked is None:
            self._rank()
        if self._ranked is None:
            self._items.append(item)
        else:
            self._ranked.push(item)
        self.num_items += 1
        self.weight += item.weight
        self.size_bytes += item.size_bytes

    def take(self) -> Item:
        """Take the head; the queue must not be empty."""
        if self._returned:
            item = heappop(self._returned)[1]
        elif self._ranked is None:
            item = self._items.popleft()
        else:
            item = self._take_ranked(self._ranked)
        self.num_items -= 1
        self.weight -= item.weight
        self.size_bytes -= item.size_bytes
        return item

    def take_batch(self, batch_weight: Exact) -> list[Item] | None:
        """Take the shortest run of first items that reaches `batch_weight`; None when all do not."""
        if self.weight < batch_weight:
            return None
        batch: list[Item] = []
        reached: Exact = 0
        while reached < batch_weight:
            item = self.take()
            batch.append(item)
            reached += item.weight
        return batch

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

    def oldest(self) -> int:
        """Return the smallest order of all items; there must be one."""
        orders = [self._returned[0][0]] if self._returned else []
        if self._ranked is not None:
            orders.append(self._ranked.oldest())
        elif self._items:
            orders.append(self._items[0].order)
        return min(orders)

    def restore(self, items: list[Item]) -> None:
        """Put items that were taken before back to the head, each at its old place."""
        for item in items:
            heappush(self._returned, (item.order, item))
            self.num_items += 1
            self.weight += item.weight
            self.size_bytes += item.size_bytes

    def _rank(self) -> None:
        self._ranked = RankedItems()
        for item in self._items:
            self._ranked.push(item)
        self._items.clear()

    def _take_ranked(self, ranked: RankedItems) -> Item:
        item = ranked.take()
        if not ranked:
            self._ranked = None
        return item
