"""Items in order, with their total weight at hand, so that 'is a batch ready?' never scans the queue."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Any

from rlinf.scheduler.queueing.weights import Exact, exact


class Item:
    """One item of a queue.

    Attributes:
        payload: whatever the shell holds for it; never looked at.
        weight: its weight, as an exact number.
        size_bytes: its size, for accounting only.
        order: its place among all items that ever entered its queue; kept when it is given back.
    """

    __slots__ = ("order", "payload", "size_bytes", "weight")

    def __init__(self, payload: Any, weight: float = 0, size_bytes: int = 0) -> None:
        self.payload = payload
        self.weight: Exact = exact(weight)
        self.size_bytes = size_bytes
        self.order = -1

    def __repr__(self) -> str:
        return f"Item(order={self.order}, weight={self.weight}, size_bytes={self.size_bytes})"


class WeightedFifo:
    """A queue of items that knows its total weight and hands out batches by weight.

    Every operation is O(1) amortised per item; what was put back costs the logarithm of how much was.

    >>> fifo = WeightedFifo()
    >>> fifo.push(Item("short", weight=2))
    >>> fifo.take_batch(5) is None
    True
    >>> fifo.push(Item("long", weight=4))
    >>> [item.payload for item in fifo.take_batch(5)]
    ['short', 'long']
    """

    __slots__ = ("_items", "_returned", "num_entered", "num_items", "size_bytes", "weight")

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        # What was taken and came back, by its order: all of it stands before what never left.
        self._returned: list[tuple[int, Item]] = []
        self.num_entered = 0
        self.num_items = 0
        self.weight: Exact = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return self.num_items

    def push(self, item: Item) -> None:
        """Put an item at the tail."""
        item.order = self.num_entered
        self.num_entered += 1
        self._items.append(item)
        self.num_items += 1
        self.weight += item.weight
        self.size_bytes += item.size_bytes

    def take(self) -> Item:
        """Take the head; the queue must not be empty."""
        item = heappop(self._returned)[1] if self._returned else self._items.popleft()
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
        return self._items[0] if self._items else None

    def restore(self, items: list[Item]) -> None:
        """Put items that were taken before back to the head, each at its old place."""
        for item in items:
            heappush(self._returned, (item.order, item))
            self.num_items += 1
            self.weight += item.weight
            self.size_bytes += item.size_bytes
