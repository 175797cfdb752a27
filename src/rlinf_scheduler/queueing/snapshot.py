"""From a channel's queues to data, and what was there from one snapshot of a channel to another.

A snapshot is the state itself: its structs, in which clients, queues and payloads are ids. Queues that are made of it
behave as those that it was made of, whatever comes; their clients, and what these wait for, are there again.

One *at rest* leaves out the clients: what they had and did not say that they are done with is in the queues again, at
its old place, and with as many attempts; what was to come back after a delay is back; subscriptions have no members;
questions are gone, for whoever asked does not wait any more, and so is what is lost. One that is not at rest is of a
channel that loses nothing, as it has all bytes itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rlinf_scheduler.queueing.admission import Admission, Admissions, VersionState
from rlinf_scheduler.queueing.item import NOT_GIVEN, SETTLED, Item, QueueName, SubscriptionName
from rlinf_scheduler.queueing.leases import BuriedItem, LeaseGetter, Leases, LeaseState
from rlinf_scheduler.queueing.operations import Getter, Putter
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.sharding import Part, PartGetter, ShardingState, ShardState
from rlinf_scheduler.queueing.taps import Membership, TapQueue, Taps

# So many items are written down at a time: few enough for the garbage collector not to begin for them.
CHUNK = 200
AnyGetter = Getter | LeaseGetter | PartGetter


class QueueData(Struct, array_like=True):
    """One queue. A new field goes to the end and has a default.

    Attributes:
        name: its name.
        num_entered: how many items ever entered it: the order of the next one.
        flushed: items of a smaller order do not wait for others.
        returned: what was taken and came back, in order.
        items: what never left, in order.
        sent: getters that were sent something and have not confirmed it.
        leases: what consumers have on lease, and what comes back after a delay.
        waiting: getters that wait, in order; skipped: likewise, those that may have no more for now.
        putters: the puts that are not over: those with room in the order in which they got it, then the line.
        versions: where it has some.
        sharding: where it is divided.
        terms: of a subscription; membership: who reads it.
    """

    name: Any
    num_entered: int
    flushed: int = 0
    returned: list[Item] = []
    items: list[Item] = []
    sent: list[AnyGetter] = []
    leases: list[LeaseState] = []
    waiting: list[AnyGetter] = []
    skipped: list[AnyGetter] = []
    putters: list[Putter] = []
    versions: VersionState | None = None
    sharding: ShardingState | None = None
    terms: tuple[Any, int, int] | None = None
    membership: Membership | None = None


class ClientData(Struct, array_like=True):
    """A client: the tickets of its operations, and of those that are skipped, each in order."""

    name: str
    tickets: list[int]
    skipped: list[int]


class ChannelData(Struct, array_like=True):
    """All queues of a channel, and what it counts. A new field goes to the end and has a default.

    Attributes:
        queues: in order of appearance.
        dead: dead letters, the oldest first.
        last_number: the last generation of a lease, or number of a dead letter or a slot; none comes again.
        num_accepted: how many items were put since the beginning; accepted_bytes: their size.
        closed: nothing can be put any more.
        all_ended: every queue has ended.
        ended: the names of those that were ended alone.
        num_lost: how many of the items put were lost; lost_bytes: their size.
        clients: in order of appearance; none at rest.
        crowded: the queues with a put that waits for the bytes of the channel, in order.
        admitting: the queues with versions, in order.
        why_over: of the last leases that ended without their consumers' doing: why.
        now: the clock of the state's shell.
        num_vacancies: how often the last member of a subscription has left.
    """

    queues: list[QueueData]
    dead: list[BuriedItem]
    last_number: int
    num_accepted: int
    accepted_bytes: int
    closed: bool = False
    all_ended: bool = False
    ended: list[Any] = []
    num_lost: int = 0
    lost_bytes: int = 0
    clients: list[ClientData] = []
    crowded: list[Any] = []
    admitting: list[Any] = []
    why_over: list[tuple[int, str]] = []
    now: float = 0.0
    num_vacancies: int = 0


@dataclass(eq=False)
class Snapshot:
    """The state of queues as data, and their items.

    What never left its queue does not change. So it is only noted at first, and written down when the data is asked
    for, in any thread, while the queues go on.

    Attributes:
        state: the data without what never left its queue.
        items: `items[n].payload` belongs to the item of the data whose `payload` is n.
        at_rest: without clients.
        rest: of the items, what never left each of the queues and is not in the data.
        sent: what has been delivered, not on lease, and not confirmed, by delivery.
        entered: what entered since then, and where, as long as this is watched (see `QueueSet.watch`).
    """

    state: ChannelData
    items: list[Item]
    at_rest: bool
    rest: Sequence[range] = ()
    sent: list[list[Item]] = field(default_factory=list)
    entered: list[tuple[QueueName, Item]] = field(default_factory=list)

    @cached_property
    def data(self) -> ChannelData:
        """The data."""
        return with_rest(self.state, self.rest_items())

    def rest_items(self) -> Iterator[tuple[int, list[Item]]]:
        """Yield the items that never left, a few at a time: the queue's number, and items in order."""
        for number, places in enumerate(self.rest):
            for begin in range(places.start, places.stop, CHUNK):
                some = range(begin, min(begin + CHUNK, places.stop))
                yield number, [self._as_it_entered(n) for n in some]

    def _as_it_entered(self, place: int) -> Item:
        item = self.items[place]
        since = 0.0 if self.at_rest else item.since
        return replace(item, payload=place, attempts=0, given_in=NOT_GIVEN, since=since, lost="")


