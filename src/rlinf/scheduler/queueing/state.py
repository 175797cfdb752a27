"""All queues of one channel and all its clients: what the channel's server decides, without the server."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import Any

from rlinf.scheduler.queueing.groups import GroupName
from rlinf.scheduler.queueing.instructions import (
    Accept,
    Deliver,
    Instruction,
    Reason,
    Refuse,
    Ripen,
    StartClock,
)
from rlinf.scheduler.queueing.item import Item, marks_tell
from rlinf.scheduler.queueing.leases import BuriedItem, HeldItems, Leases
from rlinf.scheduler.queueing.named_queue import (
    Client,
    Getter,
    NamedQueue,
    Putter,
    QueueDepth,
    Tally,
)
from rlinf.scheduler.queueing.queue_name import QueueName, Tapped
from rlinf.scheduler.queueing.records import Asked, Move, QueueRecord, StateRecord, as_name
from rlinf.scheduler.queueing.report import QueueSnapshot, report_of
from rlinf.scheduler.queueing.restoring import Restorer
from rlinf.scheduler.queueing.sharding import ShardPlan
from rlinf.scheduler.queueing.snapshot import Recorder, Snapshot, record_of
from rlinf.scheduler.queueing.tap_queue import TapQueue, TapTerms
from rlinf.scheduler.queueing.wanted import NO_LIMITS, LeaseTerms, Limits, Wanted, WantedGroup
from rlinf.scheduler.queueing.watch import Watch
from rlinf.scheduler.queueing.weights import check_batch_weight, check_maxsize, check_weight, exact

# So many other queues are named to a batch that does not come.
NUM_NAMED = 3
# Of queues that are gone, the ends of so many are remembered: one-shot names do not pile up.
NUM_ENDED = 1 << 16


class ChannelState:
    """Named queues that appear on demand and vanish when empty and idle.

    Each holds at most `maxsize` items and, unless it is a single larger item, `max_bytes` bytes; 0 is unbounded. All
    together hold at most `total_bytes`, but a put to a queue where somebody waits does not wait for what others hold.
    What is on lease counts; for `max_attempts` and `max_leased` see `Leases`.
    An operation is known by its client's name and a ticket that is unique among that client's operations.
    Every event returns the instructions that follow from it, in order, for this client and for others.

    >>> state = ChannelState()
    >>> state.get("consumer", 1, "default")
    []
    >>> accept, deliver = state.put("producer", 7, "default", "payload")
    >>> accept, deliver[:3]
    (Accept(client='producer', ticket=7), ('consumer', 1, [Item(order=0, weight=0, size_bytes=0)]))
    """

    queue_type: type[NamedQueue] = NamedQueue
    tap_type: type[TapQueue] = TapQueue

    def __init__(
        self,
        maxsize: int = 0,
        max_bytes: int = 0,
        total_bytes: int = 0,
        *,
        max_attempts: int = 0,
        max_leased: int = 0,
    ) -> None:
        self.leases = Leases(max_attempts, max_leased)
        self.maxsize = check_maxsize(maxsize)
        self.max_bytes = max_bytes
        self.closed = False
        self._all_ended = False
        # The queues that were ended alone, the latest last.
        self._ended: dict[QueueName, None] = {}
        self._tally = Tally(total_bytes, self.leases)
        self._queues: dict[QueueName, NamedQueue] = {}
        self._taps: dict[str, TapQueue] = {}
        self._num_vacancies = 0  # of all subscriptions, also those of one name one after the other
        self._clients: dict[str, Client] = {}
        self._admitting: dict[NamedQueue, None] = {}

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
        wait: bool = True,
    ) -> list[Instruction]:
        """A producer sent an item: Accept now or when there is room, or Refuse (closed, full).

        Raises:
            ValueError: the weight is not a finite number of at least 0; or the queue admits, and this slot is not one
                of its slots for such a version.
        """
        item = Item(payload, check_weight(weight), size_bytes, priority, group)
        item.question = (client, question) if question else None
        item.version = version
        return self._put(client, ticket, queue_name, item, slot, complete=True, wait=wait)

    def reserve(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        weight: float = 0,
        size_bytes: int = 0,
        *,
        priority: int = 0,
        question: int = 0,
        group: GroupName | None = None,
        version: int | None = None,
        slot: int = 0,
        wait: bool = True,
    ) -> list[Instruction]:
        """A producer announced an item: Grant now or when there is room, or Refuse; then `fill` it.

        Raises:
            ValueError: the weight is not a finite number of at least 0; or the queue admits, and this slot is not one
                of its slots for such a version.
        """
        item = Item(None, check_weight(weight), size_bytes, priority, group)
        item.question = (client, question) if question else None
        item.version = version
        return self._put(client, ticket, queue_name, item, slot, complete=False, wait=wait)

    def fill(
        self, client: str, ticket: int, payload: Any, size_bytes: int | None = None
    ) -> list[Instruction]:
        """The bytes of a granted item are here, so many if that was not known; dropped if its put was withdrawn."""
        putter = self._operation(client, ticket)
        if not isinstance(putter, Putter) or not putter.has_room or putter.complete:
            return []
        putter.item.payload = payload
        if size_bytes is not None:
            putter.queue.reserve(putter, 0, size_bytes - putter.item.size_bytes)
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

    def acknowledge(
        self, client: str, generation: int, places: Collection[int] | None = None
    ) -> list[Instruction] | None:
        """A consumer is done with items of its lease, or with all that are left; None if that is over."""
        return self._settle_lease(
            client, generation, lambda lease, out: self.leases.acknowledge(lease, places, out)
        )

    def give_back(
        self,
        client: str,
        generation: int,
        places: Collection[int] | None = None,
        *,
        delay_s: float = 0,
        reason: str = "",
    ) -> list[Instruction] | None:
        """Items of a client's lease, or all that are left, come back after a while; None if it is over."""

        def give_back(lease: HeldItems, out: list[Instruction]) -> None:
            self.leases.give_back(lease, places, out, reason=reason, delay_s=delay_s)

        return self._settle_lease(client, generation, give_back)

    def extend(self, client: str, generation: int, for_s: float | None = None) -> list[Instruction] | None:
        """A client's lease lasts so long from now, by default as long as in the beginning; None if it is over."""
        lease = self.leases.find(client, generation)
        if lease is None:
            return None
        return [StartClock(*lease.owner, generation, lease.terms.ttl_s if for_s is None else for_s)]

    def lapse(self, generation: int) -> list[Instruction]:
        """The time of a lease, or of a delay, is over."""
        out: list[Instruction] = []
        lease = self.leases.lapse(generation, out)
        if lease is not None:
            self._after_lease(lease, out)
        return out

    def put_back(self, number: int) -> list[Instruction] | None:
        """A dead letter goes to its queue again, as if it had never been given out; None if it is gone.

        Raises:
            ValueError: it would be taken too late (see `Admission`).
        """
        letter = self.leases.put_back(number)
        return None if letter is None else self._settled((letter.queue,))

    def discard(self, number: int) -> list[Instruction] | None:
        """Drop a dead letter; None if it is gone."""
        letter = self.leases.discard(number)
        return None if letter is None else self._settled((letter.queue,))

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

    def admit(
        self, client: str, ticket: int, queue_name: QueueName, max_lag: int, *, wait: bool = True
    ) -> list[Instruction]:
        """A producer asks for leave to make an item that is taken at most `max_lag` versions later: Deliver or Refuse.

        Raises:
            ValueError: the queue holds what was put without a slot.
        """
        if self.closed or self.has_ended(queue_name):
            return [Refuse(client, ticket, NamedQueue.why_over(self.closed), self.describe(queue_name))]
        queue = self._queue(queue_name)
        admission = queue.begin_admission()
        self._admitting[queue] = None
        admission.ask(client, ticket, Asked(max_lag, self._tally.now))
        out = self._settled((queue,))
        if not wait and (client, ticket) in admission.asking:
            admission.withdraw(client, ticket)
            out.append(Refuse(client, ticket, Reason.EMPTY, queue.describe()))
        return out

    def set_version(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        version: int,
        batch_items: int = 0,
        *,
        begins: bool = False,
        wait: bool = True,
    ) -> list[Instruction]:
        """A consumer says which version it is at: Accept, once nothing may come back that is too old; or Refuse.

        Args:
            client: its name.
            ticket: its operation's.
            queue_name: of which queue.
            version: what it takes from now on is taken by this one.
            batch_items: how many items a version takes; 0 for as many as before.
            begins: it begins (again) with this version, whatever the last one was.
            wait: whether it may wait for what was given out before.

        Raises:
            ValueError: the version goes back, `batch_items` is missing, or the queue holds what was put without a slot.
        """
        known = self._queues.get(queue_name)
        if (known is None or known.admission is None) and (self.closed or self.has_ended(queue_name)):
            return [Accept(client, ticket)]  # nothing is made any more
        queue = self._queue(queue_name)
        admission = queue.begin_admission()
        self._admitting[queue] = None
        out: list[Instruction] = []
        admission.move(client, ticket, Move(version, batch_items, begins, self._tally.now), out)
        self._settle((queue,), out)
        if not wait and (client, ticket) in admission.moving:
            state = queue.describe()
            admission.withdraw(client, ticket)
            out.append(Refuse(client, ticket, Reason.EMPTY, state))
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
        return self._after_delivery(getter.queue)

    def confirm(self, client: str, ticket: int) -> list[Instruction]:
        """The items of a delivery were taken; they will not come back."""
        getter = self._delivery(client, ticket)
        if getter is None or getter.lease is not None:
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
        undelivered: dict[NamedQueue, list[Getter]] = {}
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

    def has_ended(self, queue_name: QueueName) -> bool:
        """Return whether a queue was ended, alone or with all."""
        return self._all_ended or queue_name in self._ended

    def flush(self, queue_name: QueueName) -> list[Instruction]:
        """Let batches take what this queue holds now, whether it reaches their weight or not."""
        queue = self._queues.get(queue_name)
        queues = [*self._taps_of(queue_name)] if queue is None else [queue, *self._taps_of(queue_name)]
        for each in queues:
            each.flush()
        return self._settled(queues)

    def subscribe(self, client: str, number: int, name: str, terms: TapTerms) -> str:
        """A client reads a subscription, which begins with its first member; why it cannot, empty if it does."""
        tap = self._taps.get(name)
        if tap is None:
            tap = self._tap(name, terms)
            self._begin(tap)
        elif tap.terms != terms:
            return f"there is a subscription {name!r} already: {tap.terms.describe()}"
        tap.members[client, number] = None
        return ""

    def leave_subscription(self, client: str, number: int, name: str) -> int | None:
        """A member reads no more; the number of the vacancy if it was the last one."""
        tap = self._taps.get(name)
        if tap is None or (client, number) not in tap.members:
            return None
        del tap.members[client, number]
        if tap.members:
            return None
        self._num_vacancies += 1
        tap.vacancy = self._num_vacancies
        return tap.vacancy

    def lose_member(self, client: str) -> list[tuple[str, int]]:
        """A client is gone: return the subscriptions that have no member now, each with the number of its vacancy."""
        members = [
            (name, each) for name, tap in self._taps.items() for each in tap.members if each[0] == client
        ]
        left = [(name, self.leave_subscription(*member, name)) for name, member in members]
        return [(name, vacancy) for name, vacancy in left if vacancy is not None]

    def vacant_subscriptions(self) -> list[tuple[str, int]]:
        """Return the subscriptions that have no member, each with the number of its vacancy."""
        return [(name, tap.vacancy) for name, tap in self._taps.items() if not tap.members]

    def give_up_subscription(self, name: str, vacancy: int) -> list[Instruction] | None:
        """Nobody is to succeed the last member of a subscription: it is gone; None if somebody has."""
        tap = self._taps.get(name)
        if tap is None or tap.members or tap.vacancy != vacancy:
            return None
        return self._remove_tap(tap)

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

    def clear(self) -> None:
        """Forget every client and everything that is held: nobody uses it any more."""
        self._clients.clear()
        self._queues.clear()
        self._taps.clear()
        self._admitting.clear()
        self._tally.crowded.clear()
        self._tally.touched.clear()
        self.leases.clear()

    @property
    def num_accepted(self) -> int:
        """How many items were put since the beginning."""
        return self._tally.num_items

    @property
    def num_lost(self) -> int:
        """How many of them were lost, with those who held their bytes."""
        return self._tally.num_lost

    @property
    def lost_bytes(self) -> int:
        """The size of those."""
        return self._tally.lost_bytes

    @property
    def accepted_bytes(self) -> int:
        """How many bytes were put since the beginning."""
        return self._tally.size_bytes

    def ripening(self) -> list[Instruction]:
        """What is to be done by a shell that takes this state over from another: its batches wait for more again."""
        return [
            Ripen(client.name, getter.ticket, getter.wanted.limits.max_wait_s or 0.0)
            for client in self._clients.values()
            for getter in client.operations.values()
            if isinstance(getter, Getter) and getter.items is None and getter.ripens and not getter.waited
            if isinstance(getter.wanted, Wanted)
        ]

    def deliver_again(self, client: str, ticket: int) -> list[Instruction]:
        """Deliver once more what was delivered to a getter and is not confirmed."""
        getter = self._delivery(client, ticket)
        if getter is None or getter.items is None:
            return []
        if any(item.lost for item in getter.items):
            return self._fail(getter)
        about = (getter.items, getter.complete, getter.part, getter.lease, getter.group)
        return [Deliver(client, ticket, *about)]

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

    def num_items(self, queue_name: QueueName) -> int:
        """Return how many items a getter of this queue can take."""
        queue = self._queues.get(queue_name)
        return len(queue.fifo) if queue else 0

    def num_dropped(self, name: str) -> int:
        """Return how many items a subscription has given up."""
        tap = self._taps.get(name)
        return 0 if tap is None else tap.num_dropped

    def held_bytes(self, queue_name: QueueName) -> int:
        """Return how many bytes a queue holds, those that it has room for and waits for included."""
        queue = self._queues.get(queue_name)
        return queue.fifo.size_bytes + queue.reserved_bytes + queue.leased_bytes if queue else 0

    @property
    def is_crowded(self) -> bool:
        """Whether puts wait, and all queues together hold about as much as they may."""
        tally = self._tally
        return tally.max_bytes > 0 and any(
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

    def set_clock(self, now: float) -> None:
        """Tell the time, in seconds: what comes from now on began then. For reports only; nothing is decided by it."""
        self._tally.now = now

    @property
    def bounded_bytes(self) -> int:
        """How many bytes count against the bound of the channel; 0 where there is none."""
        return self._tally.held_bytes

    @property
    def total_held_bytes(self) -> int:
        """How many bytes all queues hold together, dead letters included; subscriptions see the same bytes."""
        dead = sum(letter.item.size_bytes for letter in self.leases.dead.values())
        own = (queue for queue in self._queues.values() if not isinstance(queue, TapQueue))
        return dead + sum(queue.held_bytes for queue in own)

    def report(self) -> list[QueueSnapshot]:
        """Return what every queue holds, and who waits for what since when, in order of appearance."""
        leases, sent = self._leases_by_queue(()), self._deliveries_by_queue()
        return [report_of(queue, leases[queue], sent[queue]) for queue in self._queues.values()]

    def snapshot(self, *, at_rest: bool = False, done: Collection[int] = ()) -> Snapshot:
        """Return a record of everything (see `snapshot.py`), and its items.

        Args:
            at_rest: without clients: what they have is in its queues again.
            done: generations of leases whose items are done with: they are left out.
        """
        recorder = Recorder(at_rest=at_rest)
        leases, sent = self._leases_by_queue(done), self._deliveries_by_queue()
        # Of subscriptions that nobody reads any more something may still be given out.
        queues = dict.fromkeys((*self._queues.values(), *leases, *sent))
        letters: Iterable[BuriedItem] = self.leases.dead.values()
        if at_rest:
            # Subscriptions are of processes that live.
            queues = {queue: None for queue in queues if not isinstance(queue, TapQueue)}
            letters = [letter for letter in letters if letter.queue in queues]
        records = [recorder.queue(queue, sent[queue], leases[queue]) for queue in queues]
        dead = recorder.dead(letters)
        record = StateRecord(
            records,
            dead,
            self.leases.last_number,
            self.num_accepted,
            self.accepted_bytes,
            self.closed,
            self._all_ended,
            list(self._ended),
            self.num_lost + recorder.num_lost,
            self.lost_bytes + recorder.lost_bytes,
        )
        if not at_rest:
            record = record._replace(
                clients=[record_of(client) for client in self._clients.values()],
                crowded=[queue.name for queue in self._tally.crowded],
                admitting=[queue.name for queue in self._admitting],
                why_over=self.leases.contents(),
                now=self._tally.now,
                num_vacancies=self._num_vacancies,
            )
        return Snapshot(record, recorder.items, at_rest, recorder.rest, recorder.sent)

    def watch(
        self, snapshot: Snapshot, max_bytes: int = 0, give_up: Callable[[], None] = lambda: None
    ) -> None:
        """Let a snapshot be told what enters from now on, until `unwatch`.

        Args:
            snapshot: it.
            max_bytes: how much may enter; 0 is unbounded.
            give_up: called when more has entered; it is to call `unwatch`.
        """
        self._tally.watches.append(Watch(snapshot.entered, max_bytes, give_up))

    def unwatch(self, snapshot: Snapshot) -> None:
        """Tell a snapshot nothing more."""
        self._tally.watches = [each for each in self._tally.watches if each.entered is not snapshot.entered]

    def restore(self, record: StateRecord, payloads: Sequence[Any]) -> None:
        """Hold what a record says; `payloads[n]` is that of the item whose record names `n`.

        Its leases have no clocks: start one for each of `leases.all()`.

        Raises:
            ValueError: it holds something, or is waited for.
        """
        if self._queues or self._clients or self.num_accepted:
            message = f"it is not empty: {self.num_accepted} items were put, and {len(self._queues)} queues are there"
            raise ValueError(message)
        self.closed, self._all_ended = record.closed, record.all_ended
        self._ended = dict.fromkeys(as_name(name) for name in record.ended)
        tally = self._tally
        tally.num_items, tally.size_bytes = record.num_accepted, record.accepted_bytes
        tally.num_lost, tally.lost_bytes = record.num_lost, record.lost_bytes
        tally.now = record.now or tally.now
        self.leases.last_number, self._num_vacancies = record.last_number, record.num_vacancies
        self._clients = {client.name: Client(client.name) for client in record.clients}
        # Queues see subscriptions, and subscriptions queues.
        queues = [self._queue_of(each) for each in record.queues]
        restorer = Restorer(payloads, self.leases, self._clients, self._taps)
        for queue, each in zip(queues, record.queues, strict=True):
            restorer.fill(queue, each)
        for client in record.clients:
            restorer.arrange(client)
        for letter in record.dead:
            restorer.bury(self._queue(as_name(letter.queue)), letter)
        self.leases.arrange(record.why_over)
        for queue in queues:
            self._drop_if_idle(queue)
        tally.crowded = {self._queues[as_name(name)]: None for name in record.crowded}
        names = *map(as_name, record.admitting), *self._queues
        admitting = [self._queues[name] for name in names if name in self._queues]
        self._admitting = {queue: None for queue in admitting if queue.admission is not None}

    def _leases_by_queue(self, done: Collection[int]) -> defaultdict[NamedQueue, list[HeldItems]]:
        leases: defaultdict[NamedQueue, list[HeldItems]] = defaultdict(list)
        for lease in self.leases.all():
            if lease.generation not in done:
                leases[lease.queue].append(lease)
        return leases

    def _deliveries_by_queue(self) -> defaultdict[NamedQueue, list[Getter]]:
        """What was sent, is not confirmed, and is not on lease; parts stay with their shards."""
        sent: defaultdict[NamedQueue, list[Getter]] = defaultdict(list)
        for client in self._clients.values():
            for each in client.operations.values():
                if isinstance(each, Getter) and each.items is not None and each.lease is None:
                    sent[each.queue].append(each)
        return sent

    def depths(self) -> tuple[QueueDepth, ...]:
        """Return what every queue holds that holds anything or is waited for, in order of appearance."""
        return tuple(queue.depth() for queue in self._queues.values())

    def _put(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        item: Item,
        slot: int,
        *,
        complete: bool,
        wait: bool,
    ) -> list[Instruction]:
        if self.closed or self._all_ended or queue_name in self._ended:
            return [Refuse(client, ticket, NamedQueue.why_over(self.closed), self.describe(queue_name))]
        if slot and (queue_name not in self._queues or self._queues[queue_name].admission is None):
            message = f"slot {slot} is not one of queue {queue_name!r}, which gives none"
            raise ValueError(message)
        queue = self._queue(queue_name)
        if queue.admission is not None:
            queue.admission.use(item, slot)
        if not wait and (queue.putters or not queue.has_room(item.size_bytes)):
            if queue.admission is not None:
                queue.admission.unuse(item.slot)
            self._drop_if_idle(queue)
            return [Refuse(client, ticket, Reason.FULL, queue.describe())]
        out: list[Instruction] = []
        queue.put(Putter(self._client(client), ticket, queue, item, complete=complete), out)
        if queue.getters or queue.sharding is not None:
            self._settle((queue,), out)
        elif self._tally.touched:
            self._follow(out)
        return out

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

    def _after_get(self, getter: Getter, out: list[Instruction], wait: bool) -> None:
        queue = getter.queue
        queue.settle(self.closed, out)
        if not wait and getter.ticket in getter.client.operations and getter.items is None:
            queue.withdraw_get(getter)
            state = self._describe_for(getter, waited=False)
            out.append(Refuse(getter.client.name, getter.ticket, Reason.EMPTY, state))
        self._drop_if_idle(queue)
        if self._tally.crowded or self._tally.touched:
            self._follow(out)

    def _withdraw_admission(self, client: str, ticket: int) -> list[Instruction]:
        """Nobody waits any more for a slot or a version, or nobody wants the slot."""
        for queue in self._admitting:
            if queue.admission is not None and (state := queue.admission.withdraw(client, ticket)):
                out: list[Instruction] = [Refuse(client, ticket, Reason.CANCELLED, state)]
                self._settle((queue,), out)
                return out
        return []

    def _end_admission(self, queue: NamedQueue, out: list[Instruction]) -> None:
        if queue.admission is not None:
            queue.admission.end(NamedQueue.why_over(self.closed), queue.describe(), out)

    def _describe_for(self, operation: Getter | Putter, *, waited: bool = True) -> str:
        """What the queue of an operation looks like; for one that takes, also what the others hold: it may mean one.

        A get that did not wait for its item is one of many, perhaps, and only looks at its own.
        """
        text = operation.queue.describe()
        if isinstance(operation, Getter) and operation.terms is not None:
            client = operation.client
            if self.leases.is_at_bound(client):
                text = f"{text}; this consumer has {client.num_leased} on lease, and may have {self.leases.max_leased}"
        if isinstance(operation, Putter):
            return text
        if operation.wanted is None and not operation.is_shard and not waited:
            return text
        # What subscriptions have is there for them alone.
        others = [
            queue
            for queue in self._queues.values()
            if queue is not operation.queue and queue.fifo.num_items and not isinstance(queue.name, Tapped)
        ]
        named = [f"{queue.name!r} holds {queue.describe()}" for queue in others[:NUM_NAMED]]
        if len(others) > NUM_NAMED:
            named.append(f"{len(others) - NUM_NAMED} more hold something")
        return "; ".join([text, *named])

    def _fail(self, getter: Getter) -> list[Instruction]:
        """Items of a delivery are lost."""
        out: list[Instruction] = []
        lease = self.leases.of(getter)
        if lease is None:
            getter.queue.fail(getter, out)
            self._settle((getter.queue,), out)
            return out
        self.leases.withdraw(lease, out)
        getter.queue.tell_of_lost(getter, out)
        self._after_lease(lease, out)
        return out

    def _settle_lease(
        self, client: str, generation: int, settle: Callable[[HeldItems, list[Instruction]], None]
    ) -> list[Instruction] | None:
        lease = self.leases.find(client, generation)
        if lease is None:
            return None
        out: list[Instruction] = []
        settle(lease, out)
        self._after_lease(lease, out)
        return out

    def _withdraw_lease(self, getter: Getter, lease: HeldItems) -> list[Instruction]:
        out: list[Instruction] = []
        self.leases.withdraw(lease, out)
        out.append(Refuse(getter.client.name, getter.ticket, Reason.CANCELLED, getter.queue.describe()))
        self._after_lease(lease, out)
        return out

    def _after_lease(self, lease: HeldItems, out: list[Instruction]) -> None:
        """Its queue has room, or items again, and its client may have more of any queue."""
        queues = {lease.queue: None}
        if lease.getter is not None and lease.getter.client.parked:
            client = lease.getter.client
            if not self.leases.is_at_bound(client):
                waiting = dict.fromkeys(getter.queue for getter in client.parked)
                for queue in waiting:
                    queue.unpark(client)
                queues |= waiting
        self._settle(queues, out)

    def _settled(self, queues: Iterable[NamedQueue]) -> list[Instruction]:
        out: list[Instruction] = []
        self._settle(queues, out)
        return out

    def _after_delivery(self, queue: NamedQueue) -> list[Instruction]:
        out: list[Instruction] = []
        # As long as more can come the fate of a delivery moves nobody.
        if self.closed or queue.ended or queue.admission is not None:
            queue.settle(self.closed, out)
        self._drop_if_idle(queue)
        return out

    def _tap(self, name: str, terms: TapTerms) -> TapQueue:
        tap = self.tap_type(name, terms, self._tally, lambda: self._seen_by(terms))
        tap.ended = self._all_ended or terms.queue_name in self._ended
        return tap

    def _begin(self, tap: TapQueue) -> None:
        self._taps[tap.subscription] = self._queues[tap.name] = tap
        self._look_at_taps(tap.terms)

    def _queue_of(self, record: QueueRecord) -> NamedQueue:
        """The queue of a record, still empty."""
        name = as_name(record.name)
        if record.tap is None:
            return self._queue(name)
        queue_name, drops, *bounds = record.tap[:4]
        tap = self._tap(name.subscription, TapTerms(as_name(queue_name), drops, *bounds))
        tap.load(record.tap)
        if not tap.removed:
            self._begin(tap)
        return tap

    def _remove_tap(self, tap: TapQueue) -> list[Instruction]:
        del self._taps[tap.subscription], self._queues[tap.name]
        tap.remove()
        self._look_at_taps(tap.terms)
        return self._settled([tap, *self._seen_by(tap.terms)])

    def _seen_by(self, terms: TapTerms) -> list[NamedQueue]:
        """The queues that a subscription sees, those that are there."""
        if terms.queue_name is None:
            return [queue for queue in self._queues.values() if type(queue.name) is not Tapped]
        queue = self._queues.get(terms.queue_name)
        return [] if queue is None else [queue]

    def _look_at_taps(self, terms: TapTerms) -> None:
        for queue in self._seen_by(terms):
            queue.taps = self._taps_of(queue.name)

    def _taps_of(self, name: QueueName) -> tuple[TapQueue, ...]:
        return tuple(tap for tap in self._taps.values() if tap.terms.queue_name in (None, name))

    def _unsubscribed(self, client: str, ticket: int) -> list[Instruction]:
        return [Refuse(client, ticket, Reason.ENDED, "there is no such subscription any more")]

    def _end(self, queues: Collection[NamedQueue]) -> list[Instruction]:
        out: list[Instruction] = []
        for queue in queues:
            queue.ended = True
            self._end_admission(queue, out)
        self._settle(queues, out)
        return out

    def _settle(self, queues: Iterable[NamedQueue], out: list[Instruction]) -> None:
        for queue in queues:
            queue.settle(self.closed, out)
            queue.touch_taps()
            self._drop_if_idle(queue)
        if self._tally.crowded or self._tally.touched:
            self._follow(out)

    def _follow(self, out: list[Instruction]) -> None:
        """What has entered is seen by subscriptions, and where that, or anything else, made room, puts enter."""
        tally = self._tally
        while True:
            touched, tally.touched = tally.touched, {}
            for tap in touched:
                tap.settle(self.closed, out)
            self._relieve(out)
            if not tally.touched:
                return

    def _relieve(self, out: list[Instruction]) -> None:
        """Let puts enter that waited for what other queues held."""
        for queue in list(self._tally.crowded):
            queue.settle(self.closed, out)

    def _is_gone(self, name: QueueName) -> bool:
        """Whether that is a subscription which is not there."""
        return type(name) is Tapped and name not in self._queues

    def _queue(self, name: QueueName) -> NamedQueue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = self.queue_type(name, self.maxsize, self.max_bytes, self._tally)
            queue.ended = self._all_ended or name in self._ended
            if self._taps:
                queue.taps = self._taps_of(name)
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
        if queue.num_dead and isinstance(queue, TapQueue) and queue.removed:
            for number in [number for number, letter in self.leases.dead.items() if letter.queue is queue]:
                self.leases.discard(number)
        if queue.idle:
            self._queues.pop(queue.name, None)
            self._admitting.pop(queue, None)
