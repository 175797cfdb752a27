"""Subscriptions: queues that see each item that enters another one, or any, from their first member to their last.

- A subscription sees what enters after its beginning; the payload is the same, and what becomes of it here is nothing
  to the queue where it was put.
- It has a bound of its own. When that is reached it gives up its oldest items, and counts them: no put waits for it.
- It ends when what it sees has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from rlinf_scheduler.queueing.item import Item, QueueName, SubscriptionName, as_name
from rlinf_scheduler.queueing.messages import Instruction
from rlinf_scheduler.queueing.policy import Handler, OperationOver, Policy
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.saved_items import LoadedItems, SavedItems
from rlinf_scheduler.queueing.tally import Tally
from rlinf_scheduler.wording import counted, list_names, size_text

# Unless it is said, a subscription holds such a share of what its channel may hold.
SHARE = 4


class Subscribe(Struct, tag=43, array_like=True):
    """Read a subscription of a queue, or (None) of all -> `Done`.

    `max_bytes` None is a share of what the channel may hold.
    """

    number: int
    name: str
    queue: Any
    maxsize: int = 0
    max_bytes: int | None = 0


class Unsubscribe(Struct, tag=31, array_like=True):
    """Read it no more: done, or failed, to be succeeded -> `Done`."""

    number: int
    name: str
    failed: bool = False


class GiveUpTap(Struct):
    """Nobody is to succeed the last member of a subscription, who left at a vacancy."""

    name: str
    vacancy: int


class Vacate(NamedTuple):
    """The last member of a subscription has left: if it `failed` another may succeed it, else apply `GiveUpTap`."""

    client: str
    ticket: int
    name: str
    vacancy: int
    failed: bool


class TapTerms(NamedTuple):
    """The terms of a subscription; all its members say the same.

    Attributes:
        queue_name: which queue it sees; None for all.
        maxsize: how many items it holds; 0 is unbounded.
        max_bytes: how many bytes, unless it is a single larger item; 0 is unbounded.
    """

    queue_name: QueueName | None
    maxsize: int = 0
    max_bytes: int = 0

    def describe(self) -> str:
        """Return it in a phrase."""
        what = "all queues" if self.queue_name is None else f"queue {self.queue_name!r}"
        bounds = [
            *([counted(self.maxsize, "item")] if self.maxsize else []),
            *([size_text(self.max_bytes)] if self.max_bytes else []),
        ]
        if not bounds:
            return f"it sees {what}, and may hold any number of items"
        return f"it sees {what}, may hold at most {' and '.join(bounds)}, and drops its oldest items when it is full"


class Membership(Struct, array_like=True):
    """Who reads a subscription, by client and a number of its; the last time when nobody did; what it gave up."""

    members: dict[tuple[str, int], None] = {}
    vacancy: int = 0
    num_dropped: int = 0
    removed: bool = False


class TapQueue(Queue):
    """The queue of one subscription.

    Args:
        subscription: its name.
        terms: what it is.
        tally: of the channel.
        sources: returns the queues that it sees, those that are there.

    Attributes:
        read: who reads it.
    """

    __slots__ = ("_sources", "read", "subscription", "terms")

    def __init__(
        self, subscription: str, terms: TapTerms, tally: Tally, sources: Callable[[], Iterable[Queue]]
    ) -> None:
        super().__init__(
            SubscriptionName(subscription), self.gate_type(terms.maxsize, terms.max_bytes), tally
        )
        self.subscription = subscription
        self.terms = terms
        self.read = Membership()
        self._sources = sources

    def see(self, item: Item) -> None:
        """Show it an item that has entered a queue."""
        twin = item.for_subscription()
        self.fifo.push(twin)
        for watch in self.tally.watches:
            watch.entered.append((self.name, twin))  # its bytes are counted where it was put
        while self.fifo.num_items and self._is_over():
            self.fifo.take_oldest()
            self.read.num_dropped += 1

    @property
    def full(self) -> bool:
        """Never: what it has no room for takes the place of its oldest item."""
        return False

    def _is_over(self) -> bool:
        num_held, (_, maxsize, max_bytes) = self.num_held, self.terms
        return 0 < maxsize < num_held or (num_held > 1 and 0 < max_bytes < self.held_bytes)

    def describe_readers(self, names: Mapping[str, str]) -> str:
        """Return what it sees and who reads it, by the names of clients."""
        members = sorted({names.get(client, "") for client, _ in self.read.members})
        return f"{self.terms.describe()}; read by {list_names(members) if members else 'nobody at present'}"

    def remove(self) -> None:
        """Read it no more: who waits is told, and what is here, or comes back, is dropped."""
        self.read.removed = self.ended = True

    @property
    def idle(self) -> bool:
        """It stays until it is removed."""
        return False

    @property
    def num_dropped(self) -> int:  # type: ignore[override]
        """Items that it has given up since its beginning."""
        return self.read.num_dropped

    def settle(self, closed: bool, out: list[Instruction]) -> None:
        """Serve getters; items that come back after its removal are dropped."""
        if self.read.removed:
            self.fifo.take_all()
            self.tally.dead_letters.drop_all(self)
        super().settle(closed, out)

    def count(self) -> None:
        """Count nowhere else: what it holds is bound by itself."""

    def is_last(self, closed: bool) -> bool:
        """Return whether nothing will enter any more."""
        if self.read.removed:
            return True
        return (closed or self.ended) and not any(each.putters or each.reserved for each in self._sources())

    def may_come_back(self) -> bool:
        """Return whether items that were taken may come back."""
        return not self.read.removed and super().may_come_back()

    def is_stuck(self) -> bool:
        """Never: what enters takes the place of its oldest item."""
        return False


class Taps(Policy):
    """The subscriptions of a channel, by name.

    Attributes:
        num_vacancies: how often the last member of one has left, also of one name after the other.
    """

    tap_type = TapQueue

    def __init__(self, queues: QueueSet, bounds: Any) -> None:
        super().__init__(queues, bounds)
        self.num_vacancies = 0
        self._taps: dict[str, TapQueue] = {}

    def __len__(self) -> int:
        return len(self._taps)

    def __iter__(self) -> Iterator[TapQueue]:
        return iter(self._taps.values())

    def handlers(self) -> dict[type, Handler]:
        """Return what handles subscriptions."""
        return {Subscribe: self.subscribe, Unsubscribe: self.unsubscribe, GiveUpTap: self.give_up}

    def subscribe(self, wanted: Subscribe, client: str) -> list[Instruction]:
        """Let a client read a subscription, which begins with its first member.

        Raises:
            ValueError: there is another one of this name.
        """
        tap = self._taps.get(wanted.name)
        terms = self._terms_of(wanted, tap)
        if tap is None:
            tap = self.make(wanted.name, terms)
            self.begin(tap)
        elif tap.terms != terms:
            message = f"there is a subscription {wanted.name!r} already: {tap.terms.describe()}"
            raise ValueError(message)
        tap.read.members[client, wanted.number] = None
        return []

    def _terms_of(self, wanted: Subscribe, tap: TapQueue | None) -> TapTerms:
        """The terms that a member means: who does not say the bytes means those there are, or a share of the channel's.

        Its own share may be of another machine's memory.
        """
        queue_name = None if wanted.queue is None else as_name(wanted.queue)
        max_bytes = wanted.max_bytes
        if max_bytes is None:
            max_bytes = -(-self._queues.tally.max_bytes // SHARE) if tap is None else tap.terms.max_bytes
        return TapTerms(queue_name, wanted.maxsize, max_bytes)

    def unsubscribe(self, left: Unsubscribe, client: str) -> list[Instruction]:
        """Let a member read no more: Vacate if it was the last one."""
        return self._leave(client, left.number, left.name, failed=left.failed)

    def lose(self, client: str, out: list[Instruction]) -> Iterable[Queue]:
        """Let a client that is gone read no more."""
        members = [(tap.subscription, each) for tap in self for each in tap.read.members if each[0] == client]
        for name, member in members:
            out += self._leave(*member, name, failed=True)
        return ()

    def _leave(self, client: str, number: int, name: str, *, failed: bool) -> list[Instruction]:
        tap = self._taps.get(name)
        if tap is None or (client, number) not in tap.read.members:
            return []
        del tap.read.members[client, number]
        if tap.read.members:
            return []
        self.num_vacancies += 1
        tap.read.vacancy = self.num_vacancies
        return [Vacate(client, number, name, tap.read.vacancy, failed)]

    def vacant(self) -> list[tuple[str, int]]:
        """Return the subscriptions that have no member, each with the number of its vacancy."""
        return [(tap.subscription, tap.read.vacancy) for tap in self if not tap.read.members]

    def give_up(self, left: GiveUpTap, _client: str = "") -> list[Instruction]:
        """End a subscription.

        Raises:
            OperationOver: somebody has succeeded its last member.
        """
        tap = self._taps.get(left.name)
        if tap is None or tap.read.members or tap.read.vacancy != left.vacancy:
            raise OperationOver(f"subscription {left.name!r} is read")
        del self._taps[left.name]
        self._queues.drop(tap)
        tap.remove()
        self._show(tap.terms)
        return self._queues.settle([tap], [])

    def make(self, name: str, terms: TapTerms) -> TapQueue:
        """Return the queue of a subscription, which sees nothing yet."""
        tap = self.tap_type(name, terms, self._queues.tally, lambda: self.seen_by(terms))
        tap.ended = self._queues.has_ended(terms.queue_name)
        return tap

    def begin(self, tap: TapQueue) -> None:
        """Let a subscription see what enters from now on."""
        if self._show_to not in self._queues.on_made:
            self._queues.on_made.append(self._show_to)
        self._taps[tap.subscription] = tap
        self._queues.add(tap)
        self._show(tap.terms)

    def followers(self, name: QueueName, *, alone: bool) -> Iterable[Queue]:
        """Return the subscriptions that see a queue, or (`alone`) only those that see no other."""
        return [tap for tap in self.on(name) if not alone or tap.terms.queue_name is not None]

    def on(self, name: QueueName) -> tuple[TapQueue, ...]:
        """Return the subscriptions that see a queue."""
        return tuple(tap for tap in self if tap.terms.queue_name in (None, name))

    def seen_by(self, terms: TapTerms) -> list[Queue]:
        """Return the queues that a subscription sees, those that are there."""
        if terms.queue_name is None:
            return [queue for queue in self._queues.all() if type(queue.name) is not SubscriptionName]
        queue = self._queues.find(terms.queue_name)
        return [] if queue is None else [queue]

    def save(self, state: Any, data: Mapping[Queue, Any], items: SavedItems) -> None:
        """Add what subscriptions see, and who reads them."""
        for queue, its in data.items():
            if isinstance(queue, TapQueue):
                read, gone = queue.read, items.at_rest
                its.terms = queue.terms
                its.membership = replace(
                    read, members={} if gone else dict(read.members), vacancy=0 if gone else read.vacancy
                )
        if not items.at_rest:
            state.num_vacancies = self.num_vacancies

    def remake(self, name: QueueName, data: Any) -> Queue | None:
        """Return the queue of a subscription, still empty."""
        if data.terms is None or not isinstance(name, SubscriptionName):
            return None
        queue_name, *bounds = data.terms
        tap = self.make(name.subscription, TapTerms(as_name(queue_name), *bounds))
        tap.read = data.membership
        if tap.read.removed:
            tap.remove()
        else:
            self.begin(tap)
        return tap

    def arrange(self, state: Any, items: LoadedItems) -> None:
        """Count on."""
        self.num_vacancies = state.num_vacancies

    def clear(self) -> None:
        """Forget all of them."""
        self._taps.clear()

    def _show(self, terms: TapTerms) -> None:
        for queue in self.seen_by(terms):
            self._show_to(queue)

    def _show_to(self, queue: Queue) -> None:
        queue.decide_by(followers=self.on(queue.name))