def with_rest(state: ChannelData, rest: Iterable[tuple[int, list[Item]]]) -> ChannelData:
    """Return the data of queues with what never left them; see `Snapshot.rest_items`."""
    items = [list(queue.items) for queue in state.queues]
    for number, some in rest:
        items[number] += some
    queues = [replace(queue, items=its) for queue, its in zip(state.queues, items, strict=True)]
    return replace(state, queues=queues)


class Items:
    """The items of a snapshot, each with its place in the place of its payload.

    Args:
        at_rest: those that clients wait for, and those that are lost, are left out.

    Attributes:
        num_lost: what was left out because it is lost, and was not counted as such yet; lost_bytes: its size.
    """

    def __init__(self, *, at_rest: bool) -> None:
        self.all: list[Item] = []
        self.num_lost = self.lost_bytes = 0
        self._at_rest = at_rest

    def add(self, item: Item) -> Item:
        """Add an item; return it as data."""
        self.all.append(item)
        since = 0.0 if self._at_rest else item.since
        given_in = NOT_GIVEN if self._at_rest and item.given_in != SETTLED else item.given_in
        return replace(item, payload=len(self.all) - 1, since=since, given_in=given_in)

    def each(self, items: Iterable[Item], *, counts_lost: bool = True) -> list[Item]:
        """Add those that are to be in the snapshot; `counts_lost` unless they are counted elsewhere."""
        return [self.add(item) for item in self.chosen(items, counts_lost=counts_lost)]

    def chosen(self, items: Iterable[Item], *, counts_lost: bool = True) -> list[Item]:
        """Return those that are to be in the snapshot."""
        items = list(items)
        if not self._at_rest:
            return items
        if counts_lost:
            lost = [item.size_bytes for item in items if item.lost]
            self.num_lost += len(lost)
            self.lost_bytes += sum(lost)
        return [item for item in items if item.question is None and not item.lost]


