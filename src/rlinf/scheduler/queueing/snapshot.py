"""From a channel's queues to records of them, and back; and what was there from one look at a channel to another.

A snapshot leaves out who waits: gets, and puts that were not accepted, are asked for again by those who wait; so is a
shard's part that was delivered, which stays with its shard. Else queues that are made of it behave as those that it was
made of. One *at rest* leaves out the clients, too: what they had and did not say that they are done with is in the
queues again, at its old place, and with as many attempts; what was to come back after a delay is back; questions are
gone, for whoever asked does not wait any more, and so is what is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rlinf.scheduler.queueing.admission import Admission
from rlinf.scheduler.queueing.item import Item
from rlinf.scheduler.queueing.leases import BuriedItem, HeldItems, Leases
from rlinf.scheduler.queueing.named_queue import Client, Getter, NamedQueue
from rlinf.scheduler.queueing.queue_name import QueueName
from rlinf.scheduler.queueing.records import (
    DeadRecord,
    DeliveryRecord,
    ItemRecord,
    PartRecord,
    QueueRecord,
    ShardingRecord,
    StateRecord,
    as_name,
)
from rlinf.scheduler.queueing.sharding import Part, Sharding, ShardPlan
from rlinf.scheduler.queueing.wanted import LeaseTerms
from rlinf.scheduler.queueing.weights import rounded


class Snapshot(NamedTuple):
    """A record of queues, and what it speaks of.

    Attributes:
        record: the record.
        items: `items[n].payload` belongs to the `ItemRecord` whose `payload` is n.
        sent: of these, what has been delivered, not on lease, and not confirmed, by delivery.
        entered: what entered since then, and where, as long as this is watched (see `ChannelState.watch`).
    """

    record: StateRecord
    items: list[Item]
    sent: list[list[Item]]
    entered: list[tuple[QueueName, Item]]


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
        self.sent: list[list[Item]] = []
        self.num_lost = self.lost_bytes = 0

    def item(self, item: Item, *, given: bool = False) -> ItemRecord:
        """The record of an item; `given` to the present version."""
        self.items.append(item)
        return ItemRecord(
            len(self.items) - 1,
            item.order,
            rounded(item.weight),
            item.size_bytes,
            item.priority,
            item.group,
            item.attempts,
            item.question,
            item.version,
            item.latest,
            not self._at_rest and given,
        )

    def each(self, items: Iterable[Item], admission: Admission | None = None) -> list[ItemRecord]:
        """The records of items."""
        if self._at_rest:
            items = list(items)
            lost = [item.size_bytes for item in items if item.lost]
            self.num_lost += len(lost)
            self.lost_bytes += sum(lost)
            return [self.item(item) for item in items if item.question is None and not item.lost]
        return [self.item(item, given=admission is not None and admission.is_lent(item)) for item in items]

    def dead(self, letters: Iterable[BuriedItem]) -> list[DeadRecord]:
        """The records of dead letters."""
        out = []
        for letter in letters:
            for item in self.each([letter.item]):
                about = letter.attempts, letter.reason, letter.consumer
                out.append(DeadRecord(letter.number, letter.queue.name, item, *about))
        return out

    def queue(
        self, queue: NamedQueue, deliveries: Iterable[Getter], leases: Iterable[HeldItems]
    ) -> QueueRecord:
        """The record of a queue, of which this is in delivery, and this on lease."""
        # Parts stay with their shards.
        deliveries = [getter for getter in deliveries if not getter.is_shard]
        returned, rest, passes = queue.fifo.contents()
        held: list[DeliveryRecord] = []
        self.sent += [getter.items or [] for getter in deliveries]
        admission = None if queue.admission is None else queue.admission.contents()
        if self._at_rest:
            returned += [item for getter in deliveries for item in getter.items or ()]
            returned += [item for lease in leases for item in lease.items.values()]
            if queue.admission is not None and admission is not None:
                num_lent = sum(queue.admission.is_lent(item) for item in returned)
                admission = admission._replace(num_given=admission.num_given - num_lent, slots=[])
            returned.sort(key=_order)
        else:
            held = [self._delivery(getter) for getter in deliveries]
            held += [self._lease(lease) for lease in leases]
        sharding = None if queue.sharding is None else self._sharding(queue.sharding)
        num_entered, flushed = queue.fifo.num_entered, queue.flushed
        returned_records, rest_records = self.each(returned), self.each(rest)
        return QueueRecord(
            queue.name,
            num_entered,
            flushed,
            returned_records,
            rest_records,
            passes,
            held,
            sharding,
            admission,
        )

    def _delivery(self, getter: Getter) -> DeliveryRecord:
        items = self.each(getter.items or (), getter.queue.admission)
        client, ticket = getter.client.name, getter.ticket
        return DeliveryRecord(client, ticket, items, getter.complete, getter.group, getter.arrived)

    def _lease(self, lease: HeldItems) -> DeliveryRecord:
        complete, arrived = (
            (True, True) if lease.getter is None else (lease.getter.complete, lease.getter.arrived)
        )
        items, places = self.each(lease.items.values(), lease.queue.admission), list(lease.items)
        ttl_s, consumer = lease.terms
        group = None if lease.getter is None else lease.getter.group
        return DeliveryRecord(
            *lease.owner, items, complete, group, arrived, lease.generation, places, ttl_s, consumer
        )

    def _sharding(self, sharding: Sharding[Getter]) -> ShardingRecord:
        next_step, num_dealt, shards = sharding.contents()
        parts = [
            [
                PartRecord(part.step, self.each(part.items), part.imbalance, part.complete)
                for part in its_parts
            ]
            for its_parts in shards
        ]
        return ShardingRecord(sharding.plan, next_step, num_dealt, parts)


class Restorer:
    """Fills new queues with what records say.

    Args:
        payloads: of the items.
        leases: of the channel, without any yet.
    """

    def __init__(self, payloads: Sequence[Any], leases: Leases) -> None:
        self._payloads = payloads
        self._leases = leases

    def item(self, record: ItemRecord, since: float) -> Item:
        """The item of a record."""
        item = Item(
            self._payloads[record.payload],
            record.weight,
            record.size_bytes,
            record.priority,
            as_name(record.group),
        )
        item.order, item.attempts, item.since = record.order, record.attempts, since
        item.question = None if record.question is None else (record.question[0], record.question[1])
        item.version, item.latest = record.version, record.latest
        item.given_in = 0 if record.given else -1
        return item

    def fill(self, queue: NamedQueue, record: QueueRecord, clients: dict[str, Client]) -> None:
        """Fill a queue, whose clients become known."""
        queue.flushed = record.flushed
        returned, rest = self._each(queue, record.returned), self._each(queue, record.items)
        if record.admission is not None:
            queue.begin_admission().load(record.admission, [*returned, *rest])
        queue.fifo.load(returned, rest, record.passes, record.num_entered)
        for delivery in record.deliveries:
            self._deliver(queue, delivery, clients)
        if record.sharding is not None:
            queue.sharding = self._sharding(queue, record.sharding)

    def _each(self, queue: NamedQueue, records: Iterable[ItemRecord]) -> list[Item]:
        return [self.item(record, queue.tally.now) for record in records]

    def _deliver(self, queue: NamedQueue, record: DeliveryRecord, clients: dict[str, Client]) -> None:
        items = self._each(queue, record.items)
        if queue.admission is not None:
            queue.admission.load_given(items)
        getter = None
        if record.client:
            client = clients.setdefault(record.client, Client(record.client))
            getter = client.operations[record.ticket] = Getter(client, record.ticket, queue, None)
            getter.items, getter.complete, getter.group = items, record.complete, as_name(record.group)
            getter.arrived = record.arrived
        if record.generation:
            lease = HeldItems(record.generation, queue, items)
            lease.items = dict(zip(record.places, items, strict=True))
            self._leases.load(lease, getter, LeaseTerms(record.ttl_s, record.consumer))
        else:
            queue.delivering += 1
            queue.on_the_way += not record.arrived

    def _sharding(self, queue: NamedQueue, record: ShardingRecord) -> Sharding[Getter]:
        sharding: Sharding[Getter] = Sharding(_as_plan(record.plan))
        shards = [[self._part(queue, part) for part in parts] for parts in record.shards]
        sharding.load(record.next_step, record.num_dealt, shards)
        return sharding

    def _part(self, queue: NamedQueue, record: PartRecord) -> Part:
        items = self._each(queue, record.items)
        weight = rounded(sum(item.weight for item in items))
        return Part(record.step, items, weight, record.imbalance, record.complete)

    def bury(self, queue: NamedQueue, record: DeadRecord) -> None:
        """Have a dead letter again."""
        item = self.item(record.item, queue.tally.now)
        letter = BuriedItem(record.number, queue, item, record.attempts, record.reason, record.consumer)
        self._leases.load_dead(letter)


def merged(first: Snapshot, second: Snapshot) -> Snapshot:
    """What a channel held at any moment from a first look, which was watched, to a second one; both at rest.

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
            missing = self._missing([*queue.returned, *queue.items])
            there = queues.get(queue.name) or QueueRecord(queue.name, queue.num_entered, 0, [], [])
            if queue.sharding is not None:
                there = there._replace(sharding=self._sharding(queue.sharding, there.sharding))
            if queue.admission is not None:
                # With what was there first, the version is the one of then.
                there = there._replace(admission=queue.admission)
            queues[queue.name] = _with_first(missing, there)
        dead = [letter._replace(item=item) for letter in first.dead for item in self._missing([letter.item])]
        # What has both come and gone; all that was there first is known by now.
        passed: dict[QueueName, list[ItemRecord]] = {}
        for name, item in self._first.entered:
            # Questions, and what is lost, are not at rest.
            for each in self._recorder.each([item] if self._is_new(item) else []):
                passed.setdefault(name, []).append(each)
        for name, records in passed.items():
            there = queues.get(name) or QueueRecord(name, records[-1].order + 1, 0, [], [])
            queues[name] = _with_first(records, there)
        record = second._replace(queues=list(queues.values()), dead=[*dead, *second.dead])
        return Snapshot(record, self._recorder.items, [], [])

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


def _as_plan(plan: ShardPlan) -> ShardPlan:
    """The plan as it was before it travelled."""
    linear, quadratic = plan.cost
    table = tuple((weight, cost) for weight, cost in plan.cost_table)
    return plan._replace(cost=(linear, quadratic), cost_table=table)


def _order(item: Item | ItemRecord) -> int:
    return item.order
