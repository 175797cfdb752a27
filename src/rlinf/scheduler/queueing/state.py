"""All queues of one channel and all its clients: what the channel's server decides, without the server."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from rlinf.scheduler.queueing.instructions import Deliver, Instruction, Reason, Refuse
from rlinf.scheduler.queueing.item import Item
from rlinf.scheduler.queueing.named_queue import (
    Client,
    Getter,
    NamedQueue,
    Putter,
    QueueDepth,
    QueueName,
    Tally,
)
from rlinf.scheduler.queueing.sharding import ShardPlan
from rlinf.scheduler.queueing.wanted import NO_LIMITS, Limits, Wanted
from rlinf.scheduler.queueing.weights import check_batch_weight, check_maxsize, check_weight, exact

# So many other queues are named to a batch that does not come.
NUM_NAMED = 3


class ChannelState:
    """Named queues that appear on demand and vanish when empty and idle.

    Each holds at most `maxsize` items and, unless it is a single larger item, `max_bytes` bytes; 0 is unbounded. All
    together hold at most `total_bytes`, but a put to a queue where somebody waits does not wait for what others hold.
    An operation is known by its client's name and a ticket that is unique among that client's operations.
    Every event returns the instructions that follow from it, in order, for this client and for others.

    >>> state = ChannelState()
    >>> state.get("consumer", 1, "default")
    []
    >>> for instruction in state.put("producer", 7, "default", "payload"):
    ...     print(instruction)
    Accept(client='producer', ticket=7)
    Deliver(client='consumer', ticket=1, items=[Item(order=0, weight=0, size_bytes=0)], complete=True, part=None)
    """

    def __init__(self, maxsize: int = 0, max_bytes: int = 0, total_bytes: int = 0) -> None:
        self.maxsize = check_maxsize(maxsize)
        self.max_bytes = max_bytes
        self.closed = False
        self._all_ended = False
        self._ended: set[QueueName] = set()
        self._tally = Tally(total_bytes)
        self._queues: dict[QueueName, NamedQueue] = {}
        self._clients: dict[str, Client] = {}

    def put(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        payload: Any,
        weight: float = 0,
        size_bytes: int = 0,
        *,
        priority: int = 0,
        wait: bool = True,
    ) -> list[Instruction]:
        """A producer sent an item: Accept now or when there is room, or Refuse (closed, full).

        Raises:
            ValueError: the weight is not a finite number of at least 0.
        """
        item = Item(payload, check_weight(weight), size_bytes, priority)
        return self._put(client, ticket, queue_name, item, complete=True, wait=wait)

    def reserve(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        weight: float = 0,
        size_bytes: int = 0,
        *,
        priority: int = 0,
        wait: bool = True,
    ) -> list[Instruction]:
        """A producer announced an item: Grant now or when there is room, or Refuse; then `fill` it.

        Raises:
            ValueError: the weight is not a finite number of at least 0.
        """
        item = Item(None, check_weight(weight), size_bytes, priority)
        return self._put(client, ticket, queue_name, item, complete=False, wait=wait)

    def fill(
        self, client: str, ticket: int, payload: Any, size_bytes: int | None = None
    ) -> list[Instruction]:
        """The bytes of a granted item are here, so many if that was not known; dropped if its put was withdrawn."""
        putter = self._operation(client, ticket)
        if not isinstance(putter, Putter) or not putter.has_room or putter.complete:
            return []
        putter.item.payload = payload
        if size_bytes is not None:
            putter.queue.reserved_bytes += size_bytes - putter.item.size_bytes
            putter.item.size_bytes = size_bytes
        out: list[Instruction] = []
        putter.queue.fill(putter, out)
        self._settle((putter.queue,), out)
        return out

    def get(self, client: str, ticket: int, queue_name: QueueName, *, wait: bool = True) -> list[Instruction]:
        """A consumer asks for one item: Deliver now or later, or Refuse."""
        return self._get(client, ticket, queue_name, None, wait)

    def get_batch(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        batch_weight: float | None,
        limits: Limits = NO_LIMITS,
        *,
        wait: bool = True,
    ) -> list[Instruction]:
        """A consumer asks for the shortest run of first items that reaches `batch_weight`: Deliver or Refuse.

        Args:
            client: its name.
            ticket: its operation's.
            queue_name: of which queue.
            batch_weight: the weight; None for what is there.
            limits: what else the batch has to be.
            wait: whether it may be delivered later.

        Raises:
            ValueError: the batch weight is not a finite number above 0.
        """
        weight = None if batch_weight is None else exact(check_batch_weight(batch_weight))
        return self._get(client, ticket, queue_name, Wanted(weight, limits), wait)

    def get_part(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        plan: ShardPlan,
        index: int,
        done_step: int = -1,
        *,
        wait: bool = True,
    ) -> list[Instruction]:
        """A data-parallel rank asks for its part of the step after `done_step`: Deliver or Refuse.

        Raises:
            ValueError: the plan, or the index, makes no sense, or other shards of this queue have another plan.
        """
        plan.check()
        if not 0 <= index < plan.num_shards:
            message = f"there is no shard {index} of {plan.num_shards}"
            raise ValueError(message)
        known = self._queues.get(queue_name)
        if known is not None and known.sharding is not None and known.sharding.plan != plan:
            message = f"other shards divide it by {known.sharding.plan}, and this one by {plan}"
            raise ValueError(message)
        queue = self._queue(queue_name)
        getter = Getter(self._client(client), ticket, queue, None)
        out: list[Instruction] = []
        queue.get_part(getter, plan, index, done_step, out)
        self._after_get(getter, out, wait)
        return out

    def ripen(self, client: str, ticket: int) -> list[Instruction]:
        """A batch has waited as long as it was to wait for more than the least of it."""
        getter = self._operation(client, ticket)
        if not isinstance(getter, Getter) or getter.items is not None:
            return []
        getter.waited = True
        out: list[Instruction] = []
        self._settle((getter.queue,), out)
        return out

    def withdraw(self, client: str, ticket: int) -> list[Instruction]:
        """Its client gives an operation up: Refuse(CANCELLED), and it has put or taken nothing.

        What still waits leaves its line. What was delivered goes back to the head of its queue at once, whether it has
        arrived or not: the client takes nothing for a ticket that it has given up, so what it asks for next stands
        behind. An operation that is over (accepted, confirmed, refused) gives nothing.
        """
        operation = self._operation(client, ticket)
        if operation is None:
            return []
        queue = operation.queue
        if isinstance(operation, Putter):
            queue.withdraw_put(operation)
        elif operation.items is None:
            queue.withdraw_get(operation)
        else:
            queue.give_back((operation,))
        state = self._describe_for(operation)
        out: list[Instruction] = [Refuse(client, ticket, Reason.CANCELLED, state)]
        queue.release_stream(operation.client, out)
        self._settle((queue,), out)
        return out

    def arrive(self, client: str, ticket: int) -> list[Instruction]:
        """The items of a delivery are in the client's process, not yet taken by anybody there."""
        getter = self._delivery(client, ticket)
        if getter is None:
            return []
        getter.queue.arrive(getter)
        return self._after_delivery(getter.queue)

    def confirm(self, client: str, ticket: int) -> list[Instruction]:
        """The items of a delivery were taken; they will not come back."""
        getter = self._delivery(client, ticket)
        if getter is None:
            return []
        getter.queue.confirm(getter)
        return self._after_delivery(getter.queue)

    def lose(self, client: str, taken: Collection[int] = ()) -> list[Instruction]:
        """A client is gone: its waits and unfinished puts are dropped, items in delivery given back.

        Args:
            client: its name.
            taken: the tickets of those deliveries that are confirmed instead; their items were taken.
        """
        lost = self._clients.pop(client, None)
        if lost is None:
            return []
        undelivered: dict[NamedQueue, list[Getter]] = {}
        touched: dict[NamedQueue, None] = {}
        for operation in list(lost.operations.values()):
            touched[operation.queue] = None
            if isinstance(operation, Putter):
                operation.queue.withdraw_put(operation)
            elif operation.items is None:
                operation.queue.withdraw_get(operation)
            elif operation.ticket in taken:
                operation.queue.confirm(operation)
            else:
                undelivered.setdefault(operation.queue, []).append(operation)
        for queue, getters in undelivered.items():
            queue.give_back(getters)
        out: list[Instruction] = []
        self._settle(touched, out)
        return out

    def end(self, queue_name: QueueName) -> list[Instruction]:
        """Take no further put into a queue; what came before is still delivered, and then getters are refused."""
        self._ended.add(queue_name)
        queue = self._queues.get(queue_name)
        return [] if queue is None else self._end((queue,))

    def end_all(self) -> list[Instruction]:
        """End every queue, also those that nobody has used yet."""
        self._all_ended = True
        return self._end(list(self._queues.values()))

    def has_ended(self, queue_name: QueueName) -> bool:
        """Return whether a queue was ended, alone or with all."""
        return self._all_ended or queue_name in self._ended

    def flush(self, queue_name: QueueName) -> list[Instruction]:
        """Let batches take what this queue holds now, whether it reaches their weight or not."""
        queue = self._queues.get(queue_name)
        if queue is None:
            return []
        queue.flush()
        out: list[Instruction] = []
        self._settle((queue,), out)
        return out

    def close(self) -> list[Instruction]:
        """Refuse puts from now on, waiting ones too; getters drain what is there."""
        if self.closed:
            return []
        self.closed = True
        out: list[Instruction] = []
        for queue in self._queues.values():
            queue.refuse_puts(out)
        self._settle(list(self._queues.values()), out)
        return out

    @property
    def num_accepted(self) -> int:
        """How many items were put since the beginning."""
        return self._tally.num_items

    @property
    def accepted_bytes(self) -> int:
        """How many bytes were put since the beginning."""
        return self._tally.size_bytes

    def deliver_again(self, client: str, ticket: int) -> list[Instruction]:
        """Deliver once more what was delivered to a getter and is not confirmed."""
        getter = self._delivery(client, ticket)
        if getter is None or getter.items is None:
            return []
        return [Deliver(client, ticket, getter.items, getter.complete, getter.part)]

    def deliveries(self, client: str) -> list[tuple[int, list[Item]]]:
        """Return the tickets of a client whose items were delivered and are not confirmed, with these items."""
        known = self._clients.get(client)
        operations = known.operations.values() if known else ()
        return [
            (getter.ticket, getter.items)
            for getter in operations
            if isinstance(getter, Getter) and getter.items is not None
        ]

    def num_items(self, queue_name: QueueName) -> int:
        """Return how many items a getter of this queue can take."""
        queue = self._queues.get(queue_name)
        return len(queue.fifo) if queue else 0

    def held_bytes(self, queue_name: QueueName) -> int:
        """Return how many bytes a queue holds, those that it has room for and waits for included."""
        queue = self._queues.get(queue_name)
        return queue.fifo.size_bytes + queue.reserved_bytes if queue else 0

    @property
    def is_crowded(self) -> bool:
        """Whether puts wait, and all queues together hold about as much as they may."""
        tally = self._tally
        return any(
            tally.held_bytes + next(iter(queue.putters)).item.size_bytes > tally.max_bytes
            for queue in tally.crowded
        )

    def is_full(self, queue_name: QueueName) -> bool:
        """Return whether a put to this queue would wait."""
        queue = self._queues.get(queue_name)
        return queue.full if queue else False

    def describe(self, queue_name: QueueName) -> str:
        """Return what a queue looks like, in a phrase."""
        queue = self._queues.get(queue_name)
        return (queue or NamedQueue(queue_name, self.maxsize, self.max_bytes, self._tally)).describe()

    def depths(self) -> tuple[QueueDepth, ...]:
        """Return what every queue holds that holds anything or is waited for, in order of appearance."""
        return tuple(queue.depth() for queue in self._queues.values())

    def _put(
        self, client: str, ticket: int, queue_name: QueueName, item: Item, *, complete: bool, wait: bool
    ) -> list[Instruction]:
        if self.closed or self._all_ended or queue_name in self._ended:
            return [Refuse(client, ticket, NamedQueue.why_over(self.closed), self.describe(queue_name))]
        queue = self._queue(queue_name)
        if not wait and (queue.putters or not queue.has_room(item.size_bytes)):
            return [Refuse(client, ticket, Reason.FULL, queue.describe())]
        out: list[Instruction] = []
        queue.put(Putter(self._client(client), ticket, queue, item, complete=complete), out)
        if queue.getters or queue.sharding is not None:
            self._settle((queue,), out)
        return out

    def _get(
        self, client: str, ticket: int, queue_name: QueueName, wanted: Wanted | None, wait: bool
    ) -> list[Instruction]:
        queue = self._queue(queue_name)
        getter = Getter(self._client(client), ticket, queue, wanted)
        queue.get(getter)
        out: list[Instruction] = []
        self._after_get(getter, out, wait)
        return out

    def _after_get(self, getter: Getter, out: list[Instruction], wait: bool) -> None:
        queue = getter.queue
        queue.settle(self.closed, out)
        if not wait and getter.ticket in getter.client.operations and getter.items is None:
            queue.withdraw_get(getter)
            state = self._describe_for(getter)
            out.append(Refuse(getter.client.name, getter.ticket, Reason.EMPTY, state))
        self._drop_if_idle(queue)
        if self._tally.crowded:
            self._relieve(out)

    def _describe_for(self, operation: Getter | Putter) -> str:
        """What the queue of an operation looks like; for a batch also what the others hold: it may have meant one."""
        text = operation.queue.describe()
        if isinstance(operation, Putter) or (operation.wanted is None and not operation.is_shard):
            return text
        others = [
            queue for queue in self._queues.values() if queue is not operation.queue and queue.fifo.num_items
        ]
        named = [f"{queue.name!r} holds {queue.describe()}" for queue in others[:NUM_NAMED]]
        if len(others) > NUM_NAMED:
            named.append(f"{len(others) - NUM_NAMED} more hold something")
        return "; ".join([text, *named])

    def _after_delivery(self, queue: NamedQueue) -> list[Instruction]:
        out: list[Instruction] = []
        # As long as more can come the fate of a delivery moves nobody.
        if self.closed or queue.ended:
            queue.settle(self.closed, out)
        self._drop_if_idle(queue)
        return out

    def _end(self, queues: Collection[NamedQueue]) -> list[Instruction]:
        out: list[Instruction] = []
        for queue in queues:
            queue.ended = True
        self._settle(queues, out)
        return out

    def _settle(self, queues: Iterable[NamedQueue], out: list[Instruction]) -> None:
        for queue in queues:
            queue.settle(self.closed, out)
            self._drop_if_idle(queue)
        if self._tally.crowded:
            self._relieve(out)

    def _relieve(self, out: list[Instruction]) -> None:
        """Let puts enter that waited for what other queues held."""
        for queue in list(self._tally.crowded):
            queue.settle(self.closed, out)

    def _queue(self, name: QueueName) -> NamedQueue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = NamedQueue(name, self.maxsize, self.max_bytes, self._tally)
            queue.ended = self._all_ended or name in self._ended
        return queue

    def _client(self, name: str) -> Client:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = Client(name)
        return client

    def _operation(self, client: str, ticket: int) -> Getter | Putter | None:
        known = self._clients.get(client)
        return known.operations.get(ticket) if known else None

    def _delivery(self, client: str, ticket: int) -> Getter | None:
        operation = self._operation(client, ticket)
        return operation if isinstance(operation, Getter) and operation.items is not None else None

    def _drop_if_idle(self, queue: NamedQueue) -> None:
        if queue.idle:
            self._queues.pop(queue.name, None)