class Taker:
    """Makes data of queues, and gathers their items.

    Args:
        queues: of a channel.
        policy: returns what is kept of a policy.
        at_rest: without clients.
    """

    def __init__(self, queues: QueueSet, policy: Callable[[type[Any]], Any], *, at_rest: bool) -> None:
        self._queues = queues
        self._leases: Leases = policy(Leases)
        self._admissions: Admissions = policy(Admissions)
        self._taps: Taps = policy(Taps)
        self._at_rest = at_rest
        self._items = Items(at_rest=at_rest)
        self._rest: list[range] = []
        self._sent: list[list[Item]] = []

    def take(self, done: Collection[int]) -> Snapshot:
        """Return all there is, without leases that are done with."""
        leases, sent = self._leases_by_queue(done), self._sent_by_queue()
        # Of subscriptions that nobody reads any more something may still be given out.
        queues = dict.fromkeys((*self._queues.all(), *leases, *sent))
        if self._at_rest:
            queues = {queue: None for queue in queues if not _is_removed(queue)}
        data = [self._queue(queue, sent[queue], leases[queue]) for queue in queues]
        dead = self._dead(queues)
        known, items = self._queues, self._items
        state = ChannelData(
            data,
            dead,
            known.last_number,
            known.num_accepted,
            known.accepted_bytes,
            known.closed,
            known.all_ended,
            list(known.ended),
            known.num_lost + items.num_lost,
            known.lost_bytes + items.lost_bytes,
        )
        if not self._at_rest:
            self._add_clients(state)
        return Snapshot(state, items.all, self._at_rest, self._rest, self._sent)

    def _add_clients(self, state: ChannelData) -> None:
        state.clients = [
            ClientData(client.name, list(client.operations), self._leases.skipped(client.name))
            for client in self._queues.clients.values()
        ]
        state.crowded = [queue.name for queue in self._queues.tally.line]
        state.admitting = [queue.name for queue in self._admissions.queues()]
        state.why_over = self._leases.contents()
        state.now = self._queues.tally.clock.now
        state.num_vacancies = self._taps.num_vacancies

    def _leases_by_queue(self, done: Collection[int]) -> defaultdict[Queue, list[LeaseState]]:
        leases: defaultdict[Queue, list[LeaseState]] = defaultdict(list)
        for lease in self._leases.all():
            if lease.generation not in done:
                leases[lease.queue].append(lease)
        return leases

    def _sent_by_queue(self) -> defaultdict[Queue, list[Getter]]:
        """What was sent and is not confirmed."""
        sent: defaultdict[Queue, list[Getter]] = defaultdict(list)
        for client in self._queues.clients.values():
            for each in client.operations.values():
                if isinstance(each, Getter) and each.items is not None:
                    sent[each.queue].append(each)
        return sent

    def _dead(self, queues: Collection[Queue]) -> list[BuriedItem]:
        return [
            replace(letter, queue=letter.queue.name, item=item)
            for letter in self._leases.dead.values()
            if letter.queue in queues or not self._at_rest
            for item in self._items.each([letter.item], counts_lost=not isinstance(letter.queue, TapQueue))
        ]

    def _queue(self, queue: Queue, sent: Sequence[Getter], leases: Sequence[LeaseState]) -> QueueData:
        counts_lost = not isinstance(queue, TapQueue)
        returned, rest = queue.fifo.contents()
        if self._at_rest:
            # Parts stay with their shards.
            in_delivery = [getter.items or [] for getter in sent if getter.counts]
            self._sent += in_delivery
            returned += [item for items in in_delivery for item in items]
            returned += [item for lease in leases for item in lease.items.values()]
            returned.sort(key=_order)
        data = QueueData(queue.name, queue.fifo.num_entered, queue.flushed)
        if isinstance(queue.gate, Admission):
            data.versions = self._versions(queue.gate, returned)
        begin = len(self._items.all)
        self._items.all += self._items.chosen(rest, counts_lost=counts_lost)
        self._rest.append(range(begin, len(self._items.all)))
        data.returned = self._items.each(returned, counts_lost=counts_lost)
        if isinstance(queue.parts, ShardingState):
            data.sharding = self._sharding(queue.parts, counts_lost=counts_lost)
        if isinstance(queue, TapQueue):
            read = queue.read
            data.terms = queue.terms
            data.membership = (
                replace(read, members={}, vacancy=0)
                if self._at_rest
                else replace(read, members=dict(read.members))
            )
        if not self._at_rest:
            self._add_lines(data, queue, sent, leases)
        return data

    def _add_lines(
        self, data: QueueData, queue: Queue, sent: Iterable[Getter], leases: Iterable[LeaseState]
    ) -> None:
        data.sent = [self._getter(getter) for getter in sent]
        data.leases = [self._lease(lease) for lease in leases]
        data.waiting = [self._getter(getter) for getter in (*queue.getters, *queue.parts.getters)]
        data.skipped = [self._getter(getter) for getter in queue.skipped]
        with_room = (putter for stream in queue.streams.values() for putter in stream)
        data.putters = [self._putter(putter) for putter in (*with_room, *queue.putters)]

    def _getter(self, getter: Getter) -> AnyGetter:
        # What is on lease, and what is a part, stands there.
        items = self._items.each(getter.items or ()) if getter.counts else []
        data = replace(
            getter,
            client=getter.client.name,
            queue=None,
            items=None if getter.items is None else items,
        )
        if isinstance(data, PartGetter) and data.part is not None:
            data.part = self._part(data.part)
        return data

    def _putter(self, putter: Putter) -> Putter:
        return replace(putter, client=putter.client.name, queue=None, item=self._items.add(putter.item))

    def _lease(self, lease: LeaseState) -> LeaseState:
        items = {place: self._items.add(item) for place, item in lease.items.items()}
        return replace(lease, queue=None, items=items, getter=None if lease.getter is None else lease.owner)

    def _versions(self, gate: Admission, returned: Iterable[Item]) -> VersionState:
        kept = gate.kept
        if self._at_rest:
            num_given = kept.num_given - sum(gate.is_lent(item) for item in returned)
            return replace(kept, num_given=num_given, making={}, asking={}, moving={})
        making = {
            number: replace(slot, copies=dict(slot.copies), gone=set(slot.gone))
            for number, slot in kept.making.items()
        }
        return replace(kept, making=making, asking=dict(kept.asking), moving=dict(kept.moving))

    def _sharding(self, sharding: ShardingState, *, counts_lost: bool) -> ShardingState:
        shards = [self._shard(shard, counts_lost=counts_lost) for shard in sharding.shards]
        return replace(sharding, shards=shards)

    def _shard(self, shard: ShardState, *, counts_lost: bool) -> ShardState:
        parts = [self._part(part, counts_lost=counts_lost) for part in shard.parts]
        if shard.in_hand is None:
            return ShardState(parts)
        in_hand = self._part(shard.in_hand, counts_lost=counts_lost)
        if self._at_rest:
            return ShardState([in_hand, *parts])
        return ShardState(parts, in_hand, (shard.holder.client.name, shard.holder.ticket))

    def _part(self, part: Part, *, counts_lost: bool = True) -> Part:
        return replace(part, items=self._items.each(part.items, counts_lost=counts_lost))


