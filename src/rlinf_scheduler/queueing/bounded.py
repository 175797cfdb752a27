"""What one queue holds, what it is waited for, and the bound between the two."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import chain

from rlinf_scheduler.queueing.admission import Admission
from rlinf_scheduler.queueing.fifo import WeightedFifo
from rlinf_scheduler.queueing.groups import GroupName
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.lanes import LanedFifo
from rlinf_scheduler.queueing.operations import AnyClient, AnyGetter, AnyPutter
from rlinf_scheduler.queueing.queue_name import QueueName
from rlinf_scheduler.queueing.sharding import Sharding
from rlinf_scheduler.queueing.stats import QueueDepth
from rlinf_scheduler.queueing.tally import Tally, Tap
from rlinf_scheduler.queueing.weights import rounded
from rlinf_scheduler.wording import counted


class BoundedQueue:
    """All that is kept of a queue, and whether there is room for more."""

    __slots__ = (
        "admission",
        "counted_bytes",
        "counted_items",
        "delivering",
        "ended",
        "fifo",
        "flushed",
        "getters",
        "leased_bytes",
        "leased_items",
        "lost",
        "max_bytes",
        "maxsize",
        "name",
        "num_dead",
        "num_leases",
        "on_the_way",
        "parked",
        "putters",
        "reserved",
        "reserved_bytes",
        "sharding",
        "streams",
        "tally",
        "taps",
        "waits_for_room",
    )

    def __init__(self, name: QueueName, maxsize: int, max_bytes: int, tally: Tally) -> None:
        self.name = name
        self.maxsize = maxsize
        self.max_bytes = max_bytes
        self.tally = tally
        self.ended = False
        self.fifo = WeightedFifo(tally.clock)
        self.flushed = 0  # items numbered below are not to wait for others
        self.sharding: Sharding[AnyGetter] | None = None
        self.admission: Admission | None = None
        # Ordered by arrival; any member leaves in O(1) when it is cancelled.
        self.getters: OrderedDict[AnyGetter, None] = OrderedDict()
        self.putters: OrderedDict[AnyPutter, None] = OrderedDict()
        # Puts that have room but not all bytes before them, per client, in order.
        self.streams: dict[AnyClient, deque[AnyPutter]] = {}
        self.reserved = 0
        self.reserved_bytes = 0
        self.counted_bytes = self.counted_items = 0  # of what is here, so much is in the tally
        self.delivering = 0
        self.on_the_way = 0  # those of `delivering` that have not arrived
        # On lease, or to come back after a delay; and what has come to nothing too often.
        self.num_leases = self.leased_items = self.leased_bytes = 0
        self.num_dead = 0
        # Items whose bytes are gone, until a getter is told.
        self.lost: list[Item] = []
        # Getters that are passed over as long as their clients have enough on lease.
        self.parked: OrderedDict[AnyGetter, None] = OrderedDict()
        self.taps: tuple[Tap, ...] = ()
        # Its first put waits for bytes that others hold.
        self.waits_for_room = False

    def has_room(self, size_bytes: int) -> bool:
        """Whether an item of this size may enter; into an empty queue any may, unless the channel holds too much."""
        if self.admission is not None and self.awaited and self._is_held_back(self.admission):
            return True  # what is here waits for it
        return self._is_within_bounds(size_bytes) and (
            not self.tally.max_bytes or self._has_room_in_channel(self.num_held, self.held_bytes, size_bytes)
        )

    def _is_within_bounds(self, size_bytes: int) -> bool:
        if self._is_full_of_items():
            return False
        return not (self.max_bytes and self.num_held and self.held_bytes + size_bytes > self.max_bytes)

    def _has_room_in_channel(self, num_held: int, own_bytes: int, size_bytes: int) -> bool:
        tally = self.tally
        others_bytes = tally.held_bytes - self.counted_bytes
        if not others_bytes or self.awaited:
            # What somebody waits for does not wait for what nobody takes.
            return not num_held or own_bytes + size_bytes <= tally.max_bytes
        return others_bytes + own_bytes + size_bytes <= tally.max_bytes

    @property
    def num_held(self) -> int:
        """Items that are here, on their way here, or on lease."""
        return self.fifo.num_items + self.reserved + self.leased_items

    @property
    def held_bytes(self) -> int:
        """Bytes that are here, on their way here, or on lease."""
        return self.fifo.size_bytes + self.reserved_bytes + self.leased_bytes

    def count(self) -> None:
        """Tell the channel what this queue holds now, and stand in line where its first put waits for others."""
        tally, fifo = self.tally, self.fifo
        held_bytes = fifo.size_bytes + self.reserved_bytes + self.leased_bytes
        tally.held_bytes += held_bytes - self.counted_bytes
        self.counted_bytes = held_bytes
        tally.num_here += fifo.num_items - self.counted_items
        self.counted_items = fifo.num_items
        if self.waits_for_room or (self.putters and not self._is_full_of_items()):
            self._line_up_for_room()

    def wait_for_room(self) -> None:
        """Stand in the channel's line with the first put, at the same place if it stands there already."""
        size_bytes = next(iter(self.putters)).item.size_bytes
        self.waits_for_room = True
        # A larger one than the channel may hold enters when nothing is held.
        self.tally.line.set(self, min(size_bytes, self.tally.max_bytes))

    def leave_line(self) -> None:
        """Wait for no room that others have."""
        if self.waits_for_room:
            self.waits_for_room = False
            self.tally.line.discard(self)

    def _is_full_of_items(self) -> bool:
        num_held = self.fifo.num_items + self.reserved + self.leased_items
        return 0 < self.maxsize <= num_held and self.admission is None

    def _line_up_for_room(self) -> None:
        if self.putters and self._lacks_room_of_others(next(iter(self.putters)).item.size_bytes):
            self.wait_for_room()
        else:
            self.leave_line()

    def _lacks_room_of_others(self, size_bytes: int) -> bool:
        """Whether an item of this size would enter if others held less; not if this queue alone is in the way."""
        max_bytes = self.tally.max_bytes
        if not max_bytes or self.has_room(size_bytes):
            return False
        is_too_large = size_bytes > max_bytes and self.num_held > 0
        return not is_too_large and self._is_within_bounds(size_bytes)

    @property
    def full(self) -> bool:
        """No room for another item, however small."""
        return not self.has_room(1)

    @property
    def awaited(self) -> bool:
        """Somebody waits for items, and may have them."""
        if self.sharding is not None and self.sharding.getters:
            return True
        leases = self.tally.leases
        return any(getter.terms is None or not leases.is_at_bound(getter.client) for getter in self.getters)

    @property
    def idle(self) -> bool:
        """Nothing is held, nobody waits, nothing can come back."""
        if self.delivering or self.fifo.num_items or self.getters or self.putters or self.reserved:
            return False
        if self.num_leases or self.num_dead or self.parked or self.lost:
            return False
        if self.admission is not None and not (self.ended and self.admission.idle):
            return False
        # One that is sharded has numbered its steps.
        return self.sharding is None or (self.ended and self.sharding.idle)

    def items(self) -> Iterable[Item]:
        """All items that are here, and those that shards have."""
        return chain(self.fifo, self.sharding or ())

    def touch_taps(self) -> None:
        """Something may have changed for the subscriptions that see this queue."""
        if self.taps:
            self.tally.touched.update(dict.fromkeys(self.taps))

    def depth(self) -> QueueDepth:
        """Return what is here, as data."""
        return QueueDepth(
            name=self.name,
            num_items=len(self.fifo),
            weight=rounded(self.fifo.weight),
            size_bytes=self.fifo.size_bytes,
            num_getters=len(self.getters)
            + len(self.parked)
            + (len(self.sharding.getters) if self.sharding is not None else 0),
            num_putters=len(self.putters) + self.reserved,
            num_delivering=self.delivering,
            num_leased=self.leased_items,
            num_dead=self.num_dead,
            num_lost=len(self.lost),
            groups=() if self.fifo.groups is None else tuple(self.fifo.groups.counts().items()),
        )

    def describe(self) -> str:
        """Return what is here in a phrase, for error texts."""
        depth = self.depth()
        num_items = depth.num_items
        there = f"{num_items} of {self.maxsize} items" if self.maxsize else counted(num_items, "item")
        parts = [f"{there} of weight {depth.weight:g}"]
        if depth.groups:
            largest, most = max(depth.groups, key=_count_of)
            parts[0] += f" in {counted(len(depth.groups), 'group')} (the largest, {largest!r}, has {most})"
        if depth.num_getters:
            parts.append(f"{counted(depth.num_getters, 'getter')} waiting")
        if depth.num_putters:
            parts.append(f"{counted(depth.num_putters, 'put')} waiting")
        if depth.num_delivering:
            parts.append(f"{depth.num_delivering} in delivery")
        if depth.num_leased:
            parts.append(f"{depth.num_leased} on lease")
        if self.parked:
            parts.append(f"{counted(len(self.parked), 'getter')} with as many on lease as may be")
        if depth.num_dead:
            parts.append(counted(depth.num_dead, "dead letter"))
        parts += [each.describe() for each in (self.sharding, self.admission) if each is not None]
        if 0 < self.tally.max_bytes < 2 * self.tally.held_bytes:
            parts.append(
                f"{self.tally.held_bytes} of {self.tally.max_bytes} bytes in all queues of the channel"
            )
        return ", ".join(parts)

    def _num_free(self, admission: Admission) -> int:
        """How many of the first items may be taken now."""
        return admission.num_free(self.fifo) if isinstance(self.fifo, LanedFifo) else 0

    def _is_held_back(self, admission: Admission) -> bool:
        """Whether what is here waits for what is not."""
        return self._num_free(admission) < min(self.fifo.num_items, admission.num_left)


def _count_of(group: tuple[GroupName, int]) -> int:
    return group[1]
