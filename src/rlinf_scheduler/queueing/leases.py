"""Items on lease: a consumer has them until it says what became of them; until then the channel keeps them.

- A lease is over when its consumer has acknowledged or given back every item of it, when its time is over, or when its
  consumer is lost. What was not acknowledged goes to the head of its queue, at its old place.
- Each lease has a generation, a number that no later one has again. Whoever settles something names it, so nobody can
  acknowledge what has been given to another.
- An item is given out so many times; then it is a dead letter. A delivery that nobody wanted any more does not count.
- Items on lease, and those that come back after a delay, count against the bounds of their queue, and its end waits
  for them. Dead letters count against the bytes of the channel only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from rlinf_scheduler.queueing.instructions import (
    Bury,
    Deliver,
    Instruction,
    OnLease,
    Reason,
    Refuse,
    StartClock,
    StopClock,
)
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.operations import Client, Getter
from rlinf_scheduler.queueing.queue_name import QueueName
from rlinf_scheduler.queueing.wanted import LeaseTerms

# So many leases are remembered that ended without their consumers' doing: why.
NUM_REMEMBERED = 1000
EXPIRED = "it was not kept alive for {:g} s"
LOST = "its consumer was lost"


@dataclass(frozen=True, slots=True, eq=False)
class BuriedItem:
    """An item that was given out as often as it may be.

    Attributes:
        number: which dead letter of the channel.
        queue: where it came from.
        item: it.
        attempts: how often it was given out.
        reason: why the last one came to nothing.
        consumer: who had it last.
    """

    number: int
    queue: NamedQueue
    item: Item
    attempts: int
    reason: str
    consumer: str


class HeldItems:
    """Items that one consumer has, or (getter None) that come back after a delay.

    Attributes:
        generation: its number.
        queue: where the items came from.
        getter: the operation that asked for them.
        terms: what it asked for.
        items: those that are not settled, by their places in the delivery.
        since: when it began, on the clock of the state's shell.
    """

    __slots__ = ("generation", "getter", "items", "queue", "since", "terms")

    def __init__(self, generation: int, queue: NamedQueue, items: Iterable[Item]) -> None:
        self.generation = generation
        self.queue = queue
        self.getter: Getter[NamedQueue] | None = None
        self.terms = LeaseTerms(0.0)
        self.items = dict(enumerate(items))
        self.since = queue.tally.clock.now

    @property
    def owner(self) -> tuple[str, int]:
        """The client that has the items, and the ticket of its operation."""
        return ("", 0) if self.getter is None else (self.getter.client.name, self.getter.ticket)

    def __repr__(self) -> str:
        return f"HeldItems(generation={self.generation})"


class Leases:
    """All leases and dead letters of one channel.

    Args:
        max_attempts: how often an item is given out; 0 for any number.
        max_leased: how many items a client may have on lease before its further leases wait; 0 for any number. One
            that has fewer may come to more by a batch.

    Attributes:
        last_number: the last generation, or number of a dead letter or of a slot.
    """

    def __init__(self, max_attempts: int = 0, max_leased: int = 0) -> None:
        self.max_attempts = max_attempts
        self.max_leased = max_leased
        self.dead: dict[int, BuriedItem] = {}
        self._open: dict[int, HeldItems] = {}
        self._why_over: OrderedDict[int, str] = OrderedDict()
        self.last_number = 0

    def all(self) -> Iterable[HeldItems]:
        """Return everything that is given out, or comes back after a delay."""
        return self._open.values()

    def next_number(self) -> int:
        """Number a lease, a dead letter or a slot: none has the number of another."""
        self.last_number += 1
        return self.last_number

    def is_at_bound(self, client: Client[NamedQueue]) -> bool:
        """Whether a client has as many items on lease as it may."""
        return 0 < self.max_leased <= client.num_leased

    def begin(
        self, getter: Getter[NamedQueue], terms: LeaseTerms, items: list[Item], out: list[Instruction]
    ) -> None:
        """Give items to a getter."""
        for item in items:
            item.attempts += 1
        lease = self._add(getter.queue, items)
        lease.getter, lease.terms = getter, terms
        getter.items = items
        getter.lease = OnLease(lease.generation, [item.attempts for item in items])
        getter.client.num_leased += len(items)
        client, ticket = getter.client.name, getter.ticket
        about = items, getter.complete, None, getter.lease, getter.group
        out.append(Deliver(client, ticket, *about, queue=getter.queue.name))
        out.append(StartClock(client, ticket, lease.generation, terms.ttl_s))

    def of(self, getter: Getter[NamedQueue]) -> HeldItems | None:
        """Return the lease of what was delivered to a getter; None if it is not on lease."""
        return None if getter.lease is None else self._open.get(getter.lease.generation)

    def find(self, client: str, generation: int) -> HeldItems | None:
        """Return a lease that a client has; None if it is over, or another's."""
        lease = self._open.get(generation)
        mine = lease is not None and lease.getter is not None and lease.getter.client.name == client
        return lease if mine else None

    def why_over(self, generation: int) -> str:
        """Why a lease is over, in a phrase, as far as it is remembered."""
        return self._why_over.get(generation, "it was settled, or its consumer was lost")

    def acknowledge(self, lease: HeldItems, places: Collection[int] | None, out: list[Instruction]) -> None:
        """Items of a lease, or all that are left of it, are done with."""
        lease.queue.forget(self._remove(lease, self._chosen(lease, places), out))

    def give_back(
        self,
        lease: HeldItems,
        places: Collection[int] | None,
        out: list[Instruction],
        *,
        reason: str,
        delay_s: float = 0,
    ) -> None:
        """Items of a lease, or all that are left of it, go back after a while; this was an attempt."""
        queue = lease.queue
        items = self._remove(lease, self._chosen(lease, places), out)
        if not lease.items:
            self._remember(lease, f"it was given back: {reason}")
        living = [item for item in items if item.lost or not 0 < self.max_attempts <= item.attempts]
        if len(living) < len(items):
            consumer = lease.terms.consumer
            for item in items:
                if not item.lost and 0 < self.max_attempts <= item.attempts:
                    self._bury(queue, item, reason, consumer, out)
        if delay_s > 0 and living:
            out.append(StartClock("", 0, self._add(queue, living).generation, delay_s))
        else:
            queue.restore(living)

    def withdraw(self, lease: HeldItems, out: list[Instruction]) -> None:
        """Nobody wanted it any more when it came: its items go back, and this was no attempt."""
        items = self._remove(lease, list(lease.items), out)
        for item in items:
            item.attempts -= 1
        lease.queue.restore(items)

    def lose(self, lease: HeldItems, out: list[Instruction]) -> None:
        """Its consumer is lost: its items go back."""
        self._remember(lease, LOST)
        self.give_back(lease, None, out, reason=LOST)

    def lapse(self, generation: int, out: list[Instruction]) -> HeldItems | None:
        """The time of a lease, or of a delay, is over; return it, None if it was over before."""
        lease = self._open.get(generation)
        if lease is None:
            return None
        if lease.getter is None:
            lease.queue.restore(self._remove(lease, list(lease.items), out))
            return lease
        getter, why = lease.getter, EXPIRED.format(lease.terms.ttl_s)
        self._remember(lease, why)
        self.give_back(lease, None, out, reason=why)
        out.append(Refuse(getter.client.name, getter.ticket, Reason.CANCELLED, why))
        return lease

    def put_back(self, number: int) -> BuriedItem | None:
        """A dead letter goes to the head of its queue, as if it had never been given out; None if it is not there.

        Raises:
            ValueError: it would be taken too late (see `Admission`).
        """
        letter = self.dead.get(number)
        if letter is not None:
            letter.queue.reopen(letter.item)
            letter.item.attempts = 0
        return self.discard(number)

    def discard(self, number: int) -> BuriedItem | None:
        """Drop a dead letter; None if it is not there."""
        letter = self.dead.pop(number, None)
        if letter is not None:
            letter.queue.num_dead -= 1
            letter.queue.tally.note_dead(letter.queue.name, -1, -letter.item.size_bytes)
        return letter

    def dead_letters(self, queue_name: QueueName | None = None) -> list[BuriedItem]:
        """Return those of one queue, or (None) all, the oldest first."""
        return [letter for letter in self.dead.values() if queue_name in (None, letter.queue.name)]

    def load(self, lease: HeldItems, getter: Getter[NamedQueue] | None, terms: LeaseTerms) -> None:
        """Have a lease again that there was before; of no getter for items that come back after a delay."""
        self._open_with(lease)
        lease.getter, lease.terms = getter, terms
        if getter is not None:
            getter.terms = terms
            getter.lease = OnLease(lease.generation, [item.attempts for item in lease.items.values()])
            getter.client.num_leased += len(lease.items)

    def contents(self) -> list[tuple[int, str]]:
        """Why leases are over, as far as it is remembered."""
        return list(self._why_over.items())

    def arrange(self, why_over: Iterable[tuple[int, str]]) -> None:
        """Have what there is in the order in which it was given out, and what `contents` gave."""
        self._open = dict(sorted(self._open.items()))
        self._why_over = OrderedDict(why_over)

    def load_dead(self, letter: BuriedItem) -> None:
        """Have a dead letter."""
        self.dead[letter.number] = letter
        letter.queue.num_dead += 1
        letter.queue.tally.note_dead(letter.queue.name, 1, letter.item.size_bytes)

    def clear(self) -> None:
        """Forget all of them."""
        self.dead.clear()
        self._open.clear()

    def _chosen(self, lease: HeldItems, places: Collection[int] | None) -> list[int]:
        if places is None:
            return list(lease.items)
        return [place for place in places if place in lease.items]

    def _add(self, queue: NamedQueue, items: list[Item]) -> HeldItems:
        return self._open_with(HeldItems(self.next_number(), queue, items))

    def _open_with(self, lease: HeldItems) -> HeldItems:
        queue = lease.queue
        self._open[lease.generation] = lease
        queue.num_leases += 1
        size_bytes = sum(item.size_bytes for item in lease.items.values())
        queue.leased_items += len(lease.items)
        queue.leased_bytes += size_bytes
        queue.tally.note_leased(queue.name, len(lease.items), size_bytes)
        return lease

    def _remove(self, lease: HeldItems, places: list[int], out: list[Instruction]) -> list[Item]:
        """Take items out of a lease; without any it is over."""
        items = [lease.items.pop(place) for place in places]
        queue, getter = lease.queue, lease.getter
        size_bytes = sum(item.size_bytes for item in items)
        queue.leased_items -= len(items)
        queue.leased_bytes -= size_bytes
        queue.tally.note_leased(queue.name, -len(items), -size_bytes)
        if getter is not None:
            getter.client.num_leased -= len(items)
        if not lease.items:
            del self._open[lease.generation]
            queue.num_leases -= 1
            out.append(StopClock(*lease.owner, lease.generation))
            if getter is not None:
                getter.client.operations.pop(getter.ticket, None)
        return items

    def _bury(
        self, queue: NamedQueue, item: Item, reason: str, consumer: str, out: list[Instruction]
    ) -> None:
        queue.forget((item,))
        self.load_dead(BuriedItem(self.next_number(), queue, item, item.attempts, reason, consumer))
        if item.question is not None:
            out.append(Bury(*item.question, item.attempts, consumer, reason))

    def _remember(self, lease: HeldItems, why: str) -> None:
        self._why_over.setdefault(lease.generation, why)
        if len(self._why_over) > NUM_REMEMBERED:
            self._why_over.popitem(last=False)
