"""From a channel's queues to records of them; and what was there from one look at a channel to another.

Queues that are made of a record behave as those that it was made of, whatever comes; their clients, and what these wait
for, are there again. One *at rest* leaves out the clients: what they had and did not say that they are done with is in
the queues again, at its old place, and with as many attempts; what was to come back after a delay is back;
subscriptions are without members; questions are gone, for whoever asked does not wait any more, and so is what is lost.
A record that is not at rest is of a channel that loses nothing, as it has all bytes itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rlinf_scheduler.queueing.admission import Admission
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.leases import BuriedItem, HeldItems
from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.operations import Client, Getter, Putter
from rlinf_scheduler.queueing.queue_name import QueueName, Tapped
from rlinf_scheduler.queueing.records import (
    ClientRecord,
    DeadRecord,
    DeliveryRecord,
    GetRecord,
    ItemRecord,
    PartRecord,
    PutRecord,
    QueueRecord,
    ShardingRecord,
    StateRecord,
)
from rlinf_scheduler.queueing.sharding import Part, Sharding
from rlinf_scheduler.queueing.tap_queue import TapQueue
from rlinf_scheduler.queueing.wanted import WantedGroup
from rlinf_scheduler.queueing.weights import rounded

# So many items are written down at a time: few enough for the garbage collector not to begin for them.
CHUNK = 200


@dataclass(eq=False)
class Snapshot:
    """A record of queues, and what it speaks of.

    What never left its queue does not change. So it is only noted at first, and written down when the record is asked
    for, in any thread, while the queues go on.

    Attributes:
        state: the record without what never left its queue.
        items: `items[n].payload` belongs to the `ItemRecord` whose `payload` is n.
        at_rest: without clients.
        rest: of the items, what never left each of the queues and is not in the record.
        sent: what has been delivered, not on lease, and not confirmed, by delivery.
        entered: what entered since then, and where, as long as this is watched (see `ChannelState.watch`).
    """

    state: StateRecord
    items: list[Item]
    at_rest: bool
    rest: Sequence[range] = ()
    sent: list[list[Item]] = field(default_factory=list)
    entered: list[tuple[QueueName, Item]] = field(default_factory=list)

    @cached_property
    def record(self) -> StateRecord:
        """The record."""
        return with_rest(self.state, self.rest_records())

    def rest_records(self) -> Iterator[tuple[int, list[ItemRecord]]]:
        """Yield the items that never left, a few at a time: the queue's number, and records in order."""
        items, at_rest = self.items, self.at_rest
        for number, places in enumerate(self.rest):
            for begin in range(places.start, places.stop, CHUNK):
                some = range(begin, min(begin + CHUNK, places.stop))
                yield number, [_record(items[n], n, 0, given=False, at_rest=at_rest) for n in some]


def with_rest(state: StateRecord, rest: Iterable[tuple[int, list[ItemRecord]]]) -> StateRecord:
    """A record of queues with what never left them; see `Snapshot.rest_records`."""
    items = [list(queue.items) for queue in state.queues]
    for number, records in rest:
        items[number] += records
    queues = [queue._replace(items=its) for queue, its in zip(state.queues, items, strict=True)]
    return state._replace(queues=queues)


def _record(item: Item, place: int, attempts: int, *, given: bool, at_rest: bool) -> ItemRecord:
    return ItemRecord(
        place,
        item.order,
        rounded(item.weight),
        item.size_bytes,
        item.priority,
        item.group,
        attempts,
        item.question,
        item.version,
        item.latest,
        given,
        0.0 if at_rest else item.since,
        item.shared,
        item.origin,
    )


