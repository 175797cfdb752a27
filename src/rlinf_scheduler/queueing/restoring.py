"""From data to a channel's queues that behave as those that it was made of (see `snapshot.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rlinf_scheduler.queueing.admission import Admissions
from rlinf_scheduler.queueing.item import Item, as_name
from rlinf_scheduler.queueing.leases import BuriedItem, Leases, LeaseState
from rlinf_scheduler.queueing.operations import Client, Getter, Putter
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.sharding import PartGetter, ShardingState, ShardState
from rlinf_scheduler.queueing.snapshot import ChannelData, ClientData, QueueData
from rlinf_scheduler.queueing.taps import Taps, TapTerms


class Restorer:
    """Puts what data says in its places: ids become clients, queues and payloads again.

    Args:
        queues: of a channel, without any yet.
        policy: returns what is kept of a policy, nothing yet.
        payloads: of the items.
    """

    def __init__(self, queues: QueueSet, policy: Callable[[type[Any]], Any], payloads: Sequence[Any]) -> None:
        self._queues = queues
        self._leases: Leases = policy(Leases)
        self._admissions: Admissions = policy(Admissions)
        self._taps: Taps = policy(Taps)
        self._payloads = payloads
        self._now = 0.0
        # An item of the queue that is filled is a question.
        self._has_questions = False

    def restore(self, data: ChannelData) -> None:
        """Hold all of it."""
        known, tally = self._queues, self._queues.tally
        known.closed, known.all_ended = data.closed, data.all_ended
        known.ended = dict.fromkeys(as_name(name) for name in data.ended)
        known.last_number, self._taps.num_vacancies = data.last_number, data.num_vacancies
        tally.num_items, tally.size_bytes = data.num_accepted, data.accepted_bytes
        tally.num_lost, tally.lost_bytes = data.num_lost, data.lost_bytes
        tally.clock.now = self._now = data.now or tally.clock.now
        known.clients = {client.name: Client(client.name) for client in data.clients}
        # Queues see subscriptions, and subscriptions queues.
        queues = [self._queue(each) for each in data.queues]
        for queue, each in zip(queues, data.queues, strict=True):
            self._fill(queue, each)
        for client in data.clients:
            self._arrange(client)
        for letter in data.dead:
            self._bury(letter)
        self._leases.arrange(data.why_over)
        for queue in queues:
            known.drop_if_idle(queue)
        for name in data.crowded:
            queue = known.make(as_name(name))
            queue.gate.leave_line(queue)
            queue.gate.wait_for_room(queue)
        admitting = (known.find(as_name(name)) for name in data.admitting)
        self._admissions.arrange(queue for queue in admitting if queue is not None)

    def _queue(self, data: QueueData) -> Queue:
        """The queue of some data, still empty."""
        name = as_name(data.name)
        if data.terms is None or data.membership is None:
            return self._queues.make(name)
        queue_name, *bounds = data.terms
        tap = self._taps.make(name.subscription, TapTerms(as_name(queue_name), *bounds))
        tap.read = data.membership
        if tap.read.removed:
            tap.remove()
        else:
            self._taps.begin(tap)
        return tap

    def _fill(self, queue: Queue, data: QueueData) -> None:
        queue.flushed, self._has_questions = data.flushed, False
        returned, rest = self._each(data.returned), self._each(data.items)
        if data.versions is not None:
            gate = self._admissions.begin(queue)
            gate.load(data.versions)
            sent = [item for getter in data.sent for item in getter.items or ()]
            lent = [item for lease in data.leases for item in lease.items.values()]
            gate.load_items([*returned, *rest, *sent, *lent])
        queue.fifo.load(returned, rest, data.num_entered)
        for getter in data.sent:
            self._send(queue, getter)
        for lease in data.leases:
            self._lease(queue, lease)
        if data.sharding is not None:
            queue.decide_by(parts=self._sharding(queue, data.sharding))
        for getter in data.waiting:
            self._wait(queue, getter)
        for getter in data.skipped:
            self._wait(queue, getter)
            getter.skip()
        for putter in data.putters:
            self._put(queue, putter)
        if self._has_questions:
            self._queues.note_asked(queue.name)
        queue.count()

    def _item(self, item: Item) -> Item:
        item.payload = self._payloads[item.payload]
        item.group = as_name(item.group)
        item.since = item.since or self._now
        self._has_questions = self._has_questions or item.question is not None
        return item

    def _each(self, items: Iterable[Item]) -> list[Item]:
        return [self._item(item) for item in items]

    def _know(self, queue: Queue, operation: Getter | Putter) -> None:
        """Let an operation be one of its client's."""
        client = operation.client = self._queues.clients[operation.client]
        operation.queue = queue
        client.operations[operation.ticket] = operation

    def _send(self, queue: Queue, getter: Getter) -> None:
        self._know(queue, getter)
        getter.group = as_name(getter.group)
        getter.items = self._each(getter.items or ())
        if isinstance(getter, PartGetter) and getter.part is not None:
            getter.items = self._each(getter.part.items)
        if getter.counts:
            queue.delivering += 1
            queue.on_the_way += not getter.arrived

    def _lease(self, queue: Queue, lease: LeaseState) -> None:
        lease.queue, items = queue, lease.items
        self._each(items.values())
        if lease.getter is not None:
            client, ticket = lease.getter
            lease.getter = self._queues.operation(client, ticket)
            lease.getter.items = list(items.values())
        self._leases.load(lease)

    def _wait(self, queue: Queue, getter: Getter) -> None:
        self._know(queue, getter)
        queue.tally.num_gets = max(queue.tally.num_gets, getter.number)
        if isinstance(getter, PartGetter):
            sharding = queue.parts
            if isinstance(sharding, ShardingState):
                sharding.shards[getter.shard].waiting = getter
        else:
            getter.line_up()

    def _put(self, queue: Queue, putter: Putter) -> None:
        self._know(queue, putter)
        self._item(putter.item)
        queue.load_put(putter, has_room=putter.has_room)

    def _sharding(self, queue: Queue, sharding: ShardingState) -> ShardingState:
        for shard in sharding.shards:
            for part in (*shard.parts, *filter(None, (shard.in_hand,))):
                self._each(part.items)
            if shard.holder is not None:
                self._hold(queue, shard)
        return sharding

    def _hold(self, queue: Queue, shard: ShardState) -> None:
        """Let somebody have the part of a shard in hand: what it was sent, if it is there still."""
        name, ticket = shard.holder
        holder = self._queues.operation(name, ticket)
        if isinstance(holder, PartGetter) and holder.part is not None:
            shard.in_hand = holder.part
        else:
            holder = PartGetter(self._queues.clients.get(name) or Client(name), ticket, queue)
        shard.holder = holder

    def _arrange(self, data: ClientData) -> None:
        """Have a client's operations in order, all of which are there; some are skipped."""
        client = self._queues.clients[data.name]
        operations = client.operations
        client.operations = {ticket: operations[ticket] for ticket in data.tickets}
        if data.skipped:
            self._leases.arrange_skipped(data.name, [operations[ticket] for ticket in data.skipped])

    def _bury(self, letter: BuriedItem) -> None:
        letter.queue = self._queues.make(as_name(letter.queue))
        self._item(letter.item)
        self._leases.load_dead(letter)
