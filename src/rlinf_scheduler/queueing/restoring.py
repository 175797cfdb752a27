"""From records to a channel's queues that behave as those that the records were made of (see `snapshot.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.leases import BuriedItem, HeldItems, Leases
from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.operations import Client, Getter, Putter
from rlinf_scheduler.queueing.queue_name import as_name
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
)
from rlinf_scheduler.queueing.sharding import Part, Sharding, ShardPlan
from rlinf_scheduler.queueing.tap_queue import TapQueue
from rlinf_scheduler.queueing.wanted import LeaseTerms, Wanted, WantedGroup
from rlinf_scheduler.queueing.weights import exact, rounded


class Restorer:
    """Fills new queues with what records say.

    Args:
        payloads: of the items.
        leases: of the channel, without any yet.
        clients: those of the records, by name.
        taps: the subscriptions, by name.
    """

    def __init__(
        self,
        payloads: Sequence[Any],
        leases: Leases,
        clients: dict[str, Client[NamedQueue]],
        taps: dict[str, TapQueue],
    ) -> None:
        self._payloads = payloads
        self._leases = leases
        self._clients = clients
        self._taps = taps

    def item(self, record: ItemRecord, now: float) -> Item:
        """The item of a record."""
        item = Item(
            self._payloads[record.payload],
            record.weight,
            record.size_bytes,
            record.priority,
            as_name(record.group),
        )
        item.order, item.attempts, item.since = record.order, record.attempts, record.since or now
        item.question = None if record.question is None else (record.question[0], record.question[1])
        item.version, item.latest, item.shared = record.version, record.latest, record.shared
        item.origin = record.origin
        item.given_in = 0 if record.given else -1
        return item

    def fill(self, queue: NamedQueue, record: QueueRecord) -> None:
        """Fill a queue."""
        queue.flushed = record.flushed
        returned, rest = self._each(queue, record.returned), self._each(queue, record.items)
        if record.admission is not None:
            queue.begin_admission().load(record.admission, [*returned, *rest])
        queue.fifo.load(returned, rest, record.num_entered)
        for delivery in record.deliveries:
            self._deliver(queue, delivery)
        if record.sharding is not None:
            queue.sharding = self._sharding(queue, record.sharding)
        for get in record.getters:
            self._wait(queue, get)
        for put in record.putters:
            self._put(queue, put)
        queue.count()

    def arrange(self, record: ClientRecord) -> None:
        """Have a client's operations in order, all of which are there."""
        client = self._clients[record.name]
        operations = client.operations
        client.operations = {ticket: operations[ticket] for ticket in record.tickets}
        for ticket in record.parked:
            getter = operations[ticket]
            if isinstance(getter, Getter):
                client.parked[getter] = None

    def _each(self, queue: NamedQueue, records: Iterable[ItemRecord]) -> list[Item]:
        return [self.item(record, queue.tally.clock.now) for record in records]

    def _getter(self, queue: NamedQueue, record: GetRecord | DeliveryRecord) -> Getter[NamedQueue]:
        client = self._clients[record.client]
        getter = client.operations[record.ticket] = Getter(client, record.ticket, queue, None)
        getter.since = record.since
        return getter

    def _deliver(self, queue: NamedQueue, record: DeliveryRecord) -> None:
        items = self._each(queue, record.items)
        if queue.admission is not None:
            queue.admission.load_given(items)
        getter = None
        if record.client:
            getter = self._getter(queue, record)
            getter.items, getter.complete, getter.group = items, record.complete, as_name(record.group)
            getter.arrived = record.arrived
        if record.generation:
            lease = HeldItems(record.generation, queue, items)
            lease.items, lease.since = dict(zip(record.places, items, strict=True)), record.since
            self._leases.load(lease, getter, LeaseTerms(record.ttl_s, record.consumer))
        elif getter is not None and record.part is not None:
            getter.is_shard, getter.part = True, self._part(queue, record.part)
            getter.items = getter.part.items
        else:
            queue.delivering += 1
            queue.on_the_way += not record.arrived

    def _wait(self, queue: NamedQueue, record: GetRecord) -> None:
        getter = self._getter(queue, record)
        getter.terms, getter.ripens, getter.waited = record.terms, record.ripens, record.waited
        getter.number = record.number
        queue.tally.num_gets = max(queue.tally.num_gets, record.number)
        if record.group_size:
            getter.wanted = WantedGroup(record.group_size)
        elif record.limits is not None:
            weight = None if record.weight is None else exact(record.weight)
            getter.wanted = Wanted(weight, record.limits)
        if queue.sharding is not None and record.shard >= 0:
            getter.is_shard = True
            queue.sharding.wait(getter, record.shard)
        else:
            (queue.parked if record.parked else queue.getters)[getter] = None
            if getter.terms is not None and not record.parked:
                getter.client.lines_up(getter)

    def _put(self, queue: NamedQueue, record: PutRecord) -> None:
        client, item = self._clients[record.client], self.item(record.item, queue.tally.clock.now)
        if queue.admission is not None:
            item.slot = queue.admission.making[record.slot]
            item.slot.is_used = True
        putter = Putter(client, record.ticket, queue, item, complete=record.complete)
        putter.since = record.since
        queue.load_put(putter, has_room=record.has_room)

    def _sharding(self, queue: NamedQueue, record: ShardingRecord) -> Sharding[Getter[NamedQueue]]:
        sharding: Sharding[Getter[NamedQueue]] = Sharding(_as_plan(record.plan))
        shards: list[tuple[list[Part], Getter[NamedQueue] | None]] = []
        for records in record.shards:
            parts, holder = [self._part(queue, part) for part in records], None
            if records and records[0].client:
                holder = self._holder(queue, records[0])
                # What it was sent is what it has in hand.
                parts[0] = holder.part or parts[0]
            shards.append((parts, holder))
        sharding.load(record.next_step, record.num_dealt, shards)
        return sharding

    def _holder(self, queue: NamedQueue, record: PartRecord) -> Getter[NamedQueue]:
        client = self._clients.get(record.client) or Client(record.client)
        operation = client.operations.get(record.ticket)
        return operation if isinstance(operation, Getter) else Getter(client, record.ticket, queue, None)

    def _part(self, queue: NamedQueue, record: PartRecord) -> Part:
        items = self._each(queue, record.items)
        weight = rounded(sum(item.weight for item in items))
        return Part(record.step, items, weight, record.imbalance, record.complete)

    def bury(self, queue: NamedQueue, record: DeadRecord) -> None:
        """Have a dead letter again."""
        item = self.item(record.item, queue.tally.clock.now)
        letter = BuriedItem(record.number, queue, item, record.attempts, record.reason, record.consumer)
        self._leases.load_dead(letter)


def _as_plan(plan: ShardPlan) -> ShardPlan:
    """The plan as it was before it travelled."""
    linear, quadratic = plan.cost
    table = tuple((weight, cost) for weight, cost in plan.cost_table)
    return plan._replace(cost=(linear, quadratic), cost_table=table)
