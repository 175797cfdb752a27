"""One queue of a channel: its items, the line of getters, the line of puts, and the bound between them.

Rules:

- Getters are served in order of arrival, `get` and `get_batch` in one line; a waiting getter holds nothing.
- Puts enter in order of arrival. Those that find no room wait in line.
- A put may announce its item and send the bytes once it has room (a *reservation*). Later puts of the same
  client enter behind it, other clients' pass it: a slow producer holds up nobody else.
- A queue that has ended takes no further put. Those that came before still enter; then a batch gets what is left,
  and who asks after that is told that the queue has ended.
- A flush says that a batch need not wait for more than what came before it.
- A queue that admits (see `Admission`) takes an item only with a slot, which has room for it, and gives the oldest
  version first, none that would keep another from being taken in time.
- Items in delivery (taken, not yet confirmed) do not count against the bound, unless they are on lease. Otherwise
  every put to a full queue would wait for a consumer's confirmation. Giving back never waits: it may exceed the
  bound, and no put enters until the queue is below it again.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, takewhile
from typing import Protocol

from rlinf.scheduler.queueing.admission import Admission
from rlinf.scheduler.queueing.fifo import WeightedFifo
from rlinf.scheduler.queueing.groups import GroupName
from rlinf.scheduler.queueing.instructions import (
    Accept,
    Bury,
    Deliver,
    Grant,
    Instruction,
    OnLease,
    Reason,
    Refuse,
    Ripen,
)
from rlinf.scheduler.queueing.item import Item
from rlinf.scheduler.queueing.lanes import LanedFifo
from rlinf.scheduler.queueing.queue_name import QueueName
from rlinf.scheduler.queueing.sharding import Part, Sharding, ShardPlan
from rlinf.scheduler.queueing.wanted import LeaseTerms, Wanted, WantedGroup
from rlinf.scheduler.queueing.watch import Watch
from rlinf.scheduler.queueing.weights import rounded
from rlinf.scheduler.wording import counted

# Of one item: as the class makes them, without a call of Python code.
_accept = partial(tuple.__new__, Accept)
_deliver = partial(tuple.__new__, Deliver)
_NOTHING = (None, None, None, None)


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """What one queue holds, and who waits for it.

    Attributes:
        name: the queue's name.
        num_items: items that a getter can take.
        weight: their total weight.
        size_bytes: their total size.
        num_getters: waiting gets and batches.
        num_putters: waiting puts, those whose bytes are on their way included.
        num_delivering: gets and batches whose items were sent and not yet confirmed, those on lease not included.
        num_leased: items on lease, and those that come back after a delay.
        num_dead: dead letters.
        num_lost: items that are lost, of which no getter was told yet.
        groups: each group that has items here, and how many.
        num_dropped: of a subscription, items that it has given up since its beginning.
    """

    name: QueueName
    num_items: int
    weight: int | float
    size_bytes: int
    num_getters: int
    num_putters: int
    num_delivering: int
    num_leased: int = 0
    num_dead: int = 0
    num_lost: int = 0
    groups: tuple[tuple[GroupName, int], ...] = ()
    num_dropped: int = 0


class Client:
    """One process that uses the channel, and its unfinished operations by ticket."""

    __slots__ = ("name", "num_leased", "operations", "parked")

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_leased = 0  # items
        # Its getters that wait until it has fewer items on lease.
        self.parked: dict[Getter, None] = {}
        self.operations: dict[int, Getter | Putter] = {}


class Getter:
    """A `get` (wanted None), `get_batch` or `get_group`: waiting while `items` is None, in delivery after."""

    __slots__ = (
        "arrived",
        "client",
        "complete",
        "group",
        "is_shard",
        "items",
        "lease",
        "number",
        "part",
        "queue",
        "ripens",
        "since",
        "terms",
        "ticket",
        "waited",
        "wanted",
    )

    def __init__(
        self,
        client: Client,
        ticket: int,
        queue: NamedQueue,
        wanted: Wanted | WantedGroup | None,
        terms: LeaseTerms | None = None,
    ) -> None:
        self.client = client
        self.ticket = ticket
        self.queue = queue
        self.wanted = wanted
        self.number = 0  # its place in the line of getters, for one that was passed over
        self.ripens = False  # the least of a batch is there: its `max_wait_s` has begun
        self.waited = False  # and is over
        self.is_shard = False  # it asks for a shard's part, and is not in the line
        self.part: Part | None = None
        self.terms = terms  # of the lease that it asks for
        self.lease: OnLease | None = None
        self.group: GroupName | None = None  # that was delivered
        self.items: list[Item] | None = None
        self.complete = True  # its items are what was asked for, and not what is left
        self.since = queue.tally.now
        self.arrived = False  # the items are in the client's process; they may still come back


class Putter:
    """A put that waits for room, or that has room and waits for its bytes or for an earlier put's bytes."""

    __slots__ = ("client", "complete", "has_room", "item", "queue", "seen_by", "since", "ticket")

    def __init__(self, client: Client, ticket: int, queue: NamedQueue, item: Item, *, complete: bool) -> None:
        self.client = client
        self.ticket = ticket
        self.queue = queue
        self.item = item
        self.since = queue.tally.now
        self.complete = complete  # the payload is here
        self.has_room = False
        self.seen_by: tuple[Tap, ...] = ()  # where it has room too


