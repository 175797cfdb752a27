"""Items on lease: a consumer has them until it says what became of them; until then the channel keeps them.

- A lease is over when its consumer has acknowledged or given back every item of it, when its time is over, or when its
  consumer is lost. What was not acknowledged goes to the head of its queue, at its old place.
- Each lease has a generation, a number that no later one has again. Whoever settles something names it, so nobody can
  acknowledge what has been given to another.
- An item is given out so many times; then it is a dead letter. A delivery that nobody wanted any more does not count.
- Items on lease, and those that come back after a delay, count against the bounds of their queue, and its end waits
  for them.
- Of a group's items a sticky consumer that had one of them last gets the next ones while it waits for any; nothing
  waits for it. What has no such consumer goes to the sticky one that has least on lease.
- A consumer that has as many items on lease as it may is skipped in each line, and keeps its place there.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, ClassVar, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from rlinf_scheduler.queueing.contents import Contents
from rlinf_scheduler.queueing.homes import Homes
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import (
    Deliver,
    Get,
    Instruction,
    Reason,
    Refuse,
)
from rlinf_scheduler.queueing.operations import Getter
from rlinf_scheduler.queueing.policy import Handler, OperationOver, Policy
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.saved_items import LoadedItems, SavedItems
from rlinf_scheduler.wording import counted

# So many leases are remembered that ended without their consumers' doing: why.
NUM_REMEMBERED = 1000
RETRACTED = 0  # the number of a question whose answer nobody wants
EXPIRED = "it was not kept alive for {:g} s"
LOST = "its consumer was lost"


class Settle(Struct, tag=10, array_like=True):
    """Items of a lease (None: all that are left) are done with, or go back after a while -> `Done`."""

    generation: int
    places: list[int] | None
    done: bool
    delay_s: float = 0
    reason: str = ""


class Extend(Struct, tag=11, array_like=True):
    """A lease lasts so long from now (None: as long as in the beginning) -> `Done`."""

    generation: int
    for_s: float | None = None


class Lapse(Struct):
    """The time of a lease, or of a delay, is over."""

    generation: int


class LeaseTerms(Struct, frozen=True, array_like=True, tag="lease"):
    """Items on lease that somebody wants: for how many seconds unless it is extended, and who.

    Attributes:
        sticky: items of a group that this consumer had last come first, and go to it while it waits.
    """

    ttl_s: float
    consumer: str = ""
    sticky: bool = False


class OnLease(NamedTuple):
    """Under which generation items are on lease, and how often each was given out, this time included."""

    generation: int
    attempts: list[int]

    def told(self, _items: list[Item]) -> tuple[Any, ...]:
        """Return it as its getter is told."""
        return self


class StartClock(NamedTuple):
    """Apply `Lapse` after so many seconds. Of two for one generation the later time counts.

    It is of the lease that came with a ticket, or of items that come back after a delay, which are no client's.
    """

    client: str
    ticket: int
    generation: int
    after_s: float


class StopClock(NamedTuple):
    """Do not apply `Lapse` any more."""

    client: str
    ticket: int
    generation: int


class LeaseGetter(Getter, tag="lease"):
    """A get of items on lease.

    Attributes:
        terms: of the lease that it asks for.
        generation: of the one that it has; 0 for none yet.
    """

    terms: LeaseTerms = LeaseTerms(0.0)
    generation: int = 0

    counts: ClassVar[bool] = False
    is_confirmed: ClassVar[bool] = False
    kinds: ClassVar[tuple[str, str]] = ("lease", "lease of a batch")

    @property
    def _leases(self) -> Leases:
        leases: Leases = self.queue.tally.lender
        return leases

    @property
    def may_have_more(self) -> bool:
        """Whether its client has fewer items on lease than it may."""
        leases = self._leases
        return not leases.max_leased or not leases.is_at_bound(self.client.name)

    def describe_skipped(self) -> str:
        """Return why it is skipped, in a phrase; empty where it is not."""
        return ", which has as many on lease as it may" if self in self.queue.skipped else ""

    def line_up(self) -> None:
        """Stand in line."""
        self.queue.getters[self] = None
        leases = self._leases
        if leases.max_leased:
            leases.consumer(self.client.name).line_up(self)

    def leave(self) -> None:
        """Wait no more."""
        leases = self._leases
        if not leases.max_leased:
            del self.queue.getters[self]
            return
        consumer = leases.consumer(self.client.name)
        if self in consumer.skipped:
            del self.queue.skipped[self], consumer.skipped[self]
        else:
            del self.queue.getters[self]
            consumer.leave(self)

    def stand_in(self) -> Getter:
        """Return who is served at its turn: of sticky ones the next item's home, else who has least on lease."""
        leases, queue, head = self._leases, self.queue, self.queue.fifo.head()
        if head is None or not self.is_sticky:
            return self
        waiting: list[LeaseGetter] = [each for each in queue.getters if each.is_sticky and each.may_have_more]
        home = leases.homes.of(queue, head)
        at_home = (each for each in waiting if each.terms.consumer == home)
        least = min(waiting, key=lambda each: leases.consumer(each.client.name).num_items, default=self)
        return next(at_home, least)

    @property
    def is_sticky(self) -> bool:
        """Whether another one that is may be served at its turn."""
        return self.terms.sticky and self.wanted is None

    def take_one(self) -> Item:
        """Take the next item; a sticky one takes the first of its consumer's groups, unless others wait for long."""
        found = self._leases.homes.take(self.queue, self.terms.consumer) if self.is_sticky else None
        item: Item = self.queue.fifo.take() if found is None else found
        return item

    def skip(self) -> None:
        """Let others be served, who do not wait for it."""
        self.leave()
        consumer = self._leases.consumer(self.client.name)
        self.queue.skipped[self] = consumer.skipped[self] = None

    def give(self, items: list[Item], out: list[Instruction]) -> None:
        """Begin a lease of items."""
        self._leases.begin(self, items, out)

    def take_back(self, out: list[Instruction]) -> None:
        """Give back what nobody wanted any more when it came: this was no attempt."""
        self._leases.take_back(self, out)

    def lose(self, taken: bool, out: list[Instruction]) -> None:
        """Give back what its client had when it was lost."""
        self._leases.give_up(self, out)

    def delivery(self, items: list[Item]) -> Deliver:
        """Return the instruction that sends items."""
        on_lease = OnLease(self.generation, [item.attempts for item in items])
        about = self.client.name, self.ticket, items, self.complete
        return Deliver(*about, on_lease, self.group, self.queue.name)