def _is_removed(queue: Queue) -> bool:
    return isinstance(queue, TapQueue) and queue.read.removed


def merged(first: Snapshot, second: Snapshot) -> Snapshot:
    """Return all that a channel held at any moment between two snapshots at rest, the first of which was watched.

    What is there no more comes back to the head of its queue.
    """
    return _Merger(first, second).merge()


class _Merger:
    def __init__(self, first: Snapshot, second: Snapshot) -> None:
        self._first = first
        self._second = second
        self._known = {id(item) for item in second.items}
        self._items = Items(at_rest=True)
        self._items.all = list(second.items)

    def merge(self) -> Snapshot:
        first, second = self._first.data, self._second.data
        queues = {queue.name: queue for queue in second.queues}
        for queue in first.queues:
            if self._is_over(queue.name, queues):
                continue
            missing = self._missing([*queue.returned, *queue.items])
            there = queues.get(queue.name) or QueueData(queue.name, queue.num_entered)
            if queue.sharding is not None:
                there = replace(there, sharding=self._sharding(queue.sharding, there.sharding))
            if queue.versions is not None:
                # With what was there first, the version is the one of then.
                there = replace(there, versions=queue.versions)
            queues[queue.name] = _with_first(missing, there)
        dead = [
            replace(letter, item=item)
            for letter in first.dead
            if not self._is_over(letter.queue, queues)
            for item in self._missing([letter.item])
        ]
        # What has both come and gone; all that was there first is known by now.
        passed: dict[QueueName, list[Item]] = {}
        for name, item in self._first.entered:
            # Questions, and what is lost, are not at rest.
            is_missing = not self._is_over(name, queues) and self._is_new(item)
            for each in self._items.each([item] if is_missing else []):
                passed.setdefault(name, []).append(each)
        for name, items in passed.items():
            there = queues.get(name) or QueueData(name, items[-1].order + 1)
            queues[name] = _with_first(items, there)
        state = replace(second, queues=list(queues.values()), dead=[*dead, *second.dead])
        return Snapshot(state, self._items.all, at_rest=True)

    def _is_over(self, name: QueueName, present: Collection[QueueName]) -> bool:
        """Whether that is a subscription which nobody reads any more."""
        return type(name) is SubscriptionName and name not in present

    def _is_new(self, item: Item) -> bool:
        is_new = id(item) not in self._known
        self._known.add(id(item))
        return is_new

    def _missing(self, items: Iterable[Item]) -> list[Item]:
        """Those items that the second look has not found, with new places."""
        out = []
        for each in items:
            item = self._first.items[each.payload]
            if self._is_new(item) and not item.lost:
                self._items.all.append(item)
                out.append(replace(each, payload=len(self._items.all) - 1))
        return out

    def _sharding(self, first: ShardingState, second: ShardingState | None) -> ShardingState:
        present = [ShardState() for _ in first.shards] if second is None else second.shards
        shards = [
            ShardState([*self._missing_parts(shard.parts, {part.step for part in here.parts}), *here.parts])
            for shard, here in zip(first.shards, present, strict=True)
        ]
        next_step, num_dealt = first.next_step, first.num_dealt
        if second is not None:
            next_step, num_dealt = max(next_step, second.next_step), max(num_dealt, second.num_dealt)
        return ShardingState(first.plan, shards, next_step, num_dealt)

    def _missing_parts(self, parts: Iterable[Part], present: set[int]) -> list[Part]:
        return [replace(part, items=self._missing(part.items)) for part in parts if part.step not in present]


def _with_first(items: Sequence[Item], queue: QueueData) -> QueueData:
    """A queue with what has left it before what is there."""
    returned = sorted([*items, *queue.returned], key=_order)
    everything = [*returned, *queue.items]
    if len({item.order for item in everything}) == len(everything):
        return replace(queue, returned=returned)
    # It was empty and idle in between, and began to count anew.
    returned = [*items, *queue.returned]
    count = len(returned)
    flushed = queue.flushed and count + sum(item.order < queue.flushed for item in queue.items)
    return replace(
        queue,
        num_entered=count + len(queue.items),
        flushed=flushed,
        returned=[replace(item, order=order) for order, item in enumerate(returned)],
        items=[replace(item, order=order) for order, item in enumerate(queue.items, count)],
    )


def _order(item: Item) -> int:
    return item.order