class Lender(Protocol):
    """Who knows what a channel has given out on lease (see `Leases`)."""

    def next_number(self) -> int:
        """Number what it gives out."""

    def is_at_bound(self, client: Client) -> bool:
        """Whether a client has as many items on lease as it may."""

    def begin(self, getter: Getter, terms: LeaseTerms, items: list[Item], out: list[Instruction]) -> None:
        """Give items to a getter."""


class Tap(Protocol):
    """What a subscription reads (see `TapQueue`)."""

    name: QueueName
    reserved: int
    reserved_bytes: int

    def has_room(self, size_bytes: int) -> bool:
        """Whether it can see an item of this size."""

    def see(self, item: Item) -> None:
        """An item has entered a queue."""

    def settle(self, closed: bool, out: list[Instruction]) -> None:
        """Serve who reads it."""


class Tally:
    """What all queues of a channel accepted so far, and what they hold together.

    Args:
        max_bytes: how many bytes they may hold; 0 is unbounded.
        leases: of all of them.

    Attributes:
        now: the clock of the state's shell, in seconds; for reports only.
        watches: each is told what enters which queue.
        num_lost: of the items accepted, those that are lost; lost_bytes: their size.
        has_losses: some bytes are gone, of items here or of such as may come back.
        touched: subscriptions for which something may have changed.
    """

    __slots__ = (
        "crowded",
        "has_losses",
        "held_bytes",
        "leases",
        "lost_bytes",
        "max_bytes",
        "now",
        "num_gets",
        "num_items",
        "num_lost",
        "size_bytes",
        "touched",
        "watches",
    )

    def __init__(self, max_bytes: int, leases: Lender) -> None:
        self.leases = leases
        self.now = 0.0
        self.num_gets = 0
        self.num_items = 0
        self.size_bytes = 0
        self.num_lost = self.lost_bytes = 0
        self.has_losses = False
        self.max_bytes = max_bytes
        self.held_bytes = 0
        # Queues with puts that may wait for what other queues hold.
        self.crowded: dict[NamedQueue, None] = {}
        self.touched: dict[Tap, None] = {}
        self.watches: list[Watch] = []


