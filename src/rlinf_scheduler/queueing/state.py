"""All queues of one channel and all its clients: what the channel's server decides, without the server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar, TypeVar, Unpack

from rlinf_scheduler.queueing import messages
from rlinf_scheduler.queueing.ends import QueueEnds, lose_items
from rlinf_scheduler.queueing.item import Item, QueueName, as_name, check_weight
from rlinf_scheduler.queueing.messages import Instruction, Reason, Refuse
from rlinf_scheduler.queueing.operations import Getter, Putter
from rlinf_scheduler.queueing.out_of_turn import QueueClock
from rlinf_scheduler.queueing.policies import POLICIES, Bounds, ChannelData
from rlinf_scheduler.queueing.policy import Handler, Policy
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.snapshot import Restorer, Snapshot, Taker
from rlinf_scheduler.queueing.stats import phrase_for
from rlinf_scheduler.wording import counted

PolicyT = TypeVar("PolicyT", bound=Policy)


class ChannelState:
    """Named queues that appear on demand and vanish when empty and idle.

    Each holds at most `maxsize` items and, unless it is a single larger item, `max_bytes` bytes; 0 is unbounded. All
    together hold at most `total_bytes`, but a put to a queue where somebody waits does not wait for what others hold.
    Other bounds are those of policies; for `priority_wait_s` see `QueueClock`.
    An operation is known by its client's name and a ticket that is unique among that client's operations.
    Every event returns the instructions that follow from it, in order, for this client and for others.

    Attributes:
        queues: the queues, and the clients.
        policies: what is kept of each policy.

    >>> state = ChannelState()
    >>> state.apply(messages.Get(1, "default"), "consumer")
    []
    >>> accept, deliver = state.apply(messages.Put(7, "default"), "producer", Item("payload"))
    >>> accept, deliver[:3]
    (Accept(client='producer', ticket=7), ('consumer', 1, [Item(order=0, weight=0, size_bytes=0)]))
    """

    queues_type: ClassVar[type[QueueSet]] = QueueSet
    policy_types: ClassVar[tuple[type[Policy], ...]] = POLICIES
    taker_type: ClassVar[type[Taker]] = Taker

    def __init__(
        self,
        maxsize: int = 0,
        max_bytes: int = 0,
        total_bytes: int = 0,
        *,
        priority_wait_s: float | None = None,
        **bounds: Unpack[Bounds],
    ) -> None:
        self.queues = self.queues_type(maxsize, max_bytes, total_bytes, QueueClock(priority_wait_s))
        self.policies = [kind(self.queues, bounds) for kind in self.policy_types]
        self._handlers: dict[type, Handler] = {
            messages.Put: self._put,
            messages.Fill: self._fill,
            messages.Get: self._get,
            messages.Withdraw: self._withdraw,
            messages.Resend: self._resend,
            messages.Retract: self._retract,
            messages.Arrive: self._arrive,
            messages.Linger: self._linger,
            messages.Lose: self._lose,
        }
        self._handlers |= QueueEnds(self.queues, self.policies).handlers()
        for policy in self.policies:
            self._handlers |= policy.handlers()

    def apply(self, operation: Any, client: str = "", item: Any = None) -> list[Instruction]:
        """Do what a client asks for, or what time has brought.

        Args:
            operation: one of `messages`, or of those of a policy.
            client: whose it is.
            item: of a put its `Item`, of a `Fill` the payload.

        Raises:
            OperationOver: what it is about is over.
            ValueError: it makes no sense.
        """
        handle = self._handlers[type(operation)]
        return handle(operation, client) if item is None else handle(operation, client, item)

    def put_run(
        self, client: str, queue_name: QueueName, puts: Sequence[tuple[int, Item]], out: list[Instruction]
    ) -> int:
        """Take items that a producer sent in a row, which are here, each with its ticket, as long as that is simple.

        Returns: how many it was simple for; those that are left are to be put one by one.
        """
        queue = self.queues.open_queue(queue_name) if puts else None
        return 0 if queue is None else queue.put_run(self.queues.client(client), puts, out)

    def get_run(
        self, client: str, queue_name: QueueName, tickets: Sequence[int], out: list[Instruction]
    ) -> int:
        """Let a consumer ask for one item with each ticket, as long as that is simple.

        Returns: how many it was simple for: all or none; those that are left are to be asked one by one.
        """
        queues = self.queues
        queue = queues.open_queue(queue_name) if tickets else None
        if queue is None:
            return 0
        queue.get_run(queues.client(client), tickets, out)
        if queues.tally.touched:
            queues.follow(out)
        return len(tickets)

    def confirm(self, client: str, tickets: Iterable[int]) -> list[Instruction]:
        """Note that the items of deliveries were taken, one after the other; they will not come back."""
        out: list[Instruction] = []
        queues = self.queues
        known = queues.clients.get(client)
        operations = {} if known is None else known.operations
        for ticket in tickets:
            getter = operations.get(ticket)
            if isinstance(getter, Getter) and getter.items is not None and getter.is_confirmed:
                getter.queue.confirm(getter)
                queues.after_delivery(getter.queue, out)
        return out

    def lose_items(self, why: Callable[[Any], str]) -> list[Instruction]:
        """Lose items whose bytes are gone, which this process does not hold itself.

        What a getter can take leaves its queue, and the next getter of that queue is refused, once, and told of all of
        them. Unfinished puts are refused. What was given out is lost only if it comes back: its consumer may have its
        bytes. Delivered items that did not arrive are asked for again, by `Resend`.

        Args:
            why: says of a payload whose it was and how it was lost, in a phrase; "" if it is not lost.
        """
        held = (item for policy in self.policies for item in policy.items())
        return lose_items(self.queues, held, why)

    def set_clock(self, now: float) -> None:
        """Set the time, in seconds, at which the next operations begin.

        Only `priority_wait_s` is decided by it; all else is for reports.
        """
        self.queues.tally.clock.now = now

    def policy(self, kind: type[PolicyT]) -> PolicyT:
        """Return what is kept of a policy."""
        return next(policy for policy in self.policies if isinstance(policy, kind))

    def clear(self) -> None:
        """Forget every client and everything that is held: nobody uses it any more."""
        self.queues.clear()
        for policy in self.policies:
            policy.clear()

    def snapshot(self, *, at_rest: bool = False, done: Collection[int] = ()) -> Snapshot:
        """Return everything as data (see `snapshot.py`), and its items.

        Args:
            at_rest: without clients: what they have is in its queues again.
            done: generations of what is lent whose items are done with: they are left out.
        """
        return self.taker_type(self.queues, self.policies, at_rest=at_rest, done=done).take()

    def restore(self, data: ChannelData, payloads: Sequence[Any]) -> None:
        """Hold what a snapshot says; `payloads[n]` is that of the item which names `n`.

        What was lent has no clock: start one for each of it.

        Raises:
            ValueError: it holds something, or is waited for.
        """
        queues = self.queues
        if queues.all() or queues.clients or queues.tally.num_items:
            there = (
                f"{counted(len(queues.all()), 'queue')} there, {counted(queues.tally.num_items, 'item')} put"
            )
            raise ValueError(f"it is not empty: {there}")
        Restorer(queues, self.policies, payloads).restore(data)

    # -- puts ------------------------------------------------------------------------------------

    def _put(self, put: messages.Put, client: str, item: Item) -> list[Instruction]:
        """Accept an item now or when there is room, or refuse it; grant room to one that is announced."""
        queue_name, complete = as_name(put.queue), put.size_bytes is None
        item.weight = check_weight(item.weight)
        if item.question is not None:
            self.queues.note_asked(queue_name)
        if put.wait and complete and not item.slot:
            out: list[Instruction] = []
            if self.put_run(client, queue_name, ((put.ticket, item),), out):
                return out
        return self._put_alone(put, client, queue_name, item)

    def _put_alone(
        self, put: messages.Put, client: str, queue_name: QueueName, item: Item
    ) -> list[Instruction]:
        queues = self.queues
        if queues.is_over(queue_name):
            return [queues.refuse_put(client, put.ticket, queue_name)]
        queue = queues.find_or_make(queue_name)
        if queue is None:
            return queues.refuse_unsubscribed(client, put.ticket)
        try:
            over = queue.gate.begin_put(queue, item)
        except ValueError:
            queues.drop_if_idle(queue)
            raise
        if over:
            return [Refuse(client, put.ticket, Reason.SPENT, over)]
        size_bytes = item.size_bytes
        if not put.wait and (queue.putters or not queue.has_room(size_bytes)):
            queue.gate.drop_put(item)
            queues.drop_if_idle(queue)
            return [Refuse(client, put.ticket, Reason.FULL, queue.describe())]
        out: list[Instruction] = []
        putter, complete = queues.client(client), put.size_bytes is None
        if complete and queue.may_push(putter, size_bytes):
            queue.push(putter, put.ticket, item, out)
            queue.count()
        else:
            queue.put(Putter(putter, put.ticket, queue, item, complete, queues.tally.clock.now), out)
        if queue.getters or queue.parts.getters:
            queues.settle((queue,), out)
        elif queues.tally.touched:
            queues.follow(out)
        return out

    def _fill(self, fill: messages.Fill, client: str, payload: Any) -> list[Instruction]:
        """Let a granted item enter, whose bytes are here; drop them if its put was withdrawn."""
        putter = self.queues.operation(client, fill.ticket)
        if not isinstance(putter, Putter) or not putter.has_room or putter.complete:
            return []
        putter.item.payload = payload
        if fill.size_bytes is not None:
            putter.queue.reserve(0, fill.size_bytes - putter.item.size_bytes)
            putter.item.size_bytes = fill.size_bytes
        out: list[Instruction] = []
        putter.queue.fill(putter, out)
        return self.queues.settle((putter.queue,), out)

    # -- gets ------------------------------------------------------------------------------------

    def _get(self, get: messages.Get[Any], client: str) -> list[Instruction]:
        """Deliver what a consumer asks for, now or later, or refuse it."""
        if get.grant is not None:
            return self._handlers[type(get.grant)](get, client)
        if get.wait and get.batch_weight is None and get.limits is None and not get.group_size:
            out: list[Instruction] = []
            if self.get_run(client, as_name(get.queue), (get.ticket,), out):
                return out
        return self.queues.get(get, client, Getter)

    def _resend(self, resend: messages.Resend, client: str) -> list[Instruction]:
        """Deliver once more what was delivered to a getter and is not confirmed."""
        getter = self.queues.delivery(client, resend.ticket)
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

    def _linger(self, linger: messages.Linger, client: str) -> list[Instruction]:
        """Let a batch be what is there: it has waited as long as it was to."""
        getter = self.queues.operation(client, linger.ticket)
        if not isinstance(getter, Getter) or getter.items is not None:
            return []
        getter.waited = True
        return self.queues.settle((getter.queue,), [])

    def _arrive(self, arrive: messages.Arrive, client: str) -> list[Instruction]:
        """Note that the items of a delivery are in the client's process."""
        getter = self.queues.delivery(client, arrive.ticket)
        if getter is None:
            return []
        getter.queue.arrive(getter)
        out: list[Instruction] = []
        self.queues.after_delivery(getter.queue, out)
        return out

    def _retract(self, retract: messages.Retract, client: str) -> list[Instruction]:
        """Take a question out of its queue, now or when it comes back: nobody waits for its answer."""
        queue = self.queues.find(as_name(retract.queue))
        if queue is None:
            return []
        question = client, retract.number
        item = next((item for item in queue.fifo if item.question == question), None)
        if item is None:
            self.queues.tally.lender.retract(question)
            return []
        queue.fifo.discard(item)
        return self.queues.settle((queue,), [])

    # -- operations that are given up ------------------------------------------------------------

    def _withdraw(self, withdraw: messages.Withdraw, client: str) -> list[Instruction]:
        """Give an operation up for its client: Refuse(CANCELLED), and it has put or taken nothing.

        What still waits leaves its line. What was delivered goes back to the head of its queue at once, whether it has
        arrived or not: the client takes nothing for a ticket that it has given up, so what it asks for next stands
        behind. An operation that is over (accepted, confirmed, refused) gives nothing.
        """
        ticket = withdraw.ticket
        operation = self.queues.operation(client, ticket)
        if operation is None:
            found = (policy.withdraw(client, ticket) for policy in self.policies)
            return next((out for out in found if out), [])
        queue, out = operation.queue, list[Instruction]()
        if isinstance(operation, Putter):
            queue.withdraw_put(operation)
        elif operation.items is None:
            queue.withdraw_get(operation)
        else:
            operation.take_back(out)
        state = phrase_for(self.queues, operation)
        out.append(Refuse(client, ticket, Reason.CANCELLED, state))
        queue.release_stream(operation.client, out)
        return self.queues.settle((queue,), out)

    def _lose(self, lose: messages.Lose, client: str) -> list[Instruction]:
        """Drop the waits and unfinished puts of a client that is gone; give back what was in delivery to it."""
        lost = self.queues.clients.pop(client, None)
        out: list[Instruction] = []
        touched = {queue: None for policy in self.policies for queue in policy.lose(client, out)}
        for operation in list(lost.operations.values()) if lost is not None else ():
            touched[operation.queue] = None
            if isinstance(operation, Putter):
                operation.queue.withdraw_put(operation)
            elif operation.items is None:
                operation.queue.withdraw_get(operation)
            else:
                operation.lose(operation.ticket in lose.taken, out)
        for policy in self.policies:
            policy.forget(client)
        return self.queues.settle(touched, out)