class LeaseState(Struct, eq=False, array_like=True):
    """Items that one consumer has, or (getter None) that come back after a delay.

    Attributes:
        queue: where the items came from; in a snapshot nothing, for it stands at its queue.
        items: those that are not settled, by their places in the delivery.
        since: when it began, on the clock of the state's shell.
        getter: the operation that asked for them; in a snapshot its client's name and its ticket.
    """

    generation: int
    queue: Any
    items: dict[int, Item]
    since: float = 0.0
    getter: Any = None
    terms: LeaseTerms = LeaseTerms(0.0)

    @property
    def owner(self) -> tuple[str, int]:
        """The client that has the items, and the ticket of its operation."""
        return ("", 0) if self.getter is None else (self.getter.client.name, self.getter.ticket)

    def describe(self) -> str:
        """Return it in a phrase."""
        is_asked = any(item.question is not None for item in self.items.values())
        count = counted(len(self.items), "question" if is_asked else "item")
        return f"{count}, to come back after a delay" if self.getter is None else f"lease of {count}"


class Consumer:
    """What a client has on lease, and where it waits for more.

    Attributes:
        num_items: what it has.
        lines: how many of its getters stand in line, by queue.
        skipped: those that wait until it has fewer items.
    """

    __slots__ = ("lines", "num_items", "skipped")

    def __init__(self) -> None:
        self.num_items = 0
        self.lines: dict[Queue, int] = {}
        self.skipped: dict[LeaseGetter, None] = {}

    def line_up(self, getter: LeaseGetter) -> None:
        """Count a getter that stands in line."""
        self.lines[getter.queue] = self.lines.get(getter.queue, 0) + 1

    def leave(self, getter: LeaseGetter) -> None:
        """Count a getter as gone from its line."""
        left = self.lines.pop(getter.queue) - 1
        if left:
            self.lines[getter.queue] = left


