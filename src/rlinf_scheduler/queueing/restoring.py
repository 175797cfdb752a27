"""From data to a channel's queues that behave as those that it was made of (see `snapshot.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf_scheduler.queueing.instructions import Instruction, Ripen
from rlinf_scheduler.queueing.item import as_name
from rlinf_scheduler.queueing.operations import Client, Getter, Putter
from rlinf_scheduler.queueing.policies import ChannelData, ClientData, QueueData
from rlinf_scheduler.queueing.policy import Policy
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.saved_items import LoadedItems
from rlinf_scheduler.queueing.wanted import Wanted


class Restorer:
    """Puts what data says in its places: ids become clients, queues and payloads again.

    Args:
        queues: of a channel, without any yet.
        policies: what is kept of each policy, nothing yet.
        payloads: of the items.
    """

    def __init__(self, queues: QueueSet, policies: Sequence[Policy], payloads: Sequence[Any]) -> None:
        self._queues = queues
        self._policies = policies
        self._payloads = payloads

    def restore(self, data: ChannelData) -> None:
        """Hold all of it."""
        known, tally = self._queues, self._queues.tally
        known.closed, known.all_ended = data.closed, data.all_ended
        known.ended = dict.fromkeys(as_name(name) for name in data.ended)
        known.last_number = data.last_number
        tally.num_items, tally.size_bytes = data.num_accepted, data.accepted_bytes
        tally.num_lost, tally.lost_bytes = data.num_lost, data.lost_bytes
        tally.clock.now = data.now or tally.clock.now
        known.clients = {client.name: Client(client.name) for client in data.clients}
        items = LoadedItems(self._payloads, tally.clock.now, known.note_asked)
        # Queues see subscriptions, and subscriptions queues.
        pairs = [(self._queue(each), each) for each in data.queues]
        for queue, each in pairs:
            self._fill(queue, each, items)
        for policy in self._policies:
            policy.load(pairs, items)
        for queue, each in pairs:
            self._line_up(queue, each, items)
        for client in data.clients:
            self._arrange(client)
        for policy in self._policies:
            policy.arrange(data, items)
        for queue, _ in pairs:
            known.drop_if_idle(queue)
        for name in data.crowded:
            queue = known.make(as_name(name))
            queue.gate.leave_line(queue)
            queue.gate.wait_for_room(queue)

    def _queue(self, data: QueueData) -> Queue:
        """The queue of some data, still empty."""
        name = as_name(data.name)
        made = [policy.remake(name, data) for policy in self._policies]
        return next((queue for queue in made if queue is not None), None) or self._queues.make(name)

    def _fill(self, queue: Queue, data: QueueData, items: LoadedItems) -> None:
        """Have the items that are here, and those in delivery."""
        queue.flushed = data.flushed
        returned, rest = items.each(queue.name, data.returned), items.each(queue.name, data.items)
        queue.fifo.load(returned, rest, data.num_entered)
        for getter in data.sent:
            self._know(queue, getter)
            getter.load(items)
            if getter.counts:
                queue.delivering += 1
                queue.on_the_way += not getter.arrived

    def _line_up(self, queue: Queue, data: QueueData, items: LoadedItems) -> None:
        """Have those who wait."""
        for getter in (*data.waiting, *data.skipped):
            self._know(queue, getter)
            queue.tally.num_gets = max(queue.tally.num_gets, getter.number)
            getter.line_up()
        for getter in data.skipped:
            getter.skip()
        for putter in data.putters:
            self._know(queue, putter)
            items.item(queue.name, putter.item)
            queue.load_put(putter, has_room=putter.has_room)
        queue.count()

    def _know(self, queue: Queue, operation: Getter | Putter) -> None:
        """Let an operation be one of its client's."""
        client = operation.client = self._queues.clients[operation.client]
        operation.queue = queue
        client.operations[operation.ticket] = operation

    def _arrange(self, data: ClientData) -> None:
        """Have a client's operations in order, all of which are there."""
        client = self._queues.clients[data.name]
        operations = client.operations
        client.operations = {ticket: operations[ticket] for ticket in data.tickets}


def ripening(queues: QueueSet) -> list[Instruction]:
    """Return the instructions for a shell that takes this state over: the waits of its batches begin again."""
    return [
        Ripen(client.name, getter.ticket, getter.wanted.limits.max_wait_s or 0.0)
        for client in queues.clients.values()
        for getter in client.operations.values()
        if isinstance(getter, Getter) and getter.items is None and getter.ripens and not getter.waited
        if isinstance(getter.wanted, Wanted)
    ]
