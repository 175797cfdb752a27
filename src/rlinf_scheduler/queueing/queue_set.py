"""The queues of a channel and its clients, and what follows when one of them has changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from rlinf_scheduler.queueing.item import (
    Item,
    QueueName,
    SubscriptionName,
    as_name,
    check_maxsize,
    marks_tell,
)
from rlinf_scheduler.queueing.messages import Get, Instruction, Reason, Refuse
from rlinf_scheduler.queueing.operations import Client, Getter, Putter
from rlinf_scheduler.queueing.out_of_turn import QueueClock
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.stats import phrase_for
from rlinf_scheduler.queueing.tally import Tally

UNSUBSCRIBED = "there is no such subscription any more"
# Queues with questions, so many of which are known.
NUM_ASKED = 64


class QueueSet:
    """Named queues, which come and go as they are used.

    Attributes:
        on_made: called with each new queue.
        last_number: what was numbered last (see `next_number`).
        ended: the queues that were ended alone, the latest last.
    """

    queue_type: type[Queue] = Queue

    def __init__(self, maxsize: int, max_bytes: int, total_bytes: int, clock: QueueClock) -> None:
        self.maxsize = check_maxsize(maxsize)
        self.max_bytes = max_bytes
        self.closed = self.all_ended = False
        self.ended: dict[QueueName, None] = {}
        self.last_number = 0
        self.on_made: list[Callable[[Queue], None]] = []
        self.tally = Tally(total_bytes, clock)
        self.clients: dict[str, Client] = {}
        # Of all queues that have no other one.
        self._gate = self.queue_type.gate_type(self.maxsize, max_bytes)
        self._queues: dict[QueueName, Queue] = {}
        self._num_added = 0
        # Queues into which somebody has put a question, as far as they are known.
        self.asked_at: dict[QueueName, None] = {}

    # -- queues and clients ----------------------------------------------------------------------

    def find(self, name: QueueName) -> Queue | None:
        """Return the queue of that name, if it is there."""
        return self._queues.get(name)

    def find_or_make(self, name: QueueName) -> Queue | None:
        """Return the queue of that name; None if it is a subscription that is not there."""
        queue = self._queues.get(name)
        return self.make(name) if queue is None and type(name) is not SubscriptionName else queue

    def make(self, name: QueueName) -> Queue:
        """Return the queue of that name, which is no subscription."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._make_new(name)
            queue.ended = self.has_ended(name)
        return queue

    def _make_new(self, name: QueueName) -> Queue:
        queue = self._queues[name] = self.queue_type(name, self._gate, self.tally)
        for tell in self.on_made:
            tell(queue)
        return queue

    def add(self, queue: Queue) -> None:
        """Have a queue that sees what enters others."""
        self._queues[queue.name] = queue
        self._num_added += 1

    def drop(self, queue: Queue) -> None:
        """Have a queue no more that was added."""
        del self._queues[queue.name]
        self._num_added -= 1

    def drop_if_idle(self, queue: Queue) -> None:
        """Have a queue no more that holds nothing, and at which nobody waits."""
        if queue.idle:
            self._queues.pop(queue.name, None)

    def all(self) -> Collection[Queue]:
        """Return all queues, in order of appearance."""
        return self._queues.values()

    def client(self, name: str) -> Client:
        """Return a client."""
        client = self.clients.get(name)
        if client is None:
            client = self.clients[name] = Client(name)
        return client

    def operation(self, client: str, ticket: int) -> Getter | Putter | None:
        """Return an operation that is not over."""
        known = self.clients.get(client)
        return known.operations.get(ticket) if known else None

    def delivery(self, client: str, ticket: int) -> Getter | None:
        """Return a getter that was sent items, and has not confirmed them."""
        operation = self.operation(client, ticket)
        return operation if isinstance(operation, Getter) and operation.items is not None else None

    def open_queue(self, name: QueueName) -> Queue | None:
        """Return a queue that passes what comes in order; None if operations are to look what stands in their way."""
        queue = self._queues.get(name)
        if queue is not None:
            return queue if queue.is_open and not self.closed else None
        if self.closed or self.all_ended or name in self.ended or type(name) is SubscriptionName:
            return None
        queue = self._make_new(name)
        return queue if queue.is_open else None

    def next_number(self) -> int:
        """Number what a policy gives out: none has the number of another."""
        self.last_number += 1
        return self.last_number

    def has_ended(self, queue_name: QueueName | None) -> bool:
        """Return whether a queue was ended, alone or with all."""
        return self.all_ended or queue_name in self.ended

    def is_over(self, queue_name: QueueName) -> bool:
        """Return whether nothing can be put into a queue any more."""
        return self.closed or self.all_ended or queue_name in self.ended

    def clear(self) -> None:
        """Forget every client and everything that is held: nobody uses it any more."""
        self.clients.clear()
        self._queues.clear()
        self._num_added = 0
        self.tally.clear()

    def note_asked(self, name: QueueName) -> None:
        """Remember that somebody puts a question into a queue."""
        if len(self.asked_at) >= NUM_ASKED:
            self.asked_at = {name: None for name in self.asked_at if name in self._queues}
        if len(self.asked_at) < NUM_ASKED:
            self.asked_at[name] = None

    # -- what there is ---------------------------------------------------------------------------

    @property
    def bounded_bytes(self) -> int:
        """How many bytes count against the bound of the channel; 0 where there is none."""
        return self.tally.held_bytes if self.tally.max_bytes else 0

    @property
    def num_queues(self) -> int:
        """How many queues hold something or are waited for, subscriptions apart."""
        return len(self._queues) - self._num_added

    @property
    def is_crowded(self) -> bool:
        """Whether puts wait, and all queues together hold about as much as they may."""
        return bool(self.tally.line.places)

    def describe(self, queue_name: QueueName) -> str:
        """Return what a queue looks like, in a phrase."""
        return (self._queues.get(queue_name) or self.imaginary(queue_name)).describe()

    def imaginary(self, queue_name: QueueName) -> Queue:
        """Return a queue that is there for nobody, and empty."""
        return self.queue_type(queue_name, self._gate, self.tally)

    def refuse_put(self, client: str, ticket: int, queue_name: QueueName) -> Refuse:
        """Return that nothing can be put into a queue any more."""
        return Refuse(client, ticket, Queue.why_over(self.closed), self.describe(queue_name))

    def refuse_unsubscribed(self, client: str, ticket: int) -> list[Instruction]:
        """Return that a subscription is not there."""
        return [Refuse(client, ticket, Reason.ENDED, UNSUBSCRIBED)]

    def knows(self, client: str, ticket: int) -> bool:
        """Return whether an operation waits, or what it was given is not confirmed."""
        return self.operation(client, ticket) is not None

    def deliveries(self, client: str) -> list[tuple[int, list[Item]]]:
        """Return the tickets of a client's deliveries that are to be confirmed, with their items.

        And none of what subscriptions read too: what is marked there tells nothing of who has taken it.
        """
        known = self.clients.get(client)
        operations = known.operations.values() if known else ()
        return [
            (getter.ticket, getter.items)
            for getter in operations
            if isinstance(getter, Getter)
            and getter.items is not None
            and getter.is_confirmed
            and marks_tell(getter.items)
        ]

    # -- what follows ----------------------------------------------------------------------------

    def settle(self, queues: Iterable[Queue], out: list[Instruction]) -> list[Instruction]:
        """Do what follows from a change of queues; return `out`, with that at its end."""
        for queue in queues:
            queue.settle(self.closed, out)
            queue.touch_followers()
            self.drop_if_idle(queue)
        if self.tally.line.places or self.tally.touched:
            self.follow(out)
        return out

    def follow(self, out: list[Instruction]) -> None:
        """Let subscriptions, and others, see what happened to a queue; where there is room now, let puts enter."""
        tally = self.tally
        while True:
            touched, tally.touched = tally.touched, {}
            for queue in touched:
                queue.settle(self.closed, out)
                queue.touch_followers()
                self.drop_if_idle(queue)
            if not self.relieve(out) and not tally.touched:
                return

    def relieve(self, out: list[Instruction]) -> bool:
        """Let puts enter that waited for room which is there now; return whether anything has changed."""
        tally, before, last = self.tally, len(out), None
        # A queue that is settled has let its puts enter, or waits for something else, or for more.
        while (queue := tally.line.first(tally.free_bytes)) not in (None, last):
            queue.settle(self.closed, out)
            last = queue
        return len(out) > before

    def get(self, get: Get[Any], client: str, make: Callable[..., Getter]) -> list[Instruction]:
        """Let a getter of some kind stand in line for what a client asks for.

        Raises:
            ValueError: it makes no sense, or nobody is ever given that.
        """
        wanted = get.wanted
        queue = self.find_or_make(as_name(get.queue))
        if queue is None:
            return self.refuse_unsubscribed(client, get.ticket)
        queue.gate.check(wanted)
        getter = make(self.client(client), get.ticket, queue, wanted, self.tally.clock.now)
        queue.get(getter)
        return self.after_get(getter, [], get.wait)

    def after_get(self, getter: Getter, out: list[Instruction], wait: bool) -> list[Instruction]:
        """Do what follows from a get, which is refused if it is not to wait and there is nothing for it."""
        queue: Queue = getter.queue
        queue.settle(self.closed, out)
        if not wait and getter.ticket in getter.client.operations and getter.items is None:
            queue.withdraw_get(getter)
            state = phrase_for(self, getter, waited=False)
            out.append(Refuse(getter.client.name, getter.ticket, Reason.EMPTY, state))
        self.drop_if_idle(queue)
        if self.tally.line.places or self.tally.touched:
            self.follow(out)
        return out

    def after_delivery(self, queue: Queue, out: list[Instruction]) -> None:
        """Do what follows from the end of a delivery."""
        # As long as more can come its end moves nobody.
        if self.closed or queue.ended or not queue.gate.is_plain:
            self.settle((queue,), out)
            return
        if not queue.delivering:
            self.drop_if_idle(queue)
        if self.tally.touched:
            self.follow(out)