class Recorder:
    """Makes records of queues, and gathers their items.

    Args:
        at_rest: without clients.

    Attributes:
        num_lost: what was left out because it is lost, and was not counted as such yet; lost_bytes: its size.
    """

    def __init__(self, *, at_rest: bool) -> None:
        self._at_rest = at_rest
        self.items: list[Item] = []
        self.rest: list[range] = []
        self.sent: list[list[Item]] = []
        self.num_lost = self.lost_bytes = 0
        # What subscriptions see is counted where it was put.
        self._counts_lost = True

    def item(self, item: Item, *, given: bool = False) -> ItemRecord:
        """The record of an item; `given` to the present version."""
        self.items.append(item)
        place = len(self.items) - 1
        return _record(item, place, item.attempts, given=given, at_rest=self._at_rest)

    def each(self, items: Iterable[Item], admission: Admission | None = None) -> list[ItemRecord]:
        """The records of items; `admission` of a queue that has given them."""
        if self._at_rest:
            return [self.item(item) for item in self._resting(items)]
        return [self.item(item, given=admission is not None and admission.is_lent(item)) for item in items]

    def _resting(self, items: Iterable[Item]) -> list[Item]:
        """Of these, what is at rest."""
        items = list(items)
        if self._counts_lost:
            lost = [item.size_bytes for item in items if item.lost]
            self.num_lost += len(lost)
            self.lost_bytes += sum(lost)
        return [item for item in items if item.question is None and not item.lost]

    def dead(self, letters: Iterable[BuriedItem]) -> list[DeadRecord]:
        """The records of dead letters."""
        out = []
        for letter in letters:
            self._counts_lost = not isinstance(letter.queue, TapQueue)
            for item in self.each([letter.item]):
                about = letter.attempts, letter.reason, letter.consumer
                out.append(DeadRecord(letter.number, letter.queue.name, item, *about))
        return out

    def queue(
        self, queue: NamedQueue, deliveries: Sequence[Getter[NamedQueue]], leases: Sequence[HeldItems]
    ) -> QueueRecord:
        """The record of a queue, of which this is in delivery, and this on lease."""
        self._counts_lost = not isinstance(queue, TapQueue)
        returned, rest = queue.fifo.contents()
        sharding = None if queue.sharding is None else self._sharding(queue.sharding)
        admission = None if queue.admission is None else queue.admission.contents()
        if self._at_rest:
            # Parts stay with their shards.
            sent = [getter.items or [] for getter in deliveries if not getter.is_shard]
            self.sent += sent
            returned += [item for items in sent for item in items]
            returned += [item for lease in leases for item in lease.items.values()]
            returned.sort(key=_order)
            if queue.admission is not None and admission is not None:
                num_lent = sum(queue.admission.is_lent(item) for item in returned)
                num_given = admission.num_given - num_lent
                admission = admission._replace(num_given=num_given, slots=[], asking=[], moving=[])
        begin = len(self.items)
        self.items += self._resting(rest) if self._at_rest else rest
        self.rest.append(range(begin, len(self.items)))
        about = queue.name, queue.fifo.num_entered, queue.flushed
        record = QueueRecord(*about, self.each(returned), [], None, [], sharding, admission)
        if isinstance(queue, TapQueue):
            record = record._replace(tap=queue.record(at_rest=self._at_rest))
        return record if self._at_rest else self._with_clients(record, queue, deliveries, leases)

    def _with_clients(
        self,
        record: QueueRecord,
        queue: NamedQueue,
        deliveries: Iterable[Getter[NamedQueue]],
        leases: Iterable[HeldItems],
    ) -> QueueRecord:
        lines = deliveries, leases, queue.getters, queue.parked, queue.putters, queue.streams
        if not any(lines) and queue.sharding is None:
            return record  # as most are, where there are many
        getters = [
            *map(_get, queue.getters),
            *(_get(getter)._replace(parked=True) for getter in queue.parked),
        ]
        if queue.sharding is not None:
            shards = queue.sharding
            getters += [_get(each)._replace(shard=shards.shard_of(each)) for each in shards.getters]
        with_room = (putter for stream in queue.streams.values() for putter in stream)
        return record._replace(
            deliveries=[*map(self._delivery, deliveries), *map(self._lease, leases)],
            getters=getters,
            putters=[self._put(putter) for putter in (*with_room, *queue.putters)],
        )

    def _delivery(self, getter: Getter[NamedQueue]) -> DeliveryRecord:
        part = None if getter.part is None else self._part(getter.part)
        items = [] if part is not None else self.each(getter.items or (), getter.queue.admission)
        about = getter.complete, getter.group, getter.arrived
        record = DeliveryRecord(getter.client.name, getter.ticket, items, *about)
        return record._replace(part=part, since=getter.since)

    def _lease(self, lease: HeldItems) -> DeliveryRecord:
        complete, arrived = (
            (True, True) if lease.getter is None else (lease.getter.complete, lease.getter.arrived)
        )
        items, places = self.each(lease.items.values(), lease.queue.admission), list(lease.items)
        ttl_s, consumer = lease.terms
        group = None if lease.getter is None else lease.getter.group
        record = DeliveryRecord(
            *lease.owner, items, complete, group, arrived, lease.generation, places, ttl_s, consumer
        )
        return record._replace(since=lease.since)

    def _put(self, putter: Putter[NamedQueue]) -> PutRecord:
        item, slot = putter.item, putter.item.slot
        about = putter.complete, putter.has_room, 0 if slot is None else slot.number
        return PutRecord(putter.client.name, putter.ticket, putter.since, self.item(item), *about)

    def _sharding(self, sharding: Sharding[Getter[NamedQueue]]) -> ShardingRecord:
        next_step, num_dealt, shards = sharding.contents()
        records = []
        for parts, holder in shards:
            its_parts = [self._part(part) for part in parts]
            if holder is not None and not self._at_rest:
                its_parts[0] = its_parts[0]._replace(client=holder.client.name, ticket=holder.ticket)
            records.append(its_parts)
        return ShardingRecord(sharding.plan, next_step, num_dealt, records)

    def _part(self, part: Part) -> PartRecord:
        return PartRecord(part.step, self.each(part.items), part.imbalance, part.complete)


