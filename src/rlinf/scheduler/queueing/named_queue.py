"""One queue of a channel: its items, the line of getters, the line of puts, and the bound between them.

Rules:

- Getters are served in order of arrival, `get` and `get_batch` in one line; a waiting getter holds nothing.
- Puts enter in order of arrival. Those that find no room wait in line.
- A put may announce its item and send the bytes once it has room (a *reservation*). Later puts of the same
  client enter behind it, other clients' pass it: a slow producer holds up nobody else.
- A queue that has ended takes no further put. Those that came before still enter; then a batch gets what is left,
  and who asks after that is told that the queue has ended.
- A flush says that a batch need not wait for more than what came before it.
- Items in delivery (taken, not yet confirmed) do not count against the bound. Otherwise every put to a full
  queue would wait for a consumer's confirmation. Giving back never waits: it may exceed the bound, and
  no put enters until the queue is below it again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from rlinf.scheduler.queueing.fifo import WeightedFifo
from rlinf.scheduler.queueing.instructions import Accept, Deliver, Grant, Instruction, Reason, Refuse, Ripen
from rlinf.scheduler.queueing.item import Item
from rlinf.scheduler.queueing.sharding import Part, Sharding, ShardPlan
from rlinf.scheduler.queueing.wanted import Wanted
from rlinf.scheduler.queueing.weights import rounded

# A string, an int, or a tuple of such names.
QueueName: TypeAlias = str | int | tuple["QueueName", ...]


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
        num_delivering: gets and batches whose items were sent and not yet confirmed.
    """

    name: QueueName
    num_items: int
    weight: int | float
    size_bytes: int
    num_getters: int
    num_putters: int
    num_delivering: int


class Client:
    """One process that uses the channel, and its unfinished operations by ticket."""

    __slots__ = ("name", "operations")

    def __init__(self, name: str) -> None:
        self.name = name
        self.operations: dict[int, Getter | Putter] = {}


class Getter:
    """A `get` (wanted None) or `get_batch`: waiting while `items` is None, in delivery after."""

    __slots__ = (
        "arrived",
        "client",
        "complete",
        "is_shard",
        "items",
        "part",
        "queue",
        "ripens",
        "ticket",
        "waited",
        "wanted",
    )

    def __init__(self, client: Client, ticket: int, queue: NamedQueue, wanted: Wanted | None) -> None:
        self.client = client
        self.ticket = ticket
        self.queue = queue
        self.wanted = wanted
        self.ripens = False  # the least of a batch is there: its `max_wait_s` has begun
        self.waited = False  # and is over
        self.is_shard = False  # it asks for a shard's part, and is not in the line
        self.part: Part | None = None
        self.items: list[Item] | None = None
        self.complete = True  # its items are what was asked for, and not what is left
        self.arrived = False  # the items are in the client's process; they may still come back


class Putter:
    """A put that waits for room, or that has room and waits for its bytes or for an earlier put's bytes."""

    __slots__ = ("client", "complete", "has_room", "item", "queue", "ticket")

    def __init__(self, client: Client, ticket: int, queue: NamedQueue, item: Item, *, complete: bool) -> None:
        self.client = client
        self.ticket = ticket
        self.queue = queue
        self.item = item
        self.complete = complete  # the payload is here
        self.has_room = False


class Tally:
    """What all queues of a channel accepted so far, and what they hold together.

    Args:
        max_bytes: how many bytes they may hold; 0 is unbounded.
    """

    __slots__ = ("crowded", "held_bytes", "max_bytes", "num_items", "size_bytes")

    def __init__(self, max_bytes: int = 0) -> None:
        self.num_items = 0
        self.size_bytes = 0
        self.max_bytes = max_bytes
        self.held_bytes = 0
        # Queues with puts that may wait for what other queues hold.
        self.crowded: dict[NamedQueue, None] = {}


