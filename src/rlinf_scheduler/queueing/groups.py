"""Which items of a queue belong together, and which groups are complete."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, TypeAlias

from rlinf_scheduler.queueing.item import Item

# A string, an int, or a tuple of such names; not None.
GroupName: TypeAlias = str | int | tuple[Any, ...]
# What is out of date is forgotten when it is more than the rest, and more than this.
MIN_STALE = 64


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