def _get(getter: Getter[NamedQueue]) -> GetRecord:
    record = GetRecord(getter.client.name, getter.ticket, getter.since)
    if isinstance(getter.wanted, WantedGroup):
        record = record._replace(group_size=getter.wanted.size)
    elif getter.wanted is not None:
        weight, limits = getter.wanted
        record = record._replace(weight=None if weight is None else rounded(weight), limits=limits)
    return record._replace(
        terms=getter.terms, ripens=getter.ripens, waited=getter.waited, number=getter.number
    )


def record_of(client: Client[NamedQueue]) -> ClientRecord:
    """The record of a client."""
    return ClientRecord(client.name, list(client.operations), [getter.ticket for getter in client.parked])


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
        self._recorder = Recorder(at_rest=True)
        self._recorder.items = list(second.items)

    def merge(self) -> Snapshot:
        first, second = self._first.record, self._second.record
        queues = {queue.name: queue for queue in second.queues}
        for queue in first.queues:
            if self._is_over(queue.name, queues):
                continue
            missing = self._missing([*queue.returned, *queue.items])
            there = queues.get(queue.name) or QueueRecord(queue.name, queue.num_entered, 0, [], [])
            if queue.sharding is not None:
                there = there._replace(sharding=self._sharding(queue.sharding, there.sharding))
            if queue.admission is not None:
                # With what was there first, the version is the one of then.
                there = there._replace(admission=queue.admission)
            queues[queue.name] = _with_first(missing, there)
        dead = [
            letter._replace(item=item)
            for letter in first.dead
            if not self._is_over(letter.queue, queues)
            for item in self._missing([letter.item])
        ]
        # What has both come and gone; all that was there first is known by now.
        passed: dict[QueueName, list[ItemRecord]] = {}
        for name, item in self._first.entered:
            # Questions, and what is lost, are not at rest.
            is_missing = not self._is_over(name, queues) and self._is_new(item)
            for each in self._recorder.each([item] if is_missing else []):
                passed.setdefault(name, []).append(each)
        for name, records in passed.items():
            there = queues.get(name) or QueueRecord(name, records[-1].order + 1, 0, [], [])
            queues[name] = _with_first(records, there)
        record = second._replace(queues=list(queues.values()), dead=[*dead, *second.dead])
        return Snapshot(record, self._recorder.items, at_rest=True)

    def _is_over(self, name: QueueName, present: Collection[QueueName]) -> bool:
        """Whether that is a subscription which nobody reads any more."""
        return type(name) is Tapped and name not in present

    def _is_new(self, item: Item) -> bool:
        is_new = id(item) not in self._known
        self._known.add(id(item))
        return is_new

    def _missing(self, records: Iterable[ItemRecord]) -> list[ItemRecord]:
        """The records of those items that the second look has not found, with new places."""
        out = []
        for record in records:
            item = self._first.items[record.payload]
            if self._is_new(item) and not item.lost:
                self._recorder.items.append(item)
                out.append(record._replace(payload=len(self._recorder.items) - 1))
        return out

    def _sharding(self, first: ShardingRecord, second: ShardingRecord | None) -> ShardingRecord:
        present = [[]] * len(first.shards) if second is None else second.shards
        shards = [
            [*self._missing_parts(parts, {part.step for part in here}), *here]
            for parts, here in zip(first.shards, present, strict=True)
        ]
        next_step, num_dealt = first.next_step, first.num_dealt
        if second is not None:
            next_step, num_dealt = max(next_step, second.next_step), max(num_dealt, second.num_dealt)
        return ShardingRecord(first.plan, next_step, num_dealt, shards)

    def _missing_parts(self, parts: Iterable[PartRecord], present: set[int]) -> list[PartRecord]:
        return [part._replace(items=self._missing(part.items)) for part in parts if part.step not in present]


def _with_first(records: Sequence[ItemRecord], queue: QueueRecord) -> QueueRecord:
    """A queue with what has left it before what is there."""
    returned = sorted([*records, *queue.returned], key=_order)
    everything = [*returned, *queue.items]
    if len({record.order for record in everything}) == len(everything):
        return queue._replace(returned=returned)
    # It was empty and idle in between, and began to count anew.
    returned = [*records, *queue.returned]
    count = len(returned)
    flushed = queue.flushed and count + sum(record.order < queue.flushed for record in queue.items)
    return queue._replace(
        num_entered=count + len(queue.items),
        flushed=flushed,
        returned=[record._replace(order=order) for order, record in enumerate(returned)],
        items=[record._replace(order=order) for order, record in enumerate(queue.items, count)],
    )


def _order(item: Item | ItemRecord) -> int:
    return item.order
