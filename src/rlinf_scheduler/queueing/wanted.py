"""What a get may ask for: a batch or a group."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct

from rlinf_scheduler.queueing.item import Exact, Item, check_batch_weight, exact
from rlinf_scheduler.queueing.order import WeightedFifo


class Limits(NamedTuple):
    """The limits of a batch besides its weight.

    Attributes:
        min_items: it has at least so many items.
        max_items: it has at most so many; 0: any number.
        max_bytes: it has at most so many bytes, or is a single larger item; 0: any number.
        max_wait_s: from when it has `min_items`, it waits so long for its weight (without a weight, for its bounds),
            and then is what is there. None: for its weight as long as it takes, for its bounds not at all.
        oversize: what becomes of an item that alone is heavier than the batch's weight, or larger than its bytes. "":
            the batch that it falls in is as heavy as it makes it. "alone": it is a batch of its own, and "raise": it is
            none; in both cases a batch ends before it.
    """

    min_items: int = 1
    max_items: int = 0
    max_bytes: int = 0
    max_wait_s: float | None = None
    oversize: str = ""

    def reached(self, num_items: int, size_bytes: int) -> bool:
        """Whether a batch of this size cannot grow."""
        return 0 < self.max_items <= num_items or 0 < self.max_bytes <= size_bytes

    def exceeded(self, num_items: int, size_bytes: int) -> bool:
        """Whether a batch of this size is too large."""
        return 0 < self.max_items < num_items or 0 < self.max_bytes < size_bytes


NO_LIMITS = Limits()


class WantedGroup(Struct, frozen=True, array_like=True, tag="group"):
    """A group that somebody wants: the first that has so many items."""

    size: int

    @classmethod
    def checked(cls, size: int) -> WantedGroup:
        """Return what is wanted by a group of so many items.

        Raises:
            ValueError: it is less than 1.
        """
        if size < 1:
            message = f"a group has at least 1 item, not {size}"
            raise ValueError(message)
        return cls(size)

    def match(self, queue: Any, getter: Any, closed: bool) -> list[Item] | None:
        """Take the first complete group; at an end, or for a flush, the oldest of those that are not complete."""
        groups = queue.fifo.groups
        group = None if groups is None else groups.first(self.size)
        if groups is not None and group is None:
            # To look for the oldest takes as long as there are items.
            is_last = queue.is_last(closed)
            oldest = groups.oldest() if is_last or queue.is_flushed() else None
            if oldest is None or not (is_last or oldest[0] < queue.flushed):
                return None
            group, getter.complete = oldest[1], False
        getter.group = group
        items: list[Item] | None = None if group is None else queue.fifo.take_group(group, self.size)
        return items


class Wanted(Struct, frozen=True, array_like=True, tag="batch"):
    """A batch that somebody wants: the shortest run of first items of a weight; without a weight, what is there.

    >>> fifo = WeightedFifo()
    >>> for weight in (3, 1, 2):
    ...     fifo.push(Item("x", weight))
    >>> Wanted(4, Limits(min_items=3)).is_ready(fifo, waited=False), Wanted(7).is_ready(fifo, waited=False)
    (True, False)
    >>> items, complete = Wanted(None, Limits(max_items=2)).take(fifo)
    >>> len(items), complete
    (2, True)
    """

    weight: int | float | None
    limits: Limits = NO_LIMITS

    @classmethod
    def checked(cls, batch_weight: float | None, limits: Limits = NO_LIMITS) -> Wanted:
        """Return what is wanted by a batch of this weight; None without one.

        Raises:
            ValueError: the weight is not a finite number above 0.
        """
        return cls(None if batch_weight is None else check_batch_weight(batch_weight), limits)

    def match(self, queue: Any, getter: Any, closed: bool) -> list[Item] | None:
        """Take it for the first getter in line; None when it is not all there."""
        if self.refuses(queue.fifo):
            return None
        waited = getter.waited or (self.limits.max_wait_s is not None and queue.is_stuck())
        batch = self.take_of(queue, closed, waited=waited)
        if batch is None:
            return None
        items, getter.complete = batch
        return items

    def take_of(self, queue: Any, closed: bool, *, waited: bool) -> tuple[list[Item], bool] | None:
        """Take it if it is there, or if what is there is all that comes; and whether it is what was wanted."""
        num_free = queue.gate.num_free(queue)
        may_be_less = queue.is_last(closed) or queue.is_flushed() or queue.gate.ends_after(num_free)
        if num_free < queue.fifo.num_items:
            return self._take_first(queue.fifo, num_free, may_be_less=may_be_less, waited=waited)
        if not (self.is_ready(queue.fifo, waited=waited) or may_be_less):
            return None
        return self.take(queue.fifo)

    def _take_first(
        self, fifo: WeightedFifo, most: int, *, may_be_less: bool, waited: bool
    ) -> tuple[list[Item], bool] | None:
        """Take a batch of the first items, of which so many may be taken."""
        limits = self.limits
        if not most or (most < limits.min_items and not may_be_less):
            return None
        items, complete = self.take(fifo, most)
        is_enough = len(items) >= limits.min_items and (
            waited or (self.weight is None and limits.max_wait_s is None)
        )
        if complete or is_enough or may_be_less:
            return items, complete
        fifo.restore(items)
        return None

    def is_ready(self, fifo: WeightedFifo, *, waited: bool) -> bool:
        """Whether `take` may be called; `waited` says that `max_wait_s` is over. Never scans the queue."""
        limits = self.limits
        if limits.reached(fifo.num_items, fifo.size_bytes) or (
            limits.oversize and self.is_oversize(fifo.head())
        ):
            return True
        if fifo.num_items < limits.min_items:
            return False
        if self.weight is None:
            return waited or limits.max_wait_s is None
        return waited or fifo.weight >= self.weight

    def refuses(self, fifo: WeightedFifo) -> bool:
        """Whether no batch can come, for an oversize item stands at the head."""
        return self.limits.oversize == "raise" and self.is_oversize(fifo.head())

    def is_oversize(self, item: Item | None) -> bool:
        """Whether an item alone is more than the batch is to be."""
        if item is None:
            return False
        is_heavy = self.weight is not None and item.weight > self.weight
        return is_heavy or 0 < self.limits.max_bytes < item.size_bytes

    def take(self, fifo: WeightedFifo, most: int = -1) -> tuple[list[Item], bool]:
        """Take the batch, or as much of it as there is, or `most` items; and whether it is what was wanted."""
        limits = self.limits
        batch: list[Item] = []
        weight: Exact = 0
        size_bytes = 0
        while (item := fifo.head()) is not None:
            if self.weight is not None and self._is_enough(weight, len(batch)):
                return batch, True
            if batch and self._ends_before(item, len(batch), size_bytes):
                return batch, True
            if len(batch) == most:
                break
            batch.append(fifo.take())
            weight += exact(item.weight)
            size_bytes += item.size_bytes
            if limits.oversize and self.is_oversize(item):
                return batch, True
        return batch, self._is_enough(weight, len(batch)) or limits.reached(len(batch), size_bytes)

    def _ends_before(self, item: Item, num_items: int, size_bytes: int) -> bool:
        limits = self.limits
        if limits.oversize and self.is_oversize(item):
            return True
        return limits.exceeded(num_items + 1, size_bytes + item.size_bytes)

    def _is_enough(self, weight: Exact, num_items: int) -> bool:
        return num_items >= self.limits.min_items and (self.weight is None or weight >= self.weight)
