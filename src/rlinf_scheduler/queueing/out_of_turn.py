"""Items that may leave their queue out of turn: by priority, and by group."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush, nsmallest
from typing import Any, TypeAlias

from rlinf_scheduler.queueing.item import Item

# A string, an int, or a tuple of such names; not None.
GroupName: TypeAlias = str | int | tuple[Any, ...]
# What is out of date, or was taken by the other order, is forgotten when it is more than the rest, and more than this.
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


class GroupIndex:
    """The items of a queue by the group that they belong to; items without one are not in it.

    >>> index = GroupIndex()
    >>> for order, group in enumerate(("a", "b", "b")):
    ...     item = Item("x", group=group)
    ...     item.order = order
    ...     index.add(item)
    >>> index.first(2), index.counts()
    ('b', {'a': 1, 'b': 2})
    """

    __slots__ = ("_complete", "_members")

    def __init__(self) -> None:
        self._members: dict[GroupName, dict[int, Item]] = {}
        self._complete: dict[int, _Complete] = {}  # by size, of those that somebody asked for

    def add(self, item: Item) -> None:
        """An item is in the queue."""
        group = item.group
        if group is not None:
            members = self._members.setdefault(group, {})
            members[item.order] = item
            for complete in self._complete.values():
                complete.update(group, members)

    def discard(self, item: Item) -> None:
        """An item has left the queue."""
        group = item.group
        if group is not None:
            members = self._members[group]
            del members[item.order]
            for complete in self._complete.values():
                complete.update(group, members)
            if not members:
                del self._members[group]

    def first(self, size: int) -> GroupName | None:
        """Return the group that was the first to have so many items; None if none has."""
        complete = self._complete.get(size)
        if complete is None:
            complete = self._complete[size] = _Complete(size)
            for group, members in self._members.items():
                complete.update(group, members)
        return complete.first()

    def oldest(self) -> tuple[int, GroupName] | None:
        """Return the group with the oldest item, and that item's order; None if there is no group."""
        group = self.first(1)
        return None if group is None else (min(self._members[group]), group)

    def members(self, group: GroupName, size: int) -> list[Item]:
        """Return the first items of a group, at most so many, in order."""
        members = self._members[group]
        return [members[order] for order in sorted(members)[:size]]

    def counts(self) -> dict[GroupName, int]:
        """Return how many items of each group there are."""
        return {group: len(members) for group, members in self._members.items()}


class _Complete:
    """The groups that have so many items, by which of them had first."""

    __slots__ = ("_heap", "_ranks", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        # The order of the item that completes each; what is in the heap and not here is out of date.
        self._ranks: dict[GroupName, int] = {}
        self._heap: list[tuple[int, GroupName]] = []

    def update(self, group: GroupName, members: dict[int, Item]) -> None:
        if len(members) < self._size:
            self._ranks.pop(group, None)
            return
        rank = sorted(members)[self._size - 1]
        if self._ranks.get(group) != rank:
            self._ranks[group] = rank
            heappush(self._heap, (rank, group))
            if len(self._heap) > 2 * len(self._ranks) + MIN_STALE:
                self._heap = sorted((rank, group) for group, rank in self._ranks.items())

    def first(self) -> GroupName | None:
        while self._heap and self._ranks.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][1] if self._heap else None
