"""All queues of one channel and all its clients: what the channel's server decides, without the server."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import Any

from rlinf_scheduler.queueing.groups import GroupName
from rlinf_scheduler.queueing.instructions import Instruction, Reason, Refuse
from rlinf_scheduler.queueing.item import Item, marks_tell
from rlinf_scheduler.queueing.lending import Lending
from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.operations import Getter, Putter
from rlinf_scheduler.queueing.queue_name import QueueName
from rlinf_scheduler.queueing.recording import Recording
from rlinf_scheduler.queueing.sharding import ShardPlan
from rlinf_scheduler.queueing.versioning import Versioning
from rlinf_scheduler.queueing.wanted import NO_LIMITS, LeaseTerms, Limits, Wanted, WantedGroup
from rlinf_scheduler.queueing.weights import check_batch_weight, check_weight, exact

# Of queues that are gone, the ends of so many are remembered: one-shot names do not pile up.
NUM_ENDED = 1 << 16


class ChannelState(Lending, Versioning, Recording):
    """Named queues that appear on demand and vanish when empty and idle.

    Each holds at most `maxsize` items and, unless it is a single larger item, `max_bytes` bytes; 0 is unbounded. All
    together hold at most `total_bytes`, but a put to a queue where somebody waits does not wait for what others hold.
    What is on lease counts; for `max_attempts` and `max_leased` see `Leases`, for `priority_wait_s` `QueueClock`.
    An operation is known by its client's name and a ticket that is unique among that client's operations.
    Every event returns the instructions that follow from it, in order, for this client and for others.

    >>> state = ChannelState()
    >>> state.get("consumer", 1, "default")
    []
    >>> accept, deliver = state.put("producer", 7, "default", "payload")
    >>> accept, deliver[:3]
    (Accept(client='producer', ticket=7), ('consumer', 1, [Item(order=0, weight=0, size_bytes=0)]))
    """

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
        question: int = 0,
        group: GroupName | None = None,
        version: int | None = None,
        slot: int = 0,
        origin: Any = None,
        wait: bool = True,
        complete: bool = True,
    ) -> list[Instruction]:
        """A producer sent an item: Accept now or when there is room, or Refuse (closed, full).

        Args:
            client: its name.
            ticket: its operation's.
            queue_name: into which queue.
            payload: what the item is.
            weight: what it counts in batches.
            size_bytes: its size.
            priority: items of a higher one come first.
            question: the asker's number of it; 0 if nobody waits for an answer.
            group: what it belongs to.
            version: of the policy that made it.
            origin: who put it and what it was made of, for records.
            slot: with which it is put, where the queue admits.
            wait: whether it may be accepted later.
            complete: the payload is here; else `reserve`.

        Raises:
            ValueError: the weight is not a finite number of at least 0; or the queue admits, and this slot is not one
                of its slots for such a version.
        """
        item = Item(payload, check_weight(weight), size_bytes, priority, group)
        if question:
            item.question = client, question
            self._note_asked(queue_name)
        item.version, item.origin = version, origin
        out: list[Instruction] = []
        if wait and complete and not slot and self.put_run(client, queue_name, ((ticket, item),), out):
            return out
        return self._put(client, ticket, queue_name, item, slot, wait=wait, complete=complete)

    def put_run(
        self, client: str, queue_name: QueueName, puts: Sequence[tuple[int, Item]], out: list[Instruction]
    ) -> int:
        """A producer sent items in a row, which are here: as `put` of each, by its ticket, as long as that is simple.

        Returns: how many it was simple for; those that are left are to be put one by one.
        """
        queue = self._open_queue(queue_name) if puts else None
        return 0 if queue is None else queue.put_run(self._client(client), puts, out)

    def _put(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        item: Item,
        slot: int,
        *,
        wait: bool,
        complete: bool,
    ) -> list[Instruction]:
        size_bytes = item.size_bytes
        if self.closed or self._all_ended or queue_name in self._ended:
            return [Refuse(client, ticket, NamedQueue.why_over(self.closed), self.describe(queue_name))]
        if slot and (queue_name not in self._queues or self._queues[queue_name].admission is None):
            message = f"slot {slot} is not one of queue {queue_name!r}, which gives none"
            raise ValueError(message)
        queue = self._queue(queue_name)
        if queue.admission is not None:
            if over := queue.admission.why_over(slot):
                return [Refuse(client, ticket, Reason.SPENT, over)]
            queue.admission.use(item, slot)
        if not wait and (queue.putters or not queue.has_room(size_bytes)):
            if queue.admission is not None:
                queue.admission.unuse(item.slot)
            self._drop_if_idle(queue)
            return [Refuse(client, ticket, Reason.FULL, queue.describe())]
        out: list[Instruction] = []
        putter = self._client(client)
        if complete and queue.may_push(putter, size_bytes):
            queue.push(putter, ticket, item, out)
            queue.count()
        else:
            queue.put(Putter(putter, ticket, queue, item, complete=complete), out)
        if queue.getters or queue.sharding is not None:
            self._settle((queue,), out)
        elif self._tally.touched:
            self._follow(out)
        return out

    def reserve(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        weight: float = 0,
        size_bytes: int = 0,
        **options: Any,
    ) -> list[Instruction]:
        """A producer announced an item: as `put`, with Grant for Accept; then `fill` it."""
        return self.put(client, ticket, queue_name, None, weight, size_bytes, complete=False, **options)

    def fill(
        self, client: str, ticket: int, payload: Any, size_bytes: int | None = None
    ) -> list[Instruction]:
        """The bytes of a granted item are here, so many if that was not known; dropped if its put was withdrawn."""
        putter = self._operation(client, ticket)
        if not isinstance(putter, Putter) or not putter.has_room or putter.complete:
            return []
        putter.item.payload = payload
        if size_bytes is not None:
            putter.queue.reserve(0, size_bytes - putter.item.size_bytes)
            putter.item.size_bytes = size_bytes
        out: list[Instruction] = []
        putter.queue.fill(putter, out)
        self._settle((putter.queue,), out)
        return out

    def get(self, client: str, ticket: int, queue_name: QueueName, *, wait: bool = True) -> list[Instruction]:
        """A consumer asks for one item: Deliver now or later, or Refuse."""
        out: list[Instruction] = []
        if wait and self.get_run(client, queue_name, (ticket,), out):
            return out
        return self._get(client, ticket, queue_name, None, wait)

    def get_run(
        self, client: str, queue_name: QueueName, tickets: Sequence[int], out: list[Instruction]
    ) -> int:
        """A consumer asks for one item several times: as `get` with each ticket, as long as that is simple.

        Returns: how many it was simple for: all or none; those that are left are to be asked one by one.
        """
        queue = self._open_queue(queue_name) if tickets else None
        if queue is None:
            return 0
        queue.get_run(self._client(client), tickets, out)
        if self._tally.touched:
            self._follow(out)
        return len(tickets)

    def _open_queue(self, name: QueueName) -> NamedQueue | None:
        """The queue of that name; None if operations are to look by themselves what stands in their way."""
        if self.closed or self._all_ended or name in self._ended or self._is_gone(name):
            return None
        queue = self._queue(name)
        return queue if queue.is_open else None

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

    def get_group(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        size: int,
        *,
        wait: bool = True,
        terms: LeaseTerms | None = None,
    ) -> list[Instruction]:
        """A consumer asks for so many items of one group, the first that has them: Deliver or Refuse.

        Raises:
            ValueError: the size is less than 1, or the queue admits.
        """
        if size < 1:
            message = f"a group has at least 1 item, not {size}"
            raise ValueError(message)
        queue = self._queues.get(queue_name)
        if queue is not None and queue.admission is not None:
            message = f"queue {queue_name!r} gives slots, each for one item: collect groups before, in another queue"
            raise ValueError(message)
        return self._get(client, ticket, queue_name, WantedGroup(size), wait, terms)

    def lease(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        terms: LeaseTerms,
        batch_weight: float | None = None,
        limits: Limits | None = None,
        *,
        group_size: int = 0,
        wait: bool = True,
    ) -> list[Instruction]:
        """A consumer asks for one item, or for a batch or a group, on lease: Deliver now or later, or Refuse.

        Args:
            client: its name.
            ticket: its operation's.
            queue_name: of which queue.
            terms: of the lease.
            batch_weight: of a batch; None without.
            limits: of a batch; None without. With neither it is one item.
            group_size: of a group; 0 for none.
            wait: whether it may be delivered later.

        Raises:
            ValueError: the batch weight is not a finite number above 0, or the time of the lease is not.
        """
        if not 0 < terms.ttl_s < math.inf:
            message = f"a lease lasts a number of seconds above 0, not {terms.ttl_s!r}"
            raise ValueError(message)
        if group_size:
            return self.get_group(client, ticket, queue_name, group_size, wait=wait, terms=terms)
        if batch_weight is None and limits is None:
            return self._get(client, ticket, queue_name, None, wait, terms)
        weight = None if batch_weight is None else exact(check_batch_weight(batch_weight))
        wanted = Wanted(weight, NO_LIMITS if limits is None else limits)
        return self._get(client, ticket, queue_name, wanted, wait, terms)

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
            others, own = known.sharding.plan.differences(plan)
            message = f"other shards divide it by {others}, and this one by {own}"
            raise ValueError(message)
        if self._is_gone(queue_name):
            return self._unsubscribed(client, ticket)
        queue = self._queue(queue_name)
        if queue.admission is not None:
            queue.admission.check_batch(plan.batch_items or 1)
        getter = Getter(self._client(client), ticket, queue, None)
        out: list[Instruction] = []
        queue.get_part(getter, plan, index, done_step, out)
        self._after_get(getter, out, wait)
        return out

    def finish_part(
        self, client: str, queue_name: QueueName, index: int, step: int
    ) -> list[Instruction] | None:
        """A shard is done with its part of a step before it asks for the next; None if that is not in its hands."""
        queue = self._queues.get(queue_name)
        if queue is None or queue.sharding is None:
            return None
        holder = queue.sharding.holder(index, step)
        if holder is None or holder.client.name != client:
            return None
        queue.sharding.finish(index)
        return self._settled((queue,))

    def retract(self, client: str, queue_name: QueueName, question: int) -> list[Instruction]:
        """Nobody waits for the answer to a client's question: it leaves its queue, if it is there."""
        queue = self._queues.get(queue_name)
        if queue is None:
            return []
        item = next((item for item in queue.fifo if item.question == (client, question)), None)
        if item is None:
            return []
        queue.fifo.discard(item)
        return self._settled((queue,))

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
            return self._withdraw_admission(client, ticket)
        queue = operation.queue
        if isinstance(operation, Putter):
            queue.withdraw_put(operation)
        elif operation.items is None:
            queue.withdraw_get(operation)
        elif (lease := self.leases.of(operation)) is not None:
            return self._withdraw_lease(operation, lease)
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
        out: list[Instruction] = []
        self._after_delivery(getter.queue, out)
        return out

    def confirm(self, client: str, ticket: int) -> list[Instruction]:
        """The items of a delivery were taken; they will not come back."""
        return self.confirm_run(client, (ticket,))

    def confirm_run(self, client: str, tickets: Iterable[int]) -> list[Instruction]:
        """The items of several deliveries were taken: as `confirm` of each, one after the other."""
        out: list[Instruction] = []
        known = self._clients.get(client)
        operations = {} if known is None else known.operations
        for ticket in tickets:
            getter = operations.get(ticket)
            if isinstance(getter, Getter) and getter.items is not None and getter.lease is None:
                getter.queue.confirm(getter)
                self._after_delivery(getter.queue, out)
        return out

    def lose(self, client: str, taken: Collection[int] = ()) -> list[Instruction]:
        """A client is gone: its waits and unfinished puts are dropped, items in delivery given back.

        Args:
            client: its name.
            taken: the tickets of those deliveries that are confirmed instead; their items were taken.
        """
        lost = self._clients.pop(client, None)
        undelivered: dict[NamedQueue, list[Getter[NamedQueue]]] = {}
        touched = dict(self._admitting)
        for queue in touched:
            if queue.admission is not None:
                queue.admission.lose(client)
        out: list[Instruction] = []
        for operation in list(lost.operations.values()) if lost is not None else ():
            touched[operation.queue] = None
            if isinstance(operation, Putter):
                operation.queue.withdraw_put(operation)
            elif operation.items is None:
                operation.queue.withdraw_get(operation)
            elif (lease := self.leases.of(operation)) is not None:
                self.leases.lose(lease, out)
            elif operation.ticket in taken:
                operation.queue.confirm(operation)
            else:
                undelivered.setdefault(operation.queue, []).append(operation)
        for queue, getters in undelivered.items():
            queue.give_back(getters)
        self._settle(touched, out)
        return out

    def lose_items(self, why: Callable[[Any], str]) -> list[Instruction]:
        """The bytes of some items are gone, which this process does not hold itself.

        What a getter can take leaves its queue, and the next getter of that queue is refused, once, and told of all of
        them. Unfinished puts are refused. What was given out is lost only if it comes back: whoever has it may have its
        bytes. Delivered items that did not arrive are asked for again, by `deliver_again`.

        Args:
            why: says of a payload whose it was and how it was lost, in a phrase; "" if it is not lost.
        """
        operations = [each for client in self._clients.values() for each in client.operations.values()]
        held = (item for lease in self.leases.all() for item in lease.items.values())
        sent = (item for each in operations if isinstance(each, Getter) for item in each.items or ())
        dead = (letter.item for letter in self.leases.dead.values())
        kept = (item for queue in self._queues.values() for item in queue.items())
        for item in chain(kept, sent, held, dead):
            item.lost = item.lost or why(item.payload)
        self._tally.has_losses = True
        out: list[Instruction] = []
        for putter in operations:
            if isinstance(putter, Putter) and putter.complete and (lost := why(putter.item.payload)):
                putter.queue.withdraw_put(putter)
                out.append(Refuse(putter.client.name, putter.ticket, Reason.LOST, f"its item {lost}"))
                putter.queue.release_stream(putter.client, out)
        queues = list(self._queues.values())
        for queue in queues:
            queue.drop_lost()
        self._settle(queues, out)
        return out

    def end(self, queue_name: QueueName) -> list[Instruction]:
        """Take no further put into a queue; what came before is still delivered, and then getters are refused."""
        self._ended[queue_name] = None
        if len(self._ended) > NUM_ENDED:
            gone = next((name for name in self._ended if name not in self._queues), queue_name)
            del self._ended[gone]
        queue = self._queues.get(queue_name)
        taps = [tap for tap in self._taps.values() if tap.terms.queue_name == queue_name]
        return self._end(taps if queue is None else [queue, *taps])

    def end_all(self) -> list[Instruction]:
        """End every queue, also those that nobody has used yet."""
        self._all_ended = True
        return self._end(list(self._queues.values()))

    def flush(self, queue_name: QueueName) -> list[Instruction]:
        """Let batches take what this queue holds now, whether it reaches their weight or not."""
        queue = self._queues.get(queue_name)
        queues = [*self._taps_of(queue_name)] if queue is None else [queue, *self._taps_of(queue_name)]
        for each in queues:
            each.flush()
        return self._settled(queues)

    def close(self) -> list[Instruction]:
        """Refuse puts from now on, waiting ones too; getters drain what is there."""
        if self.closed:
            return []
        self.closed = True
        out: list[Instruction] = []
        for queue in self._queues.values():
            queue.refuse_puts(out)
            self._end_admission(queue, out)
        self._settle(list(self._queues.values()), out)
        return out

    def knows(self, client: str, ticket: int) -> bool:
        """Whether an operation waits, or what it was given is not confirmed."""
        return self._operation(client, ticket) is not None

    def deliveries(self, client: str) -> list[tuple[int, list[Item]]]:
        """Return the tickets of a client's deliveries that are not confirmed, with their items; none on lease.

        And none of what subscriptions read too: what is marked there tells nothing of who has taken it.
        """
        known = self._clients.get(client)
        operations = known.operations.values() if known else ()
        return [
            (getter.ticket, getter.items)
            for getter in operations
            if isinstance(getter, Getter)
            and getter.items is not None
            and getter.lease is None
            and marks_tell(getter.items)
        ]

    def on_the_way(self) -> list[tuple[str, int]]:
        """Return the deliveries for which the end of a queue waits, by client and ticket; none on lease."""
        return [
            (client.name, operation.ticket)
            for client in self._clients.values()
            for operation in client.operations.values()
            if isinstance(operation, Getter) and operation.queue.waits_for(operation, self.closed)
        ]

    def _get(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        wanted: Wanted | WantedGroup | None,
        wait: bool,
        terms: LeaseTerms | None = None,
    ) -> list[Instruction]:
        if self._is_gone(queue_name):
            return self._unsubscribed(client, ticket)
        queue = self._queue(queue_name)
        if queue.admission is not None and isinstance(wanted, Wanted):
            queue.admission.check_batch(wanted.limits.min_items)
        getter = Getter(self._client(client), ticket, queue, wanted, terms)
        queue.get(getter)
        out: list[Instruction] = []
        self._after_get(getter, out, wait)
        return out

    def _after_get(self, getter: Getter[NamedQueue], out: list[Instruction], wait: bool) -> None:
        queue = getter.queue
        queue.settle(self.closed, out)
        if not wait and getter.ticket in getter.client.operations and getter.items is None:
            queue.withdraw_get(getter)
            state = self._describe_for(getter, waited=False)
            out.append(Refuse(getter.client.name, getter.ticket, Reason.EMPTY, state))
        self._drop_if_idle(queue)
        if self._tally.line.places or self._tally.touched:
            self._follow(out)

    def _after_delivery(self, queue: NamedQueue, out: list[Instruction]) -> None:
        # As long as more can come the fate of a delivery moves nobody.
        if self.closed or queue.ended or queue.admission is not None:
            queue.settle(self.closed, out)
        if not queue.delivering:
            self._drop_if_idle(queue)
        if self._tally.touched:
            self._follow(out)

    def _end(self, queues: Collection[NamedQueue]) -> list[Instruction]:
        out: list[Instruction] = []
        for queue in queues:
            queue.ended = True
            self._end_admission(queue, out)
        self._settle(queues, out)
        return out
