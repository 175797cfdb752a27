"""The order of a queue's items: as they came, by priority, by group, or by the latest version that may take them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, nsmallest
from itertools import chain, islice
from typing import Any, TypeAlias

from rlinf_scheduler.queueing.item import Exact, Item, exact

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
