"""What the first getter in line gets, and why it may get nothing."""

from __future__ import annotations

from rlinf_scheduler.queueing.entering import EnteringQueue
from rlinf_scheduler.queueing.instructions import Reason
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.operations import AnyGetter
from rlinf_scheduler.queueing.wanted import Wanted, WantedGroup


class MatchingQueue(EnteringQueue):
    """Takes what a getter has asked for, when it is all there."""

    __slots__ = ()

    def _match(self, getter: AnyGetter, closed: bool) -> list[Item] | None:
        """Take what the first getter in line asked for; None when it is not all there."""
        if not self.fifo.num_items:
            return None
        if getter.wanted is None:
            is_free = self.admission is None or self._num_free(self.admission) > 0
            return [self.fifo.take()] if is_free else None
        if isinstance(getter.wanted, WantedGroup):
            return self._match_group(getter, getter.wanted.size, closed)
        return self._match_batch(getter, getter.wanted, closed)

    def _match_batch(self, getter: AnyGetter, wanted: Wanted, closed: bool) -> list[Item] | None:
        if wanted.refuses(self.fifo):
            return None
        waited = getter.waited or (wanted.limits.max_wait_s is not None and self._is_stuck())
        batch = self._take_batch(wanted, closed, waited=waited)
        if batch is None:
            return None
        items, getter.complete = batch
        return items

    def _take_batch(self, wanted: Wanted, closed: bool, *, waited: bool) -> tuple[list[Item], bool] | None:
        may_be_less = self._is_last(closed) or self._is_flushed()
        if self.admission is not None:
            num_free = self._num_free(self.admission)
            # A version ends as a queue does: a batch is of one version.
            may_be_less = may_be_less or num_free == self.admission.num_left
            if num_free < self.fifo.num_items:
                return self._take_first(wanted, num_free, may_be_less=may_be_less, waited=waited)
        if not (wanted.is_ready(self.fifo, waited=waited) or may_be_less):
            return None
        return wanted.take(self.fifo)

    def _take_first(
        self, wanted: Wanted, most: int, *, may_be_less: bool, waited: bool
    ) -> tuple[list[Item], bool] | None:
        """Take a batch of the first items, of which so many may be taken."""
        limits = wanted.limits
        if not most or (most < limits.min_items and not may_be_less):
            return None
        items, complete = wanted.take(self.fifo, most)
        is_enough = len(items) >= limits.min_items and (
            waited or (wanted.weight is None and limits.max_wait_s is None)
        )
        if complete or is_enough or may_be_less:
            return items, complete
        self.fifo.restore(items)
        return None

    def _match_group(self, getter: AnyGetter, size: int, closed: bool) -> list[Item] | None:
        """Take the first complete group; at an end, or for a flush, the oldest of those that are not complete."""
        groups = self.fifo.groups
        group = None if groups is None else groups.first(size)
        if groups is not None and group is None:
            # To look for the oldest takes as long as there are items.
            is_last = self._is_last(closed)
            oldest = groups.oldest() if is_last or self._is_flushed() else None
            if oldest is None or not (is_last or oldest[0] < self.flushed):
                return None
            group, getter.complete = oldest[1], False
        getter.group = group
        return None if group is None else self.fifo.take_group(group, size)

    def _hopeless(self, getter: AnyGetter, closed: bool) -> Reason | None:
        """Return why the first getter in line can never be served; None while it may.

        A closed channel, and an ended queue, waits for the items on their way: each arrives or comes back. It waits for
        those on lease, too.
        """
        if isinstance(getter.wanted, Wanted) and getter.wanted.refuses(self.fifo):
            return Reason.OVERSIZE
        if self._is_last(closed):
            if self.admission is not None and self.fifo.num_items:
                return None  # for the next version
            return None if self._may_come_back() else self.why_over(closed)
        return Reason.IMPOSSIBLE if getter.wanted is not None and self._is_stuck() else None

    def _is_stuck(self) -> bool:
        """Whether nothing can enter before something is taken.

        Only the items at hand count. Waiting puts cannot enter before the first getter is served, and items in
        delivery come back only when their consumer is lost.
        """
        if self.admission is not None and self._num_free(self.admission) < self.fifo.num_items:
            return False  # it waits for what is in the making, or for the next version
        if 0 < self.maxsize <= len(self.fifo) or 0 < self.max_bytes <= self.fifo.size_bytes:
            return True
        if not self.putters or self.reserved or self.num_leases:
            return False
        return not self.has_room(next(iter(self.putters)).item.size_bytes)

    def _is_last(self, closed: bool) -> bool:
        """Whether nothing will be put any more."""
        return (closed or self.ended) and not (self.putters or self.reserved)

    def _may_come_back(self) -> bool:
        """Whether items that were taken may come back."""
        return self.on_the_way > 0 or self.num_leases > 0

    def _is_flushed(self) -> bool:
        return self.flushed > 0 and self.fifo.oldest() < self.flushed

    def flush(self) -> None:
        """Let batches take what came until now, whether it reaches their weight or not."""
        self.flushed = self.fifo.num_entered

    @staticmethod
    def why_over(closed: bool) -> Reason:
        """Why nothing can be put any more."""
        return Reason.CLOSED if closed else Reason.ENDED
