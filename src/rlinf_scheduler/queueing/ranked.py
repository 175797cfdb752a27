"""Items by priority: higher first, in order within one, and, where that is said, none passed over for too long."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush, nsmallest

from rlinf_scheduler.queueing.item import Item

# What was taken by the other order is forgotten when it is more than the rest, and more than this.
MIN_STALE = 64


@dataclass(slots=True)
class QueueClock:
    """The time, as the shell of a channel's state tells it.

    Attributes:
        priority_wait_s: an item that has been in its queue for so long is passed over no more; None: it always is.
        now: in seconds.
    """

    priority_wait_s: float | None = None
    now: float = 0.0


class RankedItems:
    """Items of different priorities.

    Args:
        clock: says how long an item is passed over by younger ones of higher priority.
    """

    __slots__ = ("_by_age", "_by_rank", "_clock", "_items")

    def __init__(self, clock: QueueClock) -> None:
        self._clock = clock
        self._items: dict[int, Item] = {}
        # Orders; those of items that were taken by the other way are skipped.
        self._by_rank: list[tuple[int, int]] = []
        self._by_age: deque[int] = deque()

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

    def first(self, number: int) -> list[Item]:
        """Return up to so many items, in the order in which `take` would give them now."""
        wait_s, now = self._clock.priority_wait_s, self._clock.now

        def turn(item: Item) -> tuple[bool, int, int]:
            has_waited = wait_s is not None and now - item.since >= wait_s
            return (False, 0, item.order) if has_waited else (True, -item.priority, item.order)

        return nsmallest(number, self._items.values(), key=turn)

    def oldest(self) -> int:
        """Return the smallest order; there must be an item."""
        while self._by_age[0] not in self._items:
            self._by_age.popleft()
        return self._by_age[0]

    def take(self) -> Item:
        """Take the item whose turn it is; there must be one."""
        item = self._items.pop(self._next())
        self._forget_stale()
        return item

    def remove(self, item: Item) -> None:
        """Take an item out of its turn."""
        del self._items[item.order]
        self._forget_stale()

    def _next(self) -> int:
        wait_s = self._clock.priority_wait_s
        if wait_s is not None:
            oldest = self.oldest()
            if self._clock.now - self._items[oldest].since >= wait_s:
                return oldest
        while self._by_rank[0][1] not in self._items:
            heappop(self._by_rank)
        return self._by_rank[0][1]

    def _forget_stale(self) -> None:
        most = 2 * len(self._items) + MIN_STALE
        if len(self._by_rank) > most:
            self._by_rank = sorted((-each.priority, order) for order, each in self._items.items())
        if len(self._by_age) > most:
            self._by_age = deque(sorted(self._items))
