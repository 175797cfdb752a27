"""What may enter a queue: the bounds of its items and bytes, and of the bytes of its channel."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import ClassVar, Protocol

from rlinf_scheduler.queueing.item import Item, QueueName
from rlinf_scheduler.queueing.messages import Instruction, Reason
from rlinf_scheduler.queueing.operations import Putter
from rlinf_scheduler.queueing.order import WeightedFifo
from rlinf_scheduler.queueing.tally import Tally
from rlinf_scheduler.queueing.wanted import Wanted, WantedGroup


class GatedQueue(Protocol):
    """A queue, as its gate sees it."""

    name: QueueName
    ended: bool
    tally: Tally
    fifo: WeightedFifo
    putters: OrderedDict[Putter, None]
    counted_bytes: int
    waits_for_room: bool

    @property
    def num_held(self) -> int:
        """Items that count."""

    @property
    def held_bytes(self) -> int:
        """Bytes that count."""

    @property
    def num_here(self) -> int:
        """Items that are here, or may come back to it."""

    @property
    def awaited(self) -> bool:
        """Somebody waits for items, and may have them."""


class Gate:
    """Bounds of queues. Everything enters for which there is room, and everything that is here may leave.

    One is for all queues that have the same bounds. Another gate derives from this one, is of one queue, and looks at
    what enters and leaves, too.

    Args:
        maxsize: how many items a queue holds; 0 is unbounded.
        max_bytes: how many bytes, unless it is a single larger item; 0 is unbounded.

    Attributes:
        is_plain: nothing but bounds is looked at.
        keeps_rest: at the end of the queue what is here may have to wait, too.
    """

    __slots__ = ("max_bytes", "maxsize")

    is_plain: ClassVar[bool] = True
    keeps_rest: ClassVar[bool] = False

    def __init__(self, maxsize: int, max_bytes: int) -> None:
        self.maxsize = maxsize
        self.max_bytes = max_bytes

    # -- room ------------------------------------------------------------------------------------

    def is_full_of_items(self, queue: GatedQueue) -> bool:
        """Return whether no item may enter, however small."""
        return 0 < self.maxsize <= queue.num_held

    def has_room(self, queue: GatedQueue, size_bytes: int) -> bool:
        """Return whether an item of this size may enter; into an empty queue any may, unless the channel is full."""
        if not self._is_within_bounds(queue, size_bytes):
            return False
        return not queue.tally.max_bytes or self._has_room_in_channel(queue, size_bytes)

    def free(self, queue: GatedQueue) -> tuple[float, float]:
        """Return how many items, and how many bytes, find room for certain; nobody waits there."""
        tally, own_bytes = queue.tally, queue.held_bytes
        free_bytes: float = self.max_bytes - own_bytes if self.max_bytes else math.inf
        if tally.max_bytes:
            others_bytes = tally.held_bytes - queue.counted_bytes
            free_bytes = min(free_bytes, tally.max_bytes - others_bytes - own_bytes)
        return self.maxsize - queue.num_held if self.maxsize else math.inf, free_bytes

    def line_up(self, queue: GatedQueue) -> None:
        """Let a queue stand in line where its first put waits for room that others have, else leave that line."""
        putters = queue.putters
        if putters and self._lacks_room_of_others(queue, next(iter(putters)).item.size_bytes):
            self.wait_for_room(queue)
        else:
            self.leave_line(queue)

    def wait_for_room(self, queue: GatedQueue) -> None:
        """Let a queue stand in the channel's line with its first put, at the same place if it stands there already."""
        tally = queue.tally
        queue.waits_for_room = True
        # A larger one than the channel may hold enters when nothing is held.
        tally.line.set(queue, min(next(iter(queue.putters)).item.size_bytes, tally.max_bytes))

    def leave_line(self, queue: GatedQueue) -> None:
        """Let a queue wait for no room that others have."""
        if queue.waits_for_room:
            queue.waits_for_room = False
            queue.tally.line.discard(queue)

    def _is_within_bounds(self, queue: GatedQueue, size_bytes: int) -> bool:
        if self.is_full_of_items(queue):
            return False
        return not (self.max_bytes and queue.num_held and queue.held_bytes + size_bytes > self.max_bytes)

    def _has_room_in_channel(self, queue: GatedQueue, size_bytes: int) -> bool:
        tally, own_bytes = queue.tally, queue.held_bytes
        others_bytes = tally.held_bytes - queue.counted_bytes
        if not others_bytes or queue.awaited:
            # What somebody waits for does not wait for what nobody takes.
            return not queue.num_held or own_bytes + size_bytes <= tally.max_bytes
        return others_bytes + own_bytes + size_bytes <= tally.max_bytes

    def _lacks_room_of_others(self, queue: GatedQueue, size_bytes: int) -> bool:
        """Whether an item of this size would enter if others held less; not if this queue alone is in the way."""
        max_bytes = queue.tally.max_bytes
        if not max_bytes or self.has_room(queue, size_bytes):
            return False
        is_too_large = size_bytes > max_bytes and queue.num_held > 0
        return not is_too_large and self._is_within_bounds(queue, size_bytes)

    # -- what another gate looks at, too ---------------------------------------------------------

    def begin_put(self, queue: GatedQueue, item: Item) -> str:
        """Let a put begin; return why it is over before, if it is.

        Raises:
            ValueError: it cannot be put here.
        """
        if item.slot:
            message = f"slot {item.slot} is of another queue; this one gives none"
            raise ValueError(message)
        return ""

    def drop_put(self, item: Item) -> None:
        """Note that a put has put nothing."""

    def enter(self, item: Item) -> None:
        """Note that an item enters."""

    def check(self, wanted: Wanted | WantedGroup | None) -> None:
        """Raise ValueError if nobody is ever given that."""

    def num_free(self, queue: GatedQueue) -> int:
        """Return how many of the first items may be taken now."""
        return queue.fifo.num_items

    def ends_after(self, num_free: int) -> bool:
        """Return whether a batch of so many items need not wait for more: those behind them are of another one."""
        return False

    def give(self, items: Iterable[Item]) -> None:
        """Note that items are given out, and may come back."""

    def forget(self, items: Iterable[Item]) -> None:
        """Note that items are given, or lost, for good."""

    def take_back(self, items: Iterable[Item]) -> None:
        """Note that items come back which were given out."""

    def reopen(self, item: Item) -> None:
        """Note that an item comes to the queue once more.

        Raises:
            ValueError: it would be taken too late.
        """

    def serve(self, out: list[Instruction]) -> None:
        """Serve those who wait at the gate itself."""

    def end(self, reason: Reason, state: str, out: list[Instruction]) -> None:
        """Note that nothing more is put."""

    @property
    def idle(self) -> bool:
        """Whether nobody waits at it, and it need not remember anything."""
        return True

    def describe(self) -> Iterator[str]:
        """Yield what it waits for, in phrases."""
        return iter(())

    def waiting(self, most: int) -> Iterator[tuple[str, str, float]]:
        """Yield so many who wait at the gate itself: a client, for what, and since when."""
        return iter(())

    def given(self, most: int) -> Iterator[tuple[str, str, float]]:
        """Yield so much that was given at the gate itself: the client that has it, what, and since when."""
        return iter(())
