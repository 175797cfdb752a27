"""All queues of one channel and all its clients: what the channel's server decides, without the server."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import Any

from rlinf_scheduler.queueing.admission import Admissions, Move
from rlinf_scheduler.queueing.groups import GroupName
from rlinf_scheduler.queueing.instructions import Instruction, Reason, Refuse
from rlinf_scheduler.queueing.item import Item, QueueName
from rlinf_scheduler.queueing.leases import LeaseGetter, Leases
from rlinf_scheduler.queueing.operations import Getter, Putter
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.ranked import QueueClock
from rlinf_scheduler.queueing.restoring import Restorer
from rlinf_scheduler.queueing.sharding import Shardings, ShardPlan, WantedPart
from rlinf_scheduler.queueing.snapshot import ChannelData, Snapshot, Taker
from rlinf_scheduler.queueing.taps import Taps, TapTerms
from rlinf_scheduler.queueing.wanted import NO_LIMITS, LeaseTerms, Limits, Wanted, WantedGroup
from rlinf_scheduler.queueing.weights import check_weight
from rlinf_scheduler.wording import counted

# Of queues that are gone, the ends of so many are remembered: one-shot names do not pile up.
NUM_ENDED = 1 << 16


class ChannelState:
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

    queues_type: type[QueueSet] = QueueSet
    leases_type: type[Leases] = Leases
    admissions_type: type[Admissions] = Admissions
    shardings_type: type[Shardings] = Shardings
    taps_type: type[Taps] = Taps
    taker_type: type[Taker] = Taker

    def __init__(
        self,
        maxsize: int = 0,
        max_bytes: int = 0,
        total_bytes: int = 0,
        *,
        max_attempts: int = 0,
        max_leased: int = 0,
        priority_wait_s: float | None = None,
    ) -> None:
        queues = self.queues_type(maxsize, max_bytes, total_bytes, QueueClock(priority_wait_s))
        self.queues = queues
        self.leases = queues.tally.lender = self.leases_type(queues, max_attempts, max_leased)
        self.admissions = self.admissions_type(queues)
        self.shardings = self.shardings_type(queues)
        self.taps = self.taps_type(queues)

    def set_clock(self, now: float) -> None:
        """Set the time, in seconds, at which the next operations begin.

        Only `priority_wait_s` is decided by it; all else is for reports.
        """
        self.queues.tally.clock.now = now

    def clear(self) -> None:
        """Forget every client and everything that is held: nobody uses it any more."""
        self.queues.clear()
        self.leases.clear()
        self.admissions.clear()
        self.taps.clear()

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
        item.version, item.slot, item.origin = version, slot, origin
        if question:
            item.question = client, question
            self.queues.note_asked(queue_name)
        out: list[Instruction] = []
        if wait and complete and not slot and self.put_run(client, queue_name, ((ticket, item),), out):
            return out
        return self._put(client, ticket, queue_name, item, wait=wait, complete=complete)

    def put_run(
        self, client: str, queue_name: QueueName, puts: Sequence[tuple[int, Item]], out: list[Instruction]
    ) -> int:
        """A producer sent items in a row, which are here: as `put` of each, by its ticket, as long as that is simple.

        Returns: how many it was simple for; those that are left are to be put one by one.
        """
        queue = self.queues.open_queue(queue_name) if puts else None
        return 0 if queue is None else queue.put_run(self.queues.client(client), puts, out)

    def _put(
        self, client: str, ticket: int, queue_name: QueueName, item: Item, *, wait: bool, complete: bool
    ) -> list[Instruction]:
        if self.queues.is_over(queue_name):
            return [self.queues.refuse_put(client, ticket, queue_name)]
        queue = self.queues.find_or_make(queue_name)
        if queue is None:
            return self.queues.refuse_unsubscribed(client, ticket)
        try:
            over = queue.gate.begin_put(queue, item)
        except ValueError:
            self.queues.drop_if_idle(queue)
            raise
        if over:
            return [Refuse(client, ticket, Reason.SPENT, over)]
        size_bytes = item.size_bytes
        if not wait and (queue.putters or not queue.has_room(size_bytes)):
            queue.gate.drop_put(item)
            self.queues.drop_if_idle(queue)
            return [Refuse(client, ticket, Reason.FULL, queue.describe())]
        out: list[Instruction] = []
        putter = self.queues.client(client)
        if complete and queue.may_push(putter, size_bytes):
            queue.push(putter, ticket, item, out)
            queue.count()
        else:
            queue.put(Putter(putter, ticket, queue, item, complete, self.queues.tally.clock.now), out)
        if queue.getters or queue.parts.getters:
            self.queues.settle((queue,), out)
        elif self.queues.tally.touched:
            self.queues.follow(out)
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
        putter = self.queues.operation(client, ticket)
        if not isinstance(putter, Putter) or not putter.has_room or putter.complete:
            return []
        putter.item.payload = payload
        if size_bytes is not None:
            putter.queue.reserve(0, size_bytes - putter.item.size_bytes)
            putter.item.size_bytes = size_bytes
        out: list[Instruction] = []
        putter.queue.fill(putter, out)
        return self.queues.settle((putter.queue,), out)

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
        queue = self.queues.open_queue(queue_name) if tickets else None
        if queue is None:
            return 0
        queue.get_run(self.queues.client(client), tickets, out)
        if self.queues.tally.touched:
            self.queues.follow(out)
        return len(tickets)

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
        return self._get(client, ticket, queue_name, Wanted.checked(batch_weight, limits), wait)

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
        wanted = Wanted.checked(batch_weight, NO_LIMITS if limits is None else limits)
        return self._get(client, ticket, queue_name, wanted, wait, terms)

    def _get(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        wanted: Wanted | WantedGroup | None,
        wait: bool,
        terms: LeaseTerms | None = None,
    ) -> list[Instruction]:
        queue = self.queues.find_or_make(queue_name)
        if queue is None:
            return self.queues.refuse_unsubscribed(client, ticket)
        queue.gate.check(wanted)
        about = self.queues.client(client), ticket, queue, wanted, self.queues.tally.clock.now
        getter = Getter(*about) if terms is None else LeaseGetter(*about, terms=terms)
        queue.get(getter)
        return self.queues.after_get(getter, [], wait)

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
        """Ask for a shard's part of the step after `done_step`."""
        return self.shardings.get(client, ticket, queue_name, WantedPart(plan, index, done_step), wait=wait)

    def finish_part(
        self, client: str, queue_name: QueueName, index: int, step: int
    ) -> list[Instruction] | None:
        """Note that a shard is done with its part of a step."""
        return self.shardings.finish(client, queue_name, index, step)

    def acknowledge(
        self, client: str, generation: int, places: Collection[int] | None = None
    ) -> list[Instruction] | None:
        """Acknowledge items of a lease."""
        return self.leases.acknowledge(client, generation, places)

    def give_back(
        self,
        client: str,
        generation: int,
        places: Collection[int] | None = None,
        *,
        delay_s: float = 0,
        reason: str = "",
    ) -> list[Instruction] | None:
        """Give items of a lease back."""
        return self.leases.give_back(client, generation, places, delay_s=delay_s, reason=reason)

    def extend(self, client: str, generation: int, for_s: float | None = None) -> list[Instruction] | None:
        """Extend a lease."""
        return self.leases.extend(client, generation, for_s)

    def lapse(self, generation: int) -> list[Instruction]:
        """End a lease, or a delay, whose time is over."""
        return self.leases.lapse(generation)

    def put_back(self, number: int) -> list[Instruction] | None:
        """Put a dead letter back."""
        return self.leases.put_back(number)

    def discard(self, number: int) -> list[Instruction] | None:
        """Discard a dead letter."""
        return self.leases.discard(number)

    def admit(
        self, client: str, ticket: int, queue_name: QueueName, max_lag: int, *, wait: bool = True
    ) -> list[Instruction]:
        """Ask for a slot."""
        return self.admissions.admit(client, ticket, queue_name, max_lag, wait=wait)

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
        """Move a version on."""
        return self.admissions.move(client, ticket, queue_name, Move(version, batch_items, begins), wait=wait)

    def hold_slot(
        self, client: str, queue_name: QueueName, number: int, key: int, source: int = 0
    ) -> list[Instruction]:
        """Hold a copy of a slot."""
        return self.admissions.hold(client, queue_name, number, key, source)

    def let_go_of_slot(
        self, client: str, queue_name: QueueName, number: int, key: int, source: int = 0
    ) -> list[Instruction]:
        """Let go of a copy of a slot."""
        return self.admissions.let_go(client, queue_name, number, key, source)

    def subscribe(self, client: str, number: int, name: str, terms: TapTerms) -> str:
        """Read a subscription; return why not, empty if it does."""
        return self.taps.subscribe(client, number, name, terms)

    def leave_subscription(self, client: str, number: int, name: str) -> int | None:
        """Read a subscription no more."""
        return self.taps.leave(client, number, name)

    def lose_member(self, client: str) -> list[tuple[str, int]]:
        """Lose a client that may read subscriptions."""
        return self.taps.lose_member(client)

    def vacant_subscriptions(self) -> list[tuple[str, int]]:
        """Return the subscriptions without a member."""
        return self.taps.vacant()

    def give_up_subscription(self, name: str, vacancy: int) -> list[Instruction] | None:
        """End a subscription that nobody reads."""
        return self.taps.give_up(name, vacancy)

    def terms_of(self, name: str) -> TapTerms | None:
        """Return what a subscription is."""
        return self.taps.terms_of(name)

    def num_dropped(self, name: str) -> int:
        """Return how many items a subscription has given up."""
        return self.taps.num_dropped(name)

    def deliver_again(self, client: str, ticket: int) -> list[Instruction]:
        """Deliver once more what was delivered to a getter and is not confirmed."""
        getter = self.queues.delivery(client, ticket)
        if getter is None or getter.items is None:
            return []
        if not any(item.lost for item in getter.items):
            return [getter.delivery(getter.items)]
        # Items of it are lost: the others go back, and the getter is told.
        out: list[Instruction] = []
        getter.take_back(out)
        getter.queue.drop_lost(getter)
        getter.queue.tell_of_lost(getter, out)
        return self.queues.settle((getter.queue,), out)

    def retract(self, client: str, queue_name: QueueName, question: int) -> list[Instruction]:
        """Nobody waits for the answer to a client's question: it leaves its queue, if it is there."""
        queue = self.queues.find(queue_name)
        if queue is None:
            return []
        item = next((item for item in queue.fifo if item.question == (client, question)), None)
        if item is None:
            return []
        queue.fifo.discard(item)
        return self.queues.settle((queue,), [])

    def ripen(self, client: str, ticket: int) -> list[Instruction]:
        """A batch has waited as long as it was to wait for more than the least of it."""
        getter = self.queues.operation(client, ticket)
        if not isinstance(getter, Getter) or getter.items is not None:
            return []
        getter.waited = True
        return self.queues.settle((getter.queue,), [])

    def withdraw(self, client: str, ticket: int) -> list[Instruction]:
        """Its client gives an operation up: Refuse(CANCELLED), and it has put or taken nothing.

        What still waits leaves its line. What was delivered goes back to the head of its queue at once, whether it has
        arrived or not: the client takes nothing for a ticket that it has given up, so what it asks for next stands
        behind. An operation that is over (accepted, confirmed, refused) gives nothing.
        """
        operation = self.queues.operation(client, ticket)
        if operation is None:
            return self.admissions.withdraw(client, ticket)
        queue, out = operation.queue, list[Instruction]()
        if isinstance(operation, Putter):
            queue.withdraw_put(operation)
        elif operation.items is None:
            queue.withdraw_get(operation)
        else:
            operation.take_back(out)
        state = self.queues.describe_for(operation)
        out.append(Refuse(client, ticket, Reason.CANCELLED, state))
        queue.release_stream(operation.client, out)
        return self.queues.settle((queue,), out)

    def arrive(self, client: str, ticket: int) -> list[Instruction]:
        """The items of a delivery are in the client's process, not yet taken by anybody there."""
        getter = self.queues.delivery(client, ticket)
        if getter is None:
            return []
        getter.queue.arrive(getter)
        out: list[Instruction] = []
        self.queues.after_delivery(getter.queue, out)
        return out

    def confirm(self, client: str, ticket: int) -> list[Instruction]:
        """The items of a delivery were taken; they will not come back."""
        return self.confirm_run(client, (ticket,))

    def confirm_run(self, client: str, tickets: Iterable[int]) -> list[Instruction]:
        """The items of several deliveries were taken: as `confirm` of each, one after the other."""
        out: list[Instruction] = []
        known = self.queues.clients.get(client)
        operations = {} if known is None else known.operations
        for ticket in tickets:
            getter = operations.get(ticket)
            if isinstance(getter, Getter) and getter.items is not None and getter.is_confirmed:
                getter.queue.confirm(getter)
                self.queues.after_delivery(getter.queue, out)
        return out

    def lose(self, client: str, taken: Collection[int] = ()) -> list[Instruction]:
        """A client is gone: its waits and unfinished puts are dropped, items in delivery given back.

        Args:
            client: its name.
            taken: the tickets of those deliveries that are confirmed instead; their items were taken.
        """
        lost = self.queues.clients.pop(client, None)
        touched = dict.fromkeys(self.admissions.lose(client))
        out: list[Instruction] = []
        for operation in list(lost.operations.values()) if lost is not None else ():
            touched[operation.queue] = None
            if isinstance(operation, Putter):
                operation.queue.withdraw_put(operation)
            elif operation.items is None:
                operation.queue.withdraw_get(operation)
            else:
                operation.lose(operation.ticket in taken, out)
        self.leases.forget(client)
        return self.queues.settle(touched, out)

    def lose_items(self, why: Callable[[Any], str]) -> list[Instruction]:
        """The bytes of some items are gone, which this process does not hold itself.

        What a getter can take leaves its queue, and the next getter of that queue is refused, once, and told of all of
        them. Unfinished puts are refused. What was given out is lost only if it comes back: whoever has it may have its
        bytes. Delivered items that did not arrive are asked for again, by `deliver_again`.

        Args:
            why: says of a payload whose it was and how it was lost, in a phrase; "" if it is not lost.
        """
        operations = [each for client in self.queues.clients.values() for each in client.operations.values()]
        held = (item for lease in self.leases.all() for item in lease.items.values())
        sent = (item for each in operations if isinstance(each, Getter) for item in each.items or ())
        dead = (letter.item for letter in self.leases.dead.values())
        kept = (item for queue in self.queues.all() for item in queue.items())
        for item in chain(kept, sent, held, dead):
            item.lost = item.lost or why(item.payload)
        self.queues.tally.has_losses = True
        out: list[Instruction] = []
        for putter in operations:
            if isinstance(putter, Putter) and putter.complete and (lost := why(putter.item.payload)):
                putter.queue.withdraw_put(putter)
                out.append(Refuse(putter.client.name, putter.ticket, Reason.LOST, f"its item {lost}"))
                putter.queue.release_stream(putter.client, out)
        queues = list(self.queues.all())
        for queue in queues:
            queue.drop_lost()
        return self.queues.settle(queues, out)

    def end(self, queue_name: QueueName) -> list[Instruction]:
        """Take no further put into a queue; what came before is still delivered, and then getters are refused."""
        self.queues.ended[queue_name] = None
        if len(self.queues.ended) > NUM_ENDED:
            gone = next((name for name in self.queues.ended if self.queues.find(name) is None), queue_name)
            del self.queues.ended[gone]
        queue = self.queues.find(queue_name)
        taps: list[Queue] = [*self.taps.only_on(queue_name)]
        return self._end(taps if queue is None else [queue, *taps])

    def end_all(self) -> list[Instruction]:
        """End every queue, also those that nobody has used yet."""
        self.queues.all_ended = True
        return self._end(list(self.queues.all()))

    def flush(self, queue_name: QueueName) -> list[Instruction]:
        """Let batches take what this queue holds now, whether it reaches their weight or not."""
        queue = self.queues.find(queue_name)
        queues: list[Queue] = [*([] if queue is None else [queue]), *self.taps.on(queue_name)]
        for each in queues:
            each.flush()
        return self.queues.settle(queues, [])

    def close(self) -> list[Instruction]:
        """Refuse puts from now on, waiting ones too; getters drain what is there."""
        if self.queues.closed:
            return []
        self.queues.closed = True
        out: list[Instruction] = []
        for queue in self.queues.all():
            queue.refuse_puts(out)
            queue.gate.end(Queue.why_over(self.queues.closed), queue.describe(), out)
        return self.queues.settle(list(self.queues.all()), out)

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot(self, *, at_rest: bool = False, done: Collection[int] = ()) -> Snapshot:
        """Return everything as data (see `snapshot.py`), and its items.

        Args:
            at_rest: without clients: what they have is in its queues again.
            done: generations of leases whose items are done with: they are left out.
        """
        return self.taker_type(self.queues, self.leases, self.admissions, self.taps, at_rest=at_rest).take(
            done
        )

    def restore(self, data: ChannelData, payloads: Sequence[Any]) -> None:
        """Hold what a snapshot says; `payloads[n]` is that of the item which names `n`.

        Its leases have no clocks: start one for each of `leases.all()`.

        Raises:
            ValueError: it holds something, or is waited for.
        """
        queues = self.queues
        if queues.all() or queues.clients or queues.num_accepted:
            there = f"{counted(len(queues.all()), 'queue')} there, {counted(queues.num_accepted, 'item')} put"
            raise ValueError(f"it is not empty: {there}")
        Restorer(queues, self.leases, self.admissions, self.taps, payloads).restore(data)

    def _end(self, queues: Collection[Queue]) -> list[Instruction]:
        out: list[Instruction] = []
        for queue in queues:
            queue.ended = True
            queue.gate.end(Queue.why_over(self.queues.closed), queue.describe(), out)
        return self.queues.settle(queues, out)