class Leases(Policy):
    """All leases of one channel.

    Attributes:
        max_attempts: how often an item is given out; 0 for any number.
        max_leased: how many items a client may have on lease before its further leases wait; 0 for any number. One
            that has fewer may come to more by a batch.
        homes: which consumer had an item of a group last, where consumers are sticky.
    """

    def __init__(self, queues: QueueSet, bounds: Any) -> None:
        super().__init__(queues, bounds)
        queues.tally.lender = self
        self.max_attempts: int = bounds.get("max_attempts", 0)
        self.max_leased: int = bounds.get("max_leased", 0)
        self._open: dict[int, LeaseState] = {}
        self._consumers: dict[str, Consumer] = {}
        self._why_over: OrderedDict[int, str] = OrderedDict()
        self.homes = Homes()

    # -- what consumers say ----------------------------------------------------------------------

    def handlers(self) -> dict[type, Handler]:
        """Return what handles leases."""
        return {
            LeaseTerms: self.get,
            Settle: self.settle,
            Extend: self.extend,
            Lapse: self.lapse,
        }

    def get(self, get: Get[LeaseTerms], client: str) -> list[Instruction]:
        """Deliver one item, or a batch or a group, on lease, now or later, or refuse it.

        Raises:
            ValueError: the time of the lease is not a finite number above 0, or what is asked for makes no sense.
        """
        terms: Any = get.grant
        if not 0 < terms.ttl_s < math.inf:
            message = f"a lease lasts a number of seconds above 0, not {terms.ttl_s!r}"
            raise ValueError(message)
        return self._queues.get(get, client, partial(LeaseGetter, terms=terms))

    def settle(self, settle: Settle, client: str) -> list[Instruction]:
        """Take it that a consumer is done with items of its lease, or have them come back after a while.

        Raises:
            OperationOver: it has no such lease.
        """
        lease, out = self._find(client, settle.generation), list[Instruction]()
        if settle.done:
            self._acknowledge(lease, settle.places, out)
        else:
            self._give_back(lease, settle.places, out, reason=settle.reason, delay_s=settle.delay_s)
        return self._queues.settle((lease.queue,), out)

    def extend(self, extend: Extend, client: str) -> list[Instruction]:
        """Let a client's lease last so long from now, by default as in the beginning.

        Raises:
            OperationOver: it has no such lease.
        """
        lease = self._find(client, extend.generation)
        ttl_s = lease.terms.ttl_s if extend.for_s is None else extend.for_s
        return [StartClock(*lease.owner, lease.generation, ttl_s)]

    def lapse(self, lapse: Lapse, _client: str = "") -> list[Instruction]:
        """Give back what is still there of a lease, or of what was delayed."""
        lease, out = self._open.get(lapse.generation), list[Instruction]()
        if lease is None:
            return out
        self._lapse(lease, out)
        return self._queues.settle((lease.queue,), out)

    def _find(self, client: str, generation: int) -> LeaseState:
        lease = self.find(client, generation)
        if lease is None:
            raise OperationOver(self.why_over(generation))
        return lease

    def first_over(self, client: str, done: Iterable[int]) -> tuple[int, str] | None:
        """Return the first of these leases that a client has no more, and why; None if it has all."""
        over = next((each for each in done if self.find(client, each) is None), None)
        return None if over is None else (over, self.why_over(over))

    def find(self, client: str, generation: int) -> LeaseState | None:
        """Return a lease that a client has; None if it is over, or another's."""
        lease = self._open.get(generation)
        mine = lease is not None and lease.getter is not None and lease.getter.client.name == client
        return lease if mine else None

    def retract(self, question: tuple[str, int]) -> None:
        """Let a question that is given out not come back: nobody waits for its answer."""
        for item in (item for lease in self._open.values() for item in lease.items.values()):
            if item.question == question:
                item.question = question[0], RETRACTED

    def why_over(self, generation: int) -> str:
        """Return why a lease is over, in a phrase, as far as it is remembered."""
        return self._why_over.get(generation, "it was settled, or its consumer was lost")

    def all(self) -> Iterable[LeaseState]:
        """Return everything that is given out, or comes back after a delay."""
        return self._open.values()

    # -- what getters ask for --------------------------------------------------------------------

    def is_at_bound(self, client: str) -> bool:
        """Return whether a client has as many items on lease as it may."""
        return 0 < self.max_leased <= self.consumer(client).num_items

    def consumer(self, client: str) -> Consumer:
        """Return what a client has."""
        consumer = self._consumers.get(client)
        if consumer is None:
            consumer = self._consumers[client] = Consumer()
        return consumer

    def begin(self, getter: LeaseGetter, items: list[Item], out: list[Instruction]) -> None:
        """Give items to a getter."""
        for item in items:
            item.attempts += 1
        lease = self._add(getter.queue, items)
        lease.getter, lease.terms = getter, getter.terms
        if getter.terms.sticky:
            self.homes.note(getter.queue, items, getter.terms.consumer)
        getter.items, getter.generation = items, lease.generation
        consumer = self.consumer(getter.client.name)
        consumer.num_items += len(items)
        out.append(getter.delivery(items))
        out.append(StartClock(*lease.owner, lease.generation, getter.terms.ttl_s))
        if 0 < self.max_leased <= consumer.num_items:
            self._make_way(consumer, getter)

    def take_back(self, getter: LeaseGetter, out: list[Instruction]) -> None:
        """Take back what nobody wanted any more when it came; this was no attempt."""
        lease = self._open[getter.generation]
        items = self._remove(lease, list(lease.items), out)
        for item in items:
            item.attempts -= 1
        self._restore(lease.queue, items)

    def give_up(self, getter: LeaseGetter, out: list[Instruction]) -> None:
        """Take back what a consumer had that is lost."""
        lease = self._open[getter.generation]
        self._remember(lease, LOST)
        self._give_back(lease, None, out, reason=LOST)

    def forget(self, client: str) -> None:
        """Forget a client that is gone, and everything that it had."""
        self._consumers.pop(client, None)

    def items(self) -> Iterator[Item]:
        """Yield what is on lease, or comes back after a delay."""
        for lease in self._open.values():
            yield from lease.items.values()

    def describe(self, queue: Contents) -> Iterator[str]:
        """Yield what there is of a queue, in phrases."""
        if queue.lent_items:
            yield f"{queue.lent_items} on lease"
        if queue.skipped:
            yield f"{counted(len(queue.skipped), 'getter')} with as many on lease as may be"

    def describe_bound(self, getter: Getter) -> str:
        """Return why a getter may have nothing more for now, in a phrase; empty if it may."""
        if getter.may_have_more:
            return ""
        num_items = self.consumer(getter.client.name).num_items
        return f"; this consumer has {num_items} on lease, and may have {self.max_leased}"

    # -- for snapshots ---------------------------------------------------------------------------

    def save(self, state: Any, data: Mapping[Queue, Any], items: SavedItems) -> None:
        """Add leases, and who is skipped."""
        if not items.at_rest:
            for lease in self._open.values():
                its = {place: items.add(item) for place, item in lease.items.items()}
                getter = None if lease.getter is None else lease.owner
                data[lease.queue].leases.append(replace(lease, queue=None, items=its, getter=getter))
            for client in state.clients:
                client.skipped = [getter.ticket for getter in self.consumer(client.name).skipped]
            state.why_over = list(self._why_over.items())
            state.homes = self.homes.save()

    def load(self, queues: Sequence[tuple[Queue, Any]], items: LoadedItems) -> None:
        """Have leases that there were before."""
        for queue, data in queues:
            for lease in data.leases:
                self._load(queue, lease, items)
        self._open = dict(sorted(self._open.items()))

    def _load(self, queue: Queue, lease: LeaseState, items: LoadedItems) -> None:
        lease.queue = queue
        its_items = items.each(queue.name, lease.items.values())
        if lease.getter is not None:
            getter: Any = self._queues.operation(*lease.getter)
            lease.getter = getter
            getter.items, getter.generation, getter.terms = its_items, lease.generation, lease.terms
            self.consumer(getter.client.name).num_items += len(its_items)
        self._open_with(lease)

    def arrange(self, state: Any, items: LoadedItems) -> None:
        """Have getters skipped in the order of before."""
        for client in state.clients:
            if client.skipped:
                operations: dict[int, Any] = self._queues.clients[client.name].operations
                self.consumer(client.name).skipped = {operations[ticket]: None for ticket in client.skipped}
        self._why_over = OrderedDict(state.why_over)
        self.homes.load(state.homes)

    def clear(self) -> None:
        """Forget all of them."""
        self.homes.load(())
        self._open.clear()
        self._consumers.clear()

    # --------------------------------------------------------------------------------------------

    def _acknowledge(self, lease: LeaseState, places: Collection[int] | None, out: list[Instruction]) -> None:
        lease.queue.gate.forget(self._remove(lease, self._chosen(lease, places), out))

    def _give_back(
        self,
        lease: LeaseState,
        places: Collection[int] | None,
        out: list[Instruction],
        *,
        reason: str,
        delay_s: float = 0,
    ) -> None:
        """Items of a lease, or all that are left of it, go back after a while; this was an attempt."""
        queue = lease.queue
        items = self._wanted(queue, self._remove(lease, self._chosen(lease, places), out))
        if not lease.items:
            self._remember(lease, f"it was given back: {reason}")
        living = [item for item in items if item.lost or not 0 < self.max_attempts <= item.attempts]
        if len(living) < len(items):
            for item in items:
                if not item.lost and 0 < self.max_attempts <= item.attempts:
                    queue.tally.dead_letters.bury(queue, item, reason, lease.terms.consumer, out)
        if delay_s > 0 and living:
            out.append(StartClock("", 0, self._add(queue, living).generation, delay_s))
        else:
            queue.restore(living)

    def _lapse(self, lease: LeaseState, out: list[Instruction]) -> None:
        if lease.getter is None:
            self._restore(lease.queue, self._remove(lease, list(lease.items), out))
            return
        owner, why = lease.owner, EXPIRED.format(lease.terms.ttl_s)
        self._remember(lease, why)
        self._give_back(lease, None, out, reason=why)
        out.append(Refuse(*owner, Reason.CANCELLED, why))

    def _restore(self, queue: Queue, items: list[Item]) -> None:
        queue.restore(self._wanted(queue, items))

    def _wanted(self, queue: Queue, items: list[Item]) -> list[Item]:
        """Return the items without questions that were retracted, which are over."""
        over = [item for item in items if item.question is not None and item.question[1] == RETRACTED]
        queue.gate.forget(over)
        return [item for item in items if item not in over] if over else items

    def _chosen(self, lease: LeaseState, places: Collection[int] | None) -> list[int]:
        if places is None:
            return list(lease.items)
        return [place for place in places if place in lease.items]

    def _add(self, queue: Queue, items: list[Item]) -> LeaseState:
        number, now = self._queues.next_number(), queue.tally.clock.now
        return self._open_with(LeaseState(number, queue, dict(enumerate(items)), now))

    def _open_with(self, lease: LeaseState) -> LeaseState:
        self._open[lease.generation] = lease
        lease.queue.num_lent += 1
        lease.queue.lend(len(lease.items), sum(item.size_bytes for item in lease.items.values()))
        return lease

    def _remove(self, lease: LeaseState, places: list[int], out: list[Instruction]) -> list[Item]:
        """Take items out of a lease; without any it is over."""
        items = [lease.items.pop(place) for place in places]
        queue, getter = lease.queue, lease.getter
        queue.lend(-len(items), -sum(item.size_bytes for item in items))
        if not lease.items:
            del self._open[lease.generation]
            queue.num_lent -= 1
            out.append(StopClock(*lease.owner, lease.generation))
            if getter is not None:
                getter.client.operations.pop(getter.ticket, None)
        if getter is not None:
            consumer = self.consumer(getter.client.name)
            consumer.num_items -= len(items)
            if consumer.skipped and not self.is_at_bound(getter.client.name):
                self._serve_again(consumer)
        return items

    def _serve_again(self, consumer: Consumer) -> None:
        """Let a consumer's getters that were skipped stand in line again, each at its old place."""
        for queue in dict.fromkeys(getter.queue for getter in consumer.skipped):
            getters = [getter for getter in consumer.skipped if getter.queue is queue]
            for getter in getters:
                del queue.skipped[getter], consumer.skipped[getter]
            last = getters[-1].number
            before = takewhile(lambda getter: getter.number < last, queue.getters)  # noqa: B023 - used at once
            for getter in sorted([*before, *getters], key=_number_of, reverse=True):
                queue.getters[getter] = None
                queue.getters.move_to_end(getter, last=False)
            for getter in getters:
                consumer.line_up(getter)
            queue.tally.touched[queue] = None

    def _make_way(self, consumer: Consumer, served: LeaseGetter) -> None:
        """Have other queues skip a consumer that has enough now, where it is first in line."""
        first = (next(iter(queue.getters)) for queue in consumer.lines if queue is not served.queue)
        in_the_way = [
            getter for getter in first if getter.client is served.client and isinstance(getter, LeaseGetter)
        ]
        for getter in sorted(in_the_way, key=_number_of):
            getter.queue.tally.touched[getter.queue] = None

    def _remember(self, lease: LeaseState, why: str) -> None:
        self._why_over.setdefault(lease.generation, why)
        if len(self._why_over) > NUM_REMEMBERED:
            self._why_over.popitem(last=False)


def _number_of(getter: Getter) -> int:
    return getter.number