class NamedQueue:
    """The state of one queue. Every method appends what is to be done to `out`."""

    __slots__ = (
        "admission",
        "counted_bytes",
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
    )

    def __init__(self, name: QueueName, maxsize: int, max_bytes: int, tally: Tally) -> None:
        self.name = name
        self.maxsize = maxsize
        self.max_bytes = max_bytes
        self.tally = tally
        self.ended = False
        self.fifo = WeightedFifo()
        self.flushed = 0  # items numbered below are not to wait for others
        self.sharding: Sharding[Getter] | None = None
        self.admission: Admission | None = None
        # Ordered by arrival; any member leaves in O(1) when it is cancelled.
        self.getters: OrderedDict[Getter, None] = OrderedDict()
        self.putters: OrderedDict[Putter, None] = OrderedDict()
        # Puts that have room but not all bytes before them, per client, in order.
        self.streams: dict[Client, deque[Putter]] = {}
        self.reserved = 0
        self.reserved_bytes = 0
        self.counted_bytes = 0  # of it and of the items, so many are in the tally
        self.delivering = 0
        self.on_the_way = 0  # those of `delivering` that have not arrived
        # On lease, or to come back after a delay; and what has come to nothing too often.
        self.num_leases = self.leased_items = self.leased_bytes = 0
        self.num_dead = 0
        # Items whose bytes are gone, until a getter is told.
        self.lost: list[Item] = []
        # Getters that are passed over as long as their clients have enough on lease.
        self.parked: OrderedDict[Getter, None] = OrderedDict()
        self.taps: tuple[Tap, ...] = ()

    def has_room(self, size_bytes: int) -> bool:
        """Whether an item of this size may enter; into an empty queue any may, unless the channel holds too much."""
        return self._has_own_room(size_bytes) and not (self.taps and self.full_taps(size_bytes))

    def _has_own_room(self, size_bytes: int) -> bool:
        fifo = self.fifo
        num_held = fifo.num_items + self.reserved + self.leased_items
        if self.admission is None:
            if 0 < self.maxsize <= num_held:
                return False
        elif self.awaited and self._is_held_back(self.admission):
            return True  # what is here waits for it
        own_bytes = fifo.size_bytes + self.reserved_bytes + self.leased_bytes
        if self.max_bytes and num_held and own_bytes + size_bytes > self.max_bytes:
            return False
        return not self.tally.max_bytes or self._has_room_in_channel(num_held, own_bytes, size_bytes)

    def _has_room_in_channel(self, num_held: int, own_bytes: int, size_bytes: int) -> bool:
        tally = self.tally
        others_bytes = tally.held_bytes - self.counted_bytes
        if not others_bytes or self.awaited:
            # What somebody waits for does not wait for what nobody takes.
            return not num_held or own_bytes + size_bytes <= tally.max_bytes
        return others_bytes + own_bytes + size_bytes <= tally.max_bytes

    def full_taps(self, size_bytes: int) -> list[Tap]:
        """The subscriptions for which an item of this size has to wait."""
        return [tap for tap in self.taps if not tap.has_room(size_bytes)]

    @property
    def num_held(self) -> int:
        """Items that are here, on their way here, or on lease."""
        return self.fifo.num_items + self.reserved + self.leased_items

    @property
    def held_bytes(self) -> int:
        """Bytes that are here, on their way here, or on lease."""
        return self.fifo.size_bytes + self.reserved_bytes + self.leased_bytes

    def count(self) -> None:
        """Tell the channel what this queue holds now, and whether puts wait here, where that matters."""
        tally = self.tally
        if tally.max_bytes:
            held_bytes = self.fifo.size_bytes + self.reserved_bytes + self.leased_bytes
            tally.held_bytes += held_bytes - self.counted_bytes
            self.counted_bytes = held_bytes
        elif not self.taps:
            return
        if self.putters:
            tally.crowded[self] = None
        elif tally.crowded:
            tally.crowded.pop(self, None)

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

    def put(self, putter: Putter, out: list[Instruction]) -> None:
        """Let a put enter, or stand in line."""
        if self.putters or not self.has_room(putter.item.size_bytes):
            self.load_put(putter, has_room=False)
            self.touch_taps()
        else:
            self._enter(putter, out)
        self.count()

    def fill(self, putter: Putter, out: list[Instruction]) -> None:
        """The bytes of a reservation are here: it enters, and complete puts right behind it too."""
        putter.complete = True
        stream = self.streams[putter.client]
        while stream and stream[0].complete:
            entering = stream.popleft()
            self._unreserve(entering)
            del entering.client.operations[entering.ticket]
            self.push(entering.client, entering.ticket, entering.item, out)
        if not stream:
            del self.streams[putter.client]

    @property
    def is_open(self) -> bool:
        """Whether items pass in the order in which they come, and concern nobody but those who put and get them.

        Then a run of puts, or of gets, does what they do one by one.
        """
        if self.ended or self.reserved or self.taps or self.lost:
            return False
        if self.admission is not None or self.sharding is not None or not self.fifo.is_plain:
            return False
        crowded = self.tally.crowded
        return not crowded or (len(crowded) == 1 and self in crowded)

    def put_run(self, client: Client, puts: Sequence[tuple[int, Item]], out: list[Instruction]) -> int:
        """Take items of puts, as long as that is simple, and say how many; it is open."""
        count = 0
        # Who waits for one item has had all that there were; one on lease may take the room of the next.
        if self.getters and not (self.putters or self.fifo.num_items or self.leased_items):
            count = self._hand_over(client, puts, out)
        if not self.getters:
            if not self.putters:
                count += self._push_run(client, islice(puts, count, None), out)
            count += self._line_up(client, islice(puts, count, None))
            self.count()
        return count

    def _hand_over(self, client: Client, puts: Iterable[tuple[int, Item]], out: list[Instruction]) -> int:
        """Give items to gets that wait for one each; nothing is here."""
        getters = self.getters
        count = 0
        for ticket, item in puts:
            getter = next(iter(getters), None)
            if getter is None or getter.wanted is not None or getter.terms is not None or item.is_special:
                break
            del getters[getter]
            self.fifo.pass_by(item)
            self._note_entered(item)
            out.append(_accept((client.name, ticket)))
            self._deliver_one(getter, item, out)
            count += 1
        return count

    def _push_run(self, client: Client, puts: Iterable[tuple[int, Item]], out: list[Instruction]) -> int:
        """Let items enter as long as there is room; nobody waits here."""
        num_free, free_bytes = self._free()
        count = 0
        for ticket, item in puts:
            free_bytes -= item.size_bytes
            if count >= num_free or free_bytes < 0 or item.is_special:
                break
            self.fifo.push(item)
            self._note_entered(item)
            out.append(_accept((client.name, ticket)))
            count += 1
        return count

    def _line_up(self, client: Client, puts: Iterable[tuple[int, Item]]) -> int:
        """Let puts wait for which there is no room, or before which others do; nobody waits for items."""
        count = 0
        for ticket, item in puts:
            if not self.putters and self.has_room(item.size_bytes):
                break
            self.load_put(Putter(client, ticket, self, item, complete=True), has_room=False)
            count += 1
        return count

    def get_run(self, client: Client, tickets: Iterable[int], out: list[Instruction]) -> None:
        """Give an item to each get, as long as there are any, and let the others stand in line; it is open."""
        fifo, getters, tally = self.fifo, self.getters, self.tally
        is_first = not getters
        for ticket in tickets:
            getter = client.operations[ticket] = Getter(client, ticket, self, None)
            tally.num_gets += 1
            getter.number = tally.num_gets
            if is_first and fifo.num_items:
                self._deliver_one(getter, fifo.take(), out)
            else:
                getters[getter] = None
        if self.putters:
            self.settle(False, out)
        elif is_first:
            self.count()

    def _free(self) -> tuple[float, float]:
        """How many items, and how many bytes, find room for certain; nobody waits here."""
        tally, own_bytes = self.tally, self.held_bytes
        free_bytes: float = self.max_bytes - own_bytes if self.max_bytes else math.inf
        if tally.max_bytes:
            others_bytes = tally.held_bytes - self.counted_bytes
            free_bytes = min(free_bytes, tally.max_bytes - others_bytes - own_bytes)
        return self.maxsize - self.num_held if self.maxsize else math.inf, free_bytes

    def withdraw_put(self, putter: Putter) -> None:
        """Forget an unfinished put; its room is free again."""
        del putter.client.operations[putter.ticket]
        self._unuse(putter)
        if not putter.has_room:
            del self.putters[putter]
            return
        self._unreserve(putter)
        stream = self.streams[putter.client]
        stream.remove(putter)
        if not stream:
            del self.streams[putter.client]

    def release_stream(self, client: Client, out: list[Instruction]) -> None:
        """Push the complete puts that a withdrawn reservation of `client` was holding back."""
        stream = self.streams.get(client)
        if stream and stream[0].complete:
            self.fill(stream[0], out)

    def get(self, getter: Getter) -> None:
        """Stand in line; `settle` serves the line."""
        getter.client.operations[getter.ticket] = getter
        tally = self.tally
        tally.num_gets += 1
        getter.number = tally.num_gets
        self.getters[getter] = None

    def get_part(
        self, getter: Getter, plan: ShardPlan, index: int, done_step: int, out: list[Instruction]
    ) -> None:
        """Wait for a shard's next part; `settle` hands it out."""
        if self.sharding is None:
            self.sharding = Sharding(plan)
        getter.is_shard = True
        self._remember(getter)
        earlier = self.sharding.ask(getter, index, done_step)
        if earlier is not None:
            del earlier.client.operations[earlier.ticket]
            out.append(Refuse(earlier.client.name, earlier.ticket, Reason.SUCCEEDED, self.describe()))
        if self.tally.has_losses:  # a part that its shard had comes back
            self.fifo.lost += self.sharding.drop_lost()

    def withdraw_get(self, getter: Getter) -> None:
        """Forget a waiting getter."""
        del getter.client.operations[getter.ticket]
        if self.sharding is not None and getter.is_shard:
            self.sharding.forget(getter)
        elif getter in self.parked:
            del self.parked[getter], getter.client.parked[getter]
        else:
            del self.getters[getter]

    def unpark(self, client: Client) -> None:
        """Getters of a client that were passed over stand in line again, each at its old place."""
        unparked = [getter for getter in client.parked if getter.queue is self]
        for getter in unparked:
            del self.parked[getter], client.parked[getter]
        last = unparked[-1].number
        before = takewhile(lambda getter: getter.number < last, self.getters)
        for getter in sorted([*before, *unparked], key=_number_of, reverse=True):
            self.getters[getter] = None
            self.getters.move_to_end(getter, last=False)

    def waits_for(self, getter: Getter, closed: bool) -> bool:
        """Whether this queue has ended, and waits for the items of a delivery to arrive."""
        is_on_the_way = not (
            getter.items is None or getter.arrived or getter.is_shard or getter.lease is not None
        )
        return is_on_the_way and (closed or self.ended)

    def arrive(self, getter: Getter) -> None:
        """The delivered items are in the client's process, where nobody has taken them yet."""
        if not getter.arrived and not getter.is_shard and getter.lease is None:
            self.on_the_way -= 1
        getter.arrived = True

    def confirm(self, getter: Getter) -> None:
        """The delivered items were taken: they are the consumer's now."""
        if self.admission is not None and not getter.is_shard:
            self.admission.settle(getter.items or ())
        self._end_delivery(getter)

    def _end_delivery(self, getter: Getter) -> None:
        del getter.client.operations[getter.ticket]
        if not getter.is_shard:
            self.delivering -= 1
            if not getter.arrived and getter.lease is None:
                self.on_the_way -= 1
        getter.arrived = True

    def give_back(self, getters: Iterable[Getter]) -> None:
        """Put items in delivery back to the head, in their original order."""
        returned: list[Item] = []
        for getter in getters:
            self._end_delivery(getter)
            # A part is kept for its shard anyhow.
            if not getter.is_shard:
                returned.extend(getter.items or ())
        self.restore(returned)

    def restore(self, items: Collection[Item]) -> None:
        """Put items that were taken back to the head, each at its old place."""
        if self.admission is not None:
            self.admission.come_back(items)
        self.fifo.restore(items)

    def forget(self, items: Iterable[Item]) -> None:
        """Items were given for good, or are lost."""
        if self.admission is not None:
            self.admission.settle(items)

    def reopen(self, item: Item) -> None:
        """Put an item that was a dead letter back to its old place.

        Raises:
            ValueError: it would be taken too late.
        """
        if self.admission is not None:
            self.admission.reopen(item)
        self.fifo.restore((item,))

    def settle(self, closed: bool, out: list[Instruction]) -> None:
        """Serve getters and let puts enter until neither line can move."""
        if self.fifo.lost:
            self._note_lost(out)
        if self.lost and self.awaited:
            self._tell_of_lost(out)
        if self.admission is not None:
            self._give_slots(self.admission, out)
        self._serve(closed, out)
        if self.sharding is not None:
            self._serve_shards(self.sharding, closed, out)
        while self.putters and self._admit(out):
            self._serve(closed, out)
            if self.sharding is not None:
                self._serve_shards(self.sharding, closed, out)
        if self.parked:
            self._refuse_parked(closed, out)
        if self.admission is not None:
            self._give_slots(self.admission, out)
        self.count()

    def drop_lost(self, failed: Getter | None = None) -> None:
        """Take out what is lost; also of a delivery that did not arrive."""
        self.fifo.drop_lost()
        if self.sharding is not None:
            self.fifo.lost += self.sharding.drop_lost(None if failed is None else failed.part)

    def fail(self, getter: Getter, out: list[Instruction]) -> None:
        """Items of a delivery did not arrive, and are lost: the others go back, and the getter is told."""
        self.give_back((getter,))
        self.drop_lost(getter)
        self.tell_of_lost(getter, out)

    def tell_of_lost(self, getter: Getter, out: list[Instruction]) -> None:
        """Refuse a getter, and tell it of the items that are lost."""
        self._note_lost(out)
        out.append(self._told_of_lost(getter))

    def items(self) -> Iterable[Item]:
        """All items that are here, and those that shards have."""
        return chain(self.fifo, self.sharding or ())

    def _note_lost(self, out: list[Instruction]) -> None:
        lost, self.fifo.lost = self.fifo.lost, []
        self.lost += lost
        self.forget(lost)
        self._count_lost(lost)
        for item in lost:
            item.payload = None
            if item.question is not None:
                out.append(Bury(*item.question, item.attempts, "", item.lost))

    def _count_lost(self, lost: list[Item]) -> None:
        self.tally.num_lost += len(lost)
        self.tally.lost_bytes += sum(item.size_bytes for item in lost)

    def _tell_of_lost(self, out: list[Instruction]) -> None:
        """Refuse the first getter in line: nobody else will hear of these items."""
        sharding = self.sharding
        getter = next(iter(self.getters), None) or next(iter(sharding.getters if sharding else ()))
        self.withdraw_get(getter)
        out.append(self._told_of_lost(getter))

    def _told_of_lost(self, getter: Getter) -> Refuse:
        counts = Counter(item.lost for item in self.lost)
        self.lost = []
        state = "; ".join(f"{counted(count, 'item')} {why}" for why, count in counts.items())
        return Refuse(getter.client.name, getter.ticket, Reason.LOST, state)

    def flush(self) -> None:
        """Let batches take what came until now, whether it reaches their weight or not."""
        self.flushed = self.fifo.num_entered

    @staticmethod
    def why_over(closed: bool) -> Reason:
        """Why nothing can be put any more."""
        return Reason.CLOSED if closed else Reason.ENDED

    def begin_admission(self) -> Admission:
        """Give slots from now on.

        Raises:
            ValueError: what is here has none, or somebody waits for a group.
        """
        if self.admission is None:
            if any(isinstance(getter.wanted, WantedGroup) for getter in (*self.getters, *self.parked)):
                message = (
                    f"somebody waits for a group of queue {self.name!r}: collect groups in another queue"
                )
                raise ValueError(message)
            if self.fifo.num_items or self.putters or self.reserved or self.num_leases or self.delivering:
                message = f"queue {self.name!r} holds what was put without a slot: {self.describe()}"
                raise ValueError(message)
            self.admission, fifo = Admission(self.tally.leases.next_number), LanedFifo()
            fifo.num_entered, self.fifo = self.fifo.num_entered, fifo
        return self.admission

    def _give_slots(self, admission: Admission, out: list[Instruction]) -> None:
        room = None
        if self.maxsize:  # a slot has room for its item
            room = self.maxsize - self.fifo.num_items - self.leased_items - len(admission.making)
        admission.serve(room, self.tally.now, out)

    def refuse_puts(self, out: list[Instruction]) -> None:
        """Fail every unfinished put: the channel is closed."""
        waiting = [putter for stream in self.streams.values() for putter in stream]
        for putter in waiting:
            self._unreserve(putter)
        for putter in (*waiting, *self.putters):
            del putter.client.operations[putter.ticket]
            self._unuse(putter)
            out.append(Refuse(putter.client.name, putter.ticket, Reason.CLOSED, self.describe()))
        self.putters.clear()
        self.streams.clear()

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
        bound = f" of {self.maxsize}" if self.maxsize else ""
        parts = [f"{depth.num_items}{bound} items of weight {depth.weight:g}"]
        if depth.groups:
            largest, most = max(depth.groups, key=_count_of)
            parts[0] += f" in {len(depth.groups)} groups (the largest, {largest!r}, has {most})"
        if depth.num_getters:
            parts.append(f"{depth.num_getters} getters waiting")
        if depth.num_putters:
            parts.append(f"{depth.num_putters} puts waiting")
        if depth.num_delivering:
            parts.append(f"{depth.num_delivering} in delivery")
        if depth.num_leased:
            parts.append(f"{depth.num_leased} on lease")
        if self.parked:
            parts.append(f"{len(self.parked)} getters that have as many on lease as they may")
        if depth.num_dead:
            parts.append(f"{depth.num_dead} dead letters")
        parts += [f"{tap.name!r} is full" for tap in self.full_taps(1)]
        parts += [each.describe() for each in (self.sharding, self.admission) if each is not None]
        if 0 < self.tally.max_bytes < 2 * self.tally.held_bytes:
            parts.append(
                f"{self.tally.held_bytes} of {self.tally.max_bytes} bytes in all queues of the channel"
            )
        return ", ".join(parts)

    def _describe_head(self) -> str:
        head = self.fifo.head()
        if head is None:
            return "nothing"
        return f"an item of weight {rounded(head.weight):g} and {head.size_bytes} bytes"

    def _enter(self, putter: Putter, out: list[Instruction]) -> None:
        """Give a put room: push it, or let it wait for its bytes or those of its client's earlier puts."""
        if putter.complete and putter.client not in self.streams:
            putter.client.operations.pop(putter.ticket, None)
            self.push(putter.client, putter.ticket, putter.item, out)
            return
        putter.seen_by = self.taps
        self.load_put(putter, has_room=True)
        if not putter.complete:
            out.append(Grant(putter.client.name, putter.ticket))

    def load_put(self, putter: Putter, *, has_room: bool) -> None:
        """Have a put that is not over: one with room, or the last in line."""
        self._remember(putter)
        putter.has_room = has_room
        if has_room:
            self.reserve(putter, 1, putter.item.size_bytes)
            self.streams.setdefault(putter.client, deque()).append(putter)
        else:
            self.putters[putter] = None

    def reserve(self, putter: Putter, num_items: int, size_bytes: int) -> None:
        """So much more is on its way here."""
        self.reserved += num_items
        self.reserved_bytes += size_bytes
        for tap in putter.seen_by:
            tap.reserved += num_items
            tap.reserved_bytes += size_bytes

    def _unreserve(self, putter: Putter) -> None:
        self.reserve(putter, -1, -putter.item.size_bytes)

    def may_push(self, client: Client, size_bytes: int) -> bool:
        """Whether an item of this size, all of which is here, may enter now: nothing stands before it."""
        return not self.putters and client not in self.streams and self.has_room(size_bytes)

    def push(self, client: Client, ticket: int, item: Item, out: list[Instruction]) -> None:
        """The item of a put enters."""
        if self.admission is not None:
            self.admission.enter(item)
        self.fifo.push(item)
        self._note_entered(item)
        if self.taps:
            for tap in self.taps:
                tap.see(item)
            self.touch_taps()
        out.append(_accept((client.name, ticket)))

    def _note_entered(self, item: Item) -> None:
        tally = self.tally
        item.since = tally.now
        tally.num_items += 1
        tally.size_bytes += item.size_bytes
        for watch in tally.watches:
            watch.note(self.name, item)

    def _deliver_one(self, getter: Getter, item: Item, out: list[Instruction]) -> None:
        """Give an item to a get that takes one."""
        getter.items = items = [item]
        self.delivering += 1
        self.on_the_way += 1
        out.append(_deliver((getter.client.name, getter.ticket, items, True, *_NOTHING, self.name)))

    def _unuse(self, putter: Putter) -> None:
        if self.admission is not None:
            self.admission.unuse(putter.item.slot)

    def _remember(self, operation: Getter | Putter) -> None:
        operation.client.operations[operation.ticket] = operation

    def _admit(self, out: list[Instruction]) -> bool:
        """Let waiting puts enter while there is room; say whether any item was pushed."""
        before = self.fifo.num_items
        while self.putters and self.has_room(next(iter(self.putters)).item.size_bytes):
            putter, _ = self.putters.popitem(last=False)
            self._enter(putter, out)
        return self.fifo.num_items > before

    def _serve(self, closed: bool, out: list[Instruction]) -> None:
        """Serve the line of getters from its head while it can be."""
        getters = self.getters
        while getters:
            getter = next(iter(getters))
            if getter.terms is not None and self.tally.leases.is_at_bound(getter.client):
                self._park(getter)
                continue
            items = self._match(getter, closed)
            if items is None:
                reason = self._hopeless(getter, closed)
                if reason is None:
                    self._let_ripen(getter, out)
                    break
                self.withdraw_get(getter)
                state = self._describe_head() if reason is Reason.OVERSIZE else self.describe()
                out.append(Refuse(getter.client.name, getter.ticket, reason, state))
                continue
            del getters[getter]
            if self.admission is not None:
                self.admission.give(items)
            if getter.terms is not None:
                self.tally.leases.begin(getter, getter.terms, items, out)
                continue
            getter.items = items
            self.delivering += 1
            self.on_the_way += 1
            about = getter.client.name, getter.ticket, items, getter.complete
            out.append(Deliver(*about, None, None, getter.group, None, self.name))

    def _park(self, getter: Getter) -> None:
        """Pass over a getter whose client has enough on lease; the others do not wait for it."""
        del self.getters[getter]
        self.parked[getter] = getter.client.parked[getter] = None

    def _refuse_parked(self, closed: bool, out: list[Instruction]) -> None:
        """Tell those who were passed over that nothing more comes."""
        if not self._is_last(closed) or self.fifo.num_items or self._may_come_back():
            return
        for getter in list(self.parked):
            self.withdraw_get(getter)
            out.append(Refuse(getter.client.name, getter.ticket, self.why_over(closed), self.describe()))

    def _serve_shards(self, sharding: Sharding[Getter], closed: bool, out: list[Instruction]) -> None:
        """Hand parts out, and cut steps while somebody waits for one."""
        while True:
            for getter, part in sharding.hand_out():
                getter.items, getter.part, getter.complete = part.items, part, part.complete
                about = getter.client.name, getter.ticket, part.items, part.complete
                out.append(Deliver(*about, part, queue=self.name))
            if not sharding.getters or not self._cut(sharding, closed):
                break
        reason = self._why_no_part(sharding, closed)
        for getter in sharding.getters if reason is not None else ():
            self.withdraw_get(getter)
            out.append(Refuse(getter.client.name, getter.ticket, reason or Reason.CLOSED, self.describe()))

    def _cut(self, sharding: Sharding[Getter], closed: bool) -> bool:
        """Cut the next step if it is there, or if this is all that comes."""
        if not self.fifo.num_items or not sharding.may_cut:
            return False
        batch = self._take_batch(sharding.wanted, closed, waited=False)
        if batch is None:
            return False
        sharding.cut(*batch)
        if self.admission is not None:
            # A step of all ranks is one consumption: a part never comes back to the queue.
            self.admission.give(batch[0])
            self.admission.settle(batch[0])
        return True

    def _why_no_part(self, sharding: Sharding[Getter], closed: bool) -> Reason | None:
        if self._is_last(closed):
            return None if self._may_come_back() or self.fifo.num_items else self.why_over(closed)
        return Reason.IMPOSSIBLE if sharding.may_cut and self._is_stuck() else None

    def _let_ripen(self, getter: Getter, out: list[Instruction]) -> None:
        """Let the time run that a batch waits for more than the least of it."""
        if not isinstance(getter.wanted, Wanted) or getter.ripens:
            return
        limits = getter.wanted.limits
        if limits.max_wait_s is not None and self.fifo.num_items >= limits.min_items:
            getter.ripens = True
            out.append(Ripen(getter.client.name, getter.ticket, limits.max_wait_s))

    def _match(self, getter: Getter, closed: bool) -> list[Item] | None:
        """Take what the first getter in line asked for; None when it is not all there."""
        if not self.fifo.num_items:
            return None
        if getter.wanted is None:
            is_free = self.admission is None or self._num_free(self.admission) > 0
            return [self.fifo.take()] if is_free else None
        if isinstance(getter.wanted, WantedGroup):
            return self._match_group(getter, getter.wanted.size, closed)
        return self._match_batch(getter, getter.wanted, closed)

    def _match_batch(self, getter: Getter, wanted: Wanted, closed: bool) -> list[Item] | None:
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

    def _match_group(self, getter: Getter, size: int, closed: bool) -> list[Item] | None:
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

    def _num_free(self, admission: Admission) -> int:
        """How many of the first items may be taken now."""
        return admission.num_free(self.fifo) if isinstance(self.fifo, LanedFifo) else 0

    def _is_held_back(self, admission: Admission) -> bool:
        """Whether what is here waits for what is not."""
        return self._num_free(admission) < min(self.fifo.num_items, admission.num_left)

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
        # For a subscription that is full others make room.
        return not self._has_own_room(next(iter(self.putters)).item.size_bytes)

    def _is_last(self, closed: bool) -> bool:
        """Whether nothing will be put any more."""
        return (closed or self.ended) and not (self.putters or self.reserved)

    def _may_come_back(self) -> bool:
        """Whether items that were taken may come back."""
        return self.on_the_way > 0 or self.num_leases > 0

    def _is_flushed(self) -> bool:
        return self.flushed > 0 and self.fifo.oldest() < self.flushed

    def _hopeless(self, getter: Getter, closed: bool) -> Reason | None:
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


def _number_of(getter: Getter) -> int:
    return getter.number


def _count_of(group: tuple[GroupName, int]) -> int:
    return group[1]