class NamedQueue:
    """The state of one queue. Every method appends what is to be done to `out`."""

    __slots__ = (
        "counted_bytes",
        "delivering",
        "ended",
        "fifo",
        "flushed",
        "getters",
        "max_bytes",
        "maxsize",
        "name",
        "on_the_way",
        "putters",
        "reserved",
        "reserved_bytes",
        "sharding",
        "streams",
        "tally",
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

    def has_room(self, size_bytes: int) -> bool:
        """Whether an item of this size may enter; into an empty queue any may, unless the channel holds too much."""
        num_held = self.fifo.num_items + self.reserved
        if 0 < self.maxsize <= num_held:
            return False
        own_bytes = self.fifo.size_bytes + self.reserved_bytes
        if self.max_bytes and num_held and own_bytes + size_bytes > self.max_bytes:
            return False
        return not self.tally.max_bytes or self._has_room_in_channel(num_held, own_bytes, size_bytes)

    def _has_room_in_channel(self, num_held: int, own_bytes: int, size_bytes: int) -> bool:
        tally = self.tally
        others_bytes = tally.held_bytes - self.counted_bytes
        if self.awaited or not others_bytes:
            # What somebody waits for does not wait for what nobody takes.
            return not num_held or own_bytes + size_bytes <= tally.max_bytes
        return others_bytes + own_bytes + size_bytes <= tally.max_bytes

    def _count(self) -> None:
        """Tell the channel what this queue holds now, and whether puts wait here."""
        held_bytes = self.fifo.size_bytes + self.reserved_bytes
        self.tally.held_bytes += held_bytes - self.counted_bytes
        self.counted_bytes = held_bytes
        if self.putters:
            self.tally.crowded[self] = None
        elif self.tally.crowded:
            self.tally.crowded.pop(self, None)

    @property
    def full(self) -> bool:
        """No room for another item, however small."""
        return not self.has_room(1)

    @property
    def awaited(self) -> bool:
        """Somebody waits for items."""
        return bool(self.getters) or (self.sharding is not None and bool(self.sharding.getters))

    @property
    def idle(self) -> bool:
        """Nothing is held, nobody waits, nothing can come back."""
        if self.delivering or self.fifo.num_items or self.getters or self.putters or self.reserved:
            return False
        # One that is sharded has numbered its steps.
        return self.sharding is None or (self.ended and self.sharding.idle)

    def put(self, putter: Putter, out: list[Instruction]) -> None:
        """Let a put enter, or stand in line."""
        if self.putters or not self.has_room(putter.item.size_bytes):
            self._remember(putter)
            self.putters[putter] = None
        else:
            self._enter(putter, out)
        if self.tally.max_bytes:
            self._count()

    def fill(self, putter: Putter, out: list[Instruction]) -> None:
        """The bytes of a reservation are here: it enters, and complete puts right behind it too."""
        putter.complete = True
        stream = self.streams[putter.client]
        while stream and stream[0].complete:
            entering = stream.popleft()
            self._unreserve(entering)
            self._push(entering, out)
        if not stream:
            del self.streams[putter.client]

    def withdraw_put(self, putter: Putter) -> None:
        """Forget an unfinished put; its room is free again."""
        del putter.client.operations[putter.ticket]
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
        self._remember(getter)
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

    def withdraw_get(self, getter: Getter) -> None:
        """Forget a waiting getter."""
        del getter.client.operations[getter.ticket]
        if self.sharding is not None and getter.is_shard:
            self.sharding.forget(getter)
        else:
            del self.getters[getter]

    def arrive(self, getter: Getter) -> None:
        """The delivered items are in the client's process, where nobody has taken them yet."""
        if not getter.arrived and not getter.is_shard:
            self.on_the_way -= 1
        getter.arrived = True

    def confirm(self, getter: Getter) -> None:
        """The delivered items were taken: they are the consumer's now."""
        self.arrive(getter)
        del getter.client.operations[getter.ticket]
        if not getter.is_shard:
            self.delivering -= 1

    def give_back(self, getters: Iterable[Getter]) -> None:
        """Put items in delivery back to the head, in their original order."""
        returned: list[Item] = []
        for getter in getters:
            self.confirm(getter)
            # A part is kept for its shard anyhow.
            if not getter.is_shard:
                returned.extend(getter.items or ())
        self.fifo.restore(returned)

    def settle(self, closed: bool, out: list[Instruction]) -> None:
        """Serve getters and let puts enter until neither line can move."""
        self._serve(closed, out)
        if self.sharding is not None:
            self._serve_shards(self.sharding, closed, out)
        while self.putters and self._admit(out):
            self._serve(closed, out)
            if self.sharding is not None:
                self._serve_shards(self.sharding, closed, out)
        if self.tally.max_bytes:
            self._count()

    def flush(self) -> None:
        """Let batches take what came until now, whether it reaches their weight or not."""
        self.flushed = self.fifo.num_entered

    @staticmethod
    def why_over(closed: bool) -> Reason:
        """Why nothing can be put any more."""
        return Reason.CLOSED if closed else Reason.ENDED

    def refuse_puts(self, out: list[Instruction]) -> None:
        """Fail every unfinished put: the channel is closed."""
        waiting = [putter for stream in self.streams.values() for putter in stream]
        for putter in (*waiting, *self.putters):
            del putter.client.operations[putter.ticket]
            out.append(Refuse(putter.client.name, putter.ticket, Reason.CLOSED, self.describe()))
        self.putters.clear()
        self.streams.clear()
        self.reserved = self.reserved_bytes = 0

    def depth(self) -> QueueDepth:
        """Return what is here, as data."""
        return QueueDepth(
            name=self.name,
            num_items=len(self.fifo),
            weight=rounded(self.fifo.weight),
            size_bytes=self.fifo.size_bytes,
            num_getters=len(self.getters) + (len(self.sharding.getters) if self.sharding is not None else 0),
            num_putters=len(self.putters) + self.reserved,
            num_delivering=self.delivering,
        )

    def describe(self) -> str:
        """Return what is here in a phrase, for error texts."""
        depth = self.depth()
        bound = f" of {self.maxsize}" if self.maxsize else ""
        parts = [f"{depth.num_items}{bound} items of weight {depth.weight:g}"]
        if depth.num_getters:
            parts.append(f"{depth.num_getters} getters waiting")
        if depth.num_putters:
            parts.append(f"{depth.num_putters} puts waiting")
        if depth.num_delivering:
            parts.append(f"{depth.num_delivering} in delivery")
        if self.sharding is not None:
            parts.append(self.sharding.describe())
        if 2 * self.tally.held_bytes > self.tally.max_bytes:
            parts.append(
                f"{self.tally.held_bytes} of {self.tally.max_bytes} bytes in all queues of the channel"
            )
        return ", ".join(parts)

    def _enter(self, putter: Putter, out: list[Instruction]) -> None:
        """Give a put room: push it, or let it wait for its bytes or those of its client's earlier puts."""
        if putter.complete and putter.client not in self.streams:
            self._push(putter, out)
            return
        self._remember(putter)
        putter.has_room = True
        self.reserved += 1
        self.reserved_bytes += putter.item.size_bytes
        self.streams.setdefault(putter.client, deque()).append(putter)
        if not putter.complete:
            out.append(Grant(putter.client.name, putter.ticket))

    def _unreserve(self, putter: Putter) -> None:
        self.reserved -= 1
        self.reserved_bytes -= putter.item.size_bytes

    def _push(self, putter: Putter, out: list[Instruction]) -> None:
        putter.client.operations.pop(putter.ticket, None)
        self.fifo.push(putter.item)
        self.tally.num_items += 1
        self.tally.size_bytes += putter.item.size_bytes
        out.append(Accept(putter.client.name, putter.ticket))

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
        while self.getters:
            getter = next(iter(self.getters))
            items = self._match(getter, closed)
            if items is None:
                reason = self._hopeless(getter, closed)
                if reason is None:
                    self._let_ripen(getter, out)
                    break
                self.withdraw_get(getter)
                out.append(Refuse(getter.client.name, getter.ticket, reason, self.describe()))
                continue
            del self.getters[getter]
            getter.items = items
            self.delivering += 1
            self.on_the_way += 1
            out.append(Deliver(getter.client.name, getter.ticket, items, getter.complete))

    def _serve_shards(self, sharding: Sharding[Getter], closed: bool, out: list[Instruction]) -> None:
        """Hand parts out, and cut steps while somebody waits for one."""
        while True:
            for getter, part in sharding.hand_out():
                getter.items, getter.part, getter.complete = part.items, part, part.complete
                out.append(Deliver(getter.client.name, getter.ticket, part.items, part.complete, part))
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
        ready = sharding.wanted.is_ready(self.fifo, waited=False)
        if not (ready or self._is_last(closed) or self._is_flushed()):
            return False
        sharding.cut(*sharding.wanted.take(self.fifo))
        return True

    def _why_no_part(self, sharding: Sharding[Getter], closed: bool) -> Reason | None:
        if self._is_last(closed):
            return None if self.on_the_way or self.fifo.num_items else self.why_over(closed)
        return Reason.IMPOSSIBLE if sharding.may_cut and self._is_stuck() else None

    def _let_ripen(self, getter: Getter, out: list[Instruction]) -> None:
        """Let the time run that a batch waits for more than the least of it."""
        if getter.wanted is None or getter.ripens:
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
            return [self.fifo.take()]
        return self._match_batch(getter, getter.wanted, closed)

    def _match_batch(self, getter: Getter, wanted: Wanted, closed: bool) -> list[Item] | None:
        waited = getter.waited or (wanted.limits.max_wait_s is not None and self._is_stuck())
        if not (wanted.is_ready(self.fifo, waited=waited) or self._is_last(closed) or self._is_flushed()):
            return None
        items, getter.complete = wanted.take(self.fifo)
        return items

    def _is_stuck(self) -> bool:
        """Whether nothing can enter before something is taken.

        Only the items at hand count. Waiting puts cannot enter before the first getter is served, and items in
        delivery come back only when their consumer is lost.
        """
        if 0 < self.maxsize <= len(self.fifo) or 0 < self.max_bytes <= self.fifo.size_bytes:
            return True
        if not self.putters or self.reserved:
            return False
        return not self.has_room(next(iter(self.putters)).item.size_bytes)

    def _is_last(self, closed: bool) -> bool:
        """Whether nothing will be put any more."""
        return (closed or self.ended) and not (self.putters or self.reserved)

    def _is_flushed(self) -> bool:
        return self.flushed > 0 and self.fifo.oldest() < self.flushed

    def _hopeless(self, getter: Getter, closed: bool) -> Reason | None:
        """Return why the first getter in line can never be served; None while it may.

        A closed channel, and an ended queue, waits for the items on their way: each arrives or comes back.
        """
        if self._is_last(closed):
            return None if self.on_the_way else self.why_over(closed)
        return Reason.IMPOSSIBLE if getter.wanted is not None and self._is_stuck() else None
