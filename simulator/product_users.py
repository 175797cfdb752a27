"""The users of a process that runs the product: threads that block in `ChannelConnection.run`, and handles.

A thread may be interrupted anywhere, or its call cancelled; a handle may be dropped, looked at late, or cancelled.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.access import _take
from rlinf_scheduler.channel.batch import BatchOperation, Delivery, load_all
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.held import FETCH_TIMEOUT_S
from rlinf_scheduler.channel.inspecting import copies_of_first
from rlinf_scheduler.channel.lease import Lease, LeaseContext
from rlinf_scheduler.channel.lease_operation import LeaseOperation
from rlinf_scheduler.channel.operation import ChannelOperation, ItemTerms
from rlinf_scheduler.channel.shard import ShardOperation
from rlinf_scheduler.channel.spec import group_ranks
from rlinf_scheduler.comm.cancellation import Scope, working_in
from rlinf_scheduler.comm.codec import Encoded, encode
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.operation import OperationPromise
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import (
    BatchImpossible,
    ChannelClosed,
    ChannelEmpty,
    ChannelError,
    ChannelFull,
    ChannelLost,
    ChannelTimeout,
    ChannelUnanswered,
    ItemsLost,
    LeaseExpired,
)
from rlinf_scheduler.observe.reasons import ASK_FROM_S, LATE_FRACTION, MAX_LATE_S, MIN_LATE_S
from rlinf_scheduler.queueing.item import SubscriptionName
from rlinf_scheduler.queueing.leases import LeaseTerms
from rlinf_scheduler.queueing.sharding import DonePart, WantedPart
from rlinf_scheduler.queueing.taps import Subscribe, Unsubscribe
from rlinf_scheduler.queueing.wanted import Limits
from simulator.host import Host
from simulator.ledger import Ledger
from simulator.ranks import Rank
from simulator.script import BATCHES, NOWAIT, SHARDS, TAP, Call, Script
from simulator.threads import UserThread
from simulator.users import UserCall
from simulator.watched import Names
from simulator.world import Violation

KINDS = {"put": "put", "get": "get", "peek": "get", "group": "get_group", "lease": "lease"}
OPERATIONS: dict[str, type[ChannelOperation]] = {
    "put": ChannelOperation,
    "get": ChannelOperation,
    "peek": ChannelOperation,
    "lease": LeaseOperation,
    "step": ShardOperation,
}
# What the server is asked for that is no operation.
REQUESTS = ("end", "flush", "join", "leave", "subscribe", "unsubscribe")
OUTCOMES: dict[type[BaseException], str] = {
    ChannelFull: "full",
    ChannelEmpty: "empty",
    ChannelLost: "lost",
    ItemsLost: "lost",
    LeaseExpired: "expired",
    ChannelUnanswered: "unanswered",
    ChannelTimeout: "timed out",
    BatchImpossible: "impossible",
}
ASK_S = 5.0
# How long a user works at what it has on lease, and what becomes of it: done, failed, failed and to be tried later,
# left without a word, or so late that its own process has given the items back before.
WORK_US = (0, 2_000, 100_000, 2_000_000)
FATES = ("done", "failed", "failed, later", "left", "late")
SHARES = (60, 15, 10, 10, 5)
DELAYS_S = (0.002, 1.0)
# Of a lease that lasts so long two signs of life may be late.
HEARD_US = 500_000
# At so many places at most a thread may be interrupted in one call.
NUM_POINTS = 8
# So much later than it may an end come, on an I/O thread with much to do.
LATE_US = 10_000
# What items are filled with: nothing that is there where nothing was written.
FILLING = b"\xe5"


class ProductCall(UserCall):
    """One call, as its user sees it.

    Attributes:
        operation: what it asks for; None of a request.
        promise: of its end, as long as the user has that.
        thread: which runs it, and waits.
        scope: by which that is cancelled.
        lease: what it has on lease, as long as it keeps that.
        work_us: how long it works at that.
        fate: what becomes of that.
        hindered_us: how long nothing could be done or said until it began.
    """

    __slots__ = (
        "fate",
        "hindered_us",
        "lease",
        "operation",
        "promise",
        "scope",
        "thread",
        "work_us",
    )

    def __init__(self, step: Call) -> None:
        super().__init__(step)
        self.operation: ChannelOperation | None = None
        self.promise: OperationPromise | None = None
        self.thread: UserThread | None = None
        self.scope = Scope()
        self.lease: Lease | None = None
        self.work_us = self.hindered_us = 0
        self.fate = ""

    @property
    def limit_us(self) -> int | None:
        """How long it may take, with the server's time to answer; None for ever."""
        operation = self.operation
        if operation is None:
            return int(ASK_S * 1e6)
        if operation.timeout_s is None and operation.wait:
            return None
        if not operation.wait:
            return 5_000_000
        timeout_s, late_s = operation.timeout_s or 0.0, operation.grace_s
        if self.thread is not None and timeout_s >= ASK_FROM_S:  # then it is asked why
            late_s = max(late_s, min(MAX_LATE_S, max(MIN_LATE_S, LATE_FRACTION * timeout_s)))
        return int((max(timeout_s, 0.01) + late_s) * 1e6)


class ChannelUsers:
    """Users of one channel in one process.

    Attributes:
        connection: its connection to the channel.
        calls: everything that was asked, by number.
        ranks: who asks here for parts, by shard.
    """

    def __init__(
        self,
        host: Host,
        messenger: Messenger,
        connection: ChannelConnection,
        ledger: Ledger,
        names: Names,
        script: Script,
        hindered_us: Callable[[], int],
    ) -> None:
        self.host = host
        self.name = host.name
        self.world = host.world
        self.calls: dict[int, ProductCall] = {}
        self.ranks: dict[int, Rank] = {}
        self._messenger = messenger
        self.connection = connection
        self._ledger = ledger
        self._names = names
        self._script = script
        self._hindered_us = hindered_us
        self._draw = host.world.randomness("users", host.name)
        # What one thread does, one after the other; the first is under way.
        self._thread: deque[ProductCall] = deque()

    # -- users' threads ------------------------------------------------------------------------------

    def call(self, step: Call) -> None:
        """A user calls; one that blocks when its thread is free."""
        call = ProductCall(step)
        if not step.blocking:
            self._begin(call)
            return
        self._thread.append(call)
        if len(self._thread) == 1:
            self._begin(call)

    def _begin(self, call: ProductCall) -> None:
        step = call.step
        call.began_us, call.paused_us = self.world.now_us, self.host.paused_us
        self.calls[step.number] = call
        self.world.note(self.name, "begins", step.kind, step.number, step.queue, step.timeout_us)
        if step.kind not in REQUESTS:
            self._start(call)
        elif step.kind in ("end", "flush", "leave") and not step.fails:
            self._ask_after_puts(call)
        else:
            self._ask(call)
        if step.drop == "begun" and call.thread is None:
            self._drop(call)
        elif step.drop in ("later", "cancel"):
            action = self._drop if step.drop == "later" else self._cancel
            self.host.later(int(5_000 * self._draw.random()), action, call)

    def _start(self, call: ProductCall) -> None:
        step = call.step
        call.hindered_us = self._hindered_us()
        operation = call.operation = self._operation(call)
        self._names.calls[self.name, operation.ticket] = step.number
        encoded = None
        if step.kind == "put":
            encoded = encode(_payload(step))
            size_bytes = encoded.object_bytes
            self._ledger.put_begins(
                self.name, step.number, step.queue, size_bytes, step.weight, step.priority, step.group
            )
        if step.blocking and step.kind != "lease":
            self._block(call, operation, encoded)
            return
        operation.blocks = step.blocking
        call.promise = self.connection.start(operation, encoded)
        call.promise.add_done_callback(partial(self._on_done, call))

    # -- threads that block --------------------------------------------------------------------------

    def _block(self, call: ProductCall, operation: ChannelOperation, encoded: Encoded | None) -> None:
        thread = call.thread = UserThread(self.host, call.step.number, self._draw, self._on_send)
        thread.ticket = operation.ticket
        if call.step.drop == "begun":
            thread.points_left = self._draw.randrange(NUM_POINTS)
        thread.leaves_at_end = call.step.drop == "delivered" and call.step.kind != "peek"
        thread.run(self._run, call, operation, encoded)

    def _run(self, call: ProductCall, operation: ChannelOperation, encoded: Encoded | None) -> None:
        """Call as `Channel` does; in the thread."""
        outcome = "accepted" if encoded is not None else "taken"
        load = None if encoded is not None else partial(self._load, call)
        try:
            with working_in(call.scope):
                if call.step.kind == "peek":
                    (item,) = copies_of_first(self.connection, operation.queue_name, 1)
                    self._ledger.looks_at(number_of(item.load()), call.step.queue, call.began_us)
                    outcome = "dropped"
                else:
                    call.items = self.connection.run(operation, encoded, load)
        except (KeyboardInterrupt, asyncio.CancelledError):
            outcome = "dropped"
        except Exception as error:  # noqa: BLE001 - it is looked at, whatever it is
            outcome = _outcome_of(error)
        self._end(call, outcome)

    def _load(self, call: ProductCall, items: Delivery) -> list[int]:
        """Read items, which are the user's from then on."""
        if isinstance(call.operation, ShardOperation):
            call.part_step, *_ = items.told.grant
        return [number_of(item.load()) for item in items]

    def _on_send(self, thread: UserThread) -> None:
        """A thread is about to send an operation by itself."""
        self.world.note(self.name, "sends", thread.number, thread.ticket)
        self._names.direct.add((self.name, thread.ticket))
        if self.calls[thread.number].step.kind == "put":
            self._ledger.put_goes_by_itself(thread.number)

    def end(self) -> None:
        """The process has died."""
        for call in self.calls.values():
            if call.thread is not None:
                call.thread.kill()

    # -- handles, and the end of calls ---------------------------------------------------------------

    def _operation(self, call: ProductCall) -> ChannelOperation:
        """Return what a call asks for, as `Channel` does."""
        step = call.step
        timeout_s = None if step.timeout_us in (None, NOWAIT) else (step.timeout_us or 0) / 1e6
        limits, weight = None, None
        if step.kind in BATCHES or (step.kind == "lease" and step.limits is not None):
            limits = None if step.limits is None else Limits(*step.limits)
            weight = step.weight or None
            if limits is None and weight is None:
                limits = Limits(1, 0, 0, None)
        make: type[ChannelOperation] = OPERATIONS.get(step.kind, BatchOperation)
        operation = make(
            KINDS.get(step.kind, "get_batch"),
            SubscriptionName(TAP) if step.queue == TAP else step.queue,
            timeout_s,
            self.connection.now,
            wait=step.timeout_us != NOWAIT,
        )
        if isinstance(operation, BatchOperation):
            operation.batch_weight, operation.limits = weight, limits
        operation.channel = self.connection.ref.spec.name
        if step.kind == "put":
            operation.weight = step.weight
            if step.priority or step.group is not None:
                operation.item = ItemTerms(step.priority, group=step.group)
        elif step.kind == "group" and isinstance(operation, BatchOperation):
            operation.group_size = step.weight
        elif isinstance(operation, LeaseOperation):
            self._plan_lease(call, operation)
        elif isinstance(operation, ShardOperation) and self._script.plan is not None:
            rank, plan = self.ranks[step.weight], self._script.plan
            if rank.members is not None:
                self.connection.groups[rank.members.group] = None
                rank.members = self.connection._session.members.newest(rank.members)
                plan = plan.of(group_ranks(rank.members))
            call.done_step = rank.done_step
            operation.request = WantedPart(plan, step.weight, call.done_step)
        return operation

    def _drop(self, call: ProductCall) -> None:
        """The user is interrupted, or drops the handle."""
        if call.outcome:
            return
        if call.thread is not None:
            call.thread.interrupt()
            return
        if call.operation is None:
            self._leave(call.step)
        elif call.step.blocking:
            self.connection.drop(call.operation)
        call.promise = None
        self._end(call, "dropped")

    def _cancel(self, call: ProductCall) -> None:
        """The user asks for the end and waits for it; of a thread that blocks another one does."""
        if call.thread is not None:
            call.scope.cancel()
            return
        self._messenger.submit(partial(self._cancel_now, call))

    def _cancel_now(self, call: ProductCall) -> None:
        if not call.outcome and call.promise is not None:
            call.promise.cancel()

    def _on_done(self, call: ProductCall, promise: Promise[Any]) -> None:
        """The end of an operation has come; its user finds it a little later."""
        if call.outcome:
            return
        call.ended_us = self.world.now_us
        outcome = _outcome(promise)
        if outcome or call.operation is None or call.operation.kind == "put":
            call.promise = None
            self._end(call, outcome or "accepted")
            return
        # Most users wait for it; some look at their handles some time.
        soon = call.step.blocking or self._draw.random() < 0.7
        self.host.later(self._draw.randrange(100 if soon else 3_000_000), self._wake, call)

    def _wake(self, call: ProductCall) -> None:
        """The user finds items: from here on it alone decides whether they are taken."""
        operation, promise = call.operation, call.promise
        if call.outcome or operation is None or promise is None:
            return
        if call.step.drop == "delivered":
            del promise
            self._drop(call)
            return
        if isinstance(operation, LeaseOperation):
            self._open(call, operation, promise)
            return
        take = partial(_take, self.connection, operation, partial(self._load, call))
        call.items = AsyncHandle(promise, take, operation.describe).wait()
        call.promise = None
        self._end(call, "taken")

    def _end(self, call: ProductCall, outcome: str) -> None:
        step = call.step
        call.outcome = outcome
        if not call.ended_us:
            call.ended_us = self.world.now_us
        items = call.items if outcome == "taken" and call.items is not None else []
        self.world.note(self.name, "ends", step.kind, step.number, outcome, *items)
        if step.kind == "put":
            self._ledger.put_ends(step.number, outcome)
        elif step.kind == "step":
            if outcome == "taken":
                self._ledger.trains(self.name, SHARDS, step.weight, call.part_step, items)
            self.ranks[step.weight].ended(call)
        elif items and call.lease is None:
            self._ledger.takes(self.name, items, self.world.now_us, step.queue)
        if step.blocking:
            self._thread.popleft()
            if self._thread:
                self.host.later(self._draw.randrange(50), self._begin, self._thread[0])

    # -- requests ------------------------------------------------------------------------------------

    def _ask_after_puts(self, call: ProductCall) -> None:
        over: Promise[None] = Promise()
        over.add_done_callback(lambda _: self.host.later(self._draw.randrange(60), self._ask, call))
        self.connection.client.hand_over(self.connection.requests.await_puts, over)

    def _ask(self, call: ProductCall) -> None:
        if call.outcome:
            return
        # Its puts were waited for: that takes as long as it takes.
        call.began_us, call.paused_us = self.world.now_us, self.host.paused_us
        message, answer = self._request(call.step)
        asked = self.connection.requests.begin(message, answer, ASK_S)
        asked.add_done_callback(partial(self._on_done, call))

    def _request(self, step: Call) -> tuple[Any, Any]:
        match step.kind:
            case "end":
                return control_wire.EndQueue(step.queue), control_wire.Done
            case "flush":
                return control_wire.Flush(step.queue), control_wire.Done
            case "join":
                return self._join(step), control_wire.Done
            case "leave":
                return control_wire.Leave(step.turn, step.fails), None
            case "subscribe":
                queue, *bounds = self._script.tap or (None, 0, 0)
                return Subscribe(step.number, TAP, queue, *bounds), control_wire.Done
            case _:
                return Unsubscribe(step.turn, TAP, step.fails), control_wire.Done

    def _join(self, step: Call) -> control_wire.Join:
        """Ask for a place, as `Producer` does."""
        rank = self.ranks.get(step.client)
        if rank is None or rank.members is None or not self._script.group_produces:
            return control_wire.Join(step.number, self.name.partition(".")[0])
        rank.members = self.connection._session.members.newest(rank.members)
        return control_wire.Join(step.number, f"{rank.members.group}:{rank.index}", group_ranks(rank.members))

    def _leave(self, step: Call) -> None:
        """Whoever is interrupted on the way in or out leaves as one who failed."""
        number = step.turn or step.number
        if step.kind in ("join", "leave"):
            self.connection.requests.tell(control_wire.Leave(number, failed=True))
        elif step.kind in ("subscribe", "unsubscribe"):
            self.connection.requests.tell(Unsubscribe(number, TAP, True))

    def acknowledge_part(self, index: int, step: int) -> None:
        """A rank is done with its part, and says so before it asks for the next one."""
        done = DonePart(SHARDS, index, step)
        self.connection.requests.begin(done, control_wire.Done, ASK_S)

    # -- leases --------------------------------------------------------------------------------------

    def _plan_lease(self, call: ProductCall, operation: LeaseOperation) -> None:
        operation.terms = LeaseTerms(call.step.ttl_us / 1e6, self.name)
        call.work_us = self._draw.choice(WORK_US)
        call.fate = self._draw.choices(FATES, SHARES)[0]
        operation.keep_s = call.work_us / 2e6 if call.fate == "late" else math.inf

    def _open(self, call: ProductCall, operation: LeaseOperation, promise: OperationPromise) -> None:
        """The user's block begins; at its end it says what became of the items."""
        context = LeaseContext(self.connection, operation, load_all)
        lease = call.lease = context._open(operation, promise.result(0))
        call.items = [number_of(item) for item in lease.items]
        self._end(call, "taken")
        if len(lease.items) > 1 and self._draw.random() < 0.5:
            # The first one is settled by itself.
            settle = lease.ack if self._draw.random() < 0.7 else lease.nack
            self._later(call, call.work_us // 3, partial(settle, only=0, async_op=True))
        match call.fate:
            case "left":
                self.host.later(call.work_us, self._forget_lease, call)
            case "done" | "late":
                self._later(call, call.work_us, partial(lease.ack, async_op=True))
            case _:
                delay_s = self._draw.choice(DELAYS_S) if call.fate == "failed, later" else 0.0
                self._later(call, call.work_us, partial(lease.nack, delay_s, async_op=True))

    def _later(self, call: ProductCall, delay_us: int, settle: Callable[[], AsyncHandle[Any]]) -> None:
        self.host.later(delay_us, self._settle, call, settle)

    def _settle(self, call: ProductCall, settle: Callable[[], AsyncHandle[Any]]) -> None:
        lease = call.lease
        if lease is None or not lease.num_left:
            # It is over: what is left of the block keeps nothing.
            self._forget_lease(call)
            return
        self.world.note(self.name, "settles lease", call.step.number, call.fate, *(call.items or ()))
        handle = settle()
        handle.settled.add_done_callback(lambda _: self.host.later(10, self._settled, call, handle))
        if not lease.num_left:
            self._forget_lease(call)

    def _settled(self, call: ProductCall, handle: AsyncHandle[Any]) -> None:
        """What it has said was believed, or came too late."""
        try:
            handle.wait()
        except LeaseExpired:
            self.world.note(self.name, "settled lease too late", call.step.number)
            is_heard_of = call.step.ttl_us >= HEARD_US and self._hindered_us() == call.hindered_us
            if is_heard_of and call.fate != "late":
                message = (
                    f"what call {call.step.number} has on lease is given to others, and its process lives"
                )
                raise Violation(message, (call.step.number,)) from None
        except (ChannelLost, ChannelUnanswered):
            return

    def _forget_lease(self, call: ProductCall) -> None:
        call.lease = call.promise = None

    # -- at the end ----------------------------------------------------------------------------------

    def check_nothing_is_open(self) -> None:
        """Check that nothing is under way that nobody waits for."""
        client = self.connection.client
        # A put goes on without its handle.
        dropped = {
            call.operation.ticket
            for call in self.calls.values()
            if call.operation is not None
            and call.outcome == "dropped"
            and (call.thread or call.step.kind != "put")
        }
        left = [ticket for ticket in client.operations if ticket in dropped]
        left += [ticket for ticket in client._state._operations if ticket not in client.operations]
        if self.host.alive and left:
            message = f"{self.name} still knows of operations {left}, which nobody wants"
            raise Violation(message, (self.name,))

    def check_calls(self) -> None:
        """Check that every call has ended, and by its deadline."""
        for number, call in self.calls.items():
            if not call.outcome:
                message = f"{call.step.kind} {number} of {self.name} never ends"
                raise Violation(message, (number,))
            if call.limit_us is None:
                continue
            may_take_us = call.limit_us + LATE_US
            paused_us = self.host.paused_us - call.paused_us
            if call.operation is None:
                # What a request had waited before its process stood still may count anew.
                may_take_us += min(paused_us, call.limit_us)
            if self._script.durable and (call.operation is None or call.step.kind == "peek"):
                # The time in which nobody holds the channel does not count, and then it begins anew.
                may_take_us += call.limit_us + self._hindered_us()
            if self._script.has_holders and call.step.kind == "peek":
                # A node's holder has its own time to answer.
                may_take_us += int(FETCH_TIMEOUT_S * 1e6)
            took_us = call.ended_us - call.began_us - paused_us
            if took_us > may_take_us:
                message = f"{call.step.kind} {number} took {took_us} µs of {call.limit_us}"
                raise Violation(message, (number,))


def _payload(step: Call) -> bytes:
    # The books know nothing of parts of ranks that are lost with a node.
    size_bytes = min(step.size_bytes, 100_000) if step.queue == SHARDS else step.size_bytes
    return step.number.to_bytes(8, "little") + FILLING * size_bytes


def number_of(payload: Any) -> int:
    """Return the number of an item that was taken."""
    if not isinstance(payload, bytes) or payload.count(FILLING, 8) < len(payload) - 8:
        message = "an item is not what was put"
        raise Violation(message)
    return int.from_bytes(payload[:8], "little")


def _outcome(promise: Promise[Any]) -> str:
    """Return how a call ended, of which nothing came; "" if something did."""
    if promise.cancelled():
        return "cancelled"
    error = promise.exception(0)
    if error is not None:
        return _outcome_of(error)
    problem = getattr(getattr(promise.result(0), "head", None), "problem", "")
    return "no place" if problem else ""


def _outcome_of(error: BaseException) -> str:
    """Return how a call ended that failed."""
    if isinstance(error, ChannelClosed):
        if "has left" in str(error):
            return "left"
        return "ended" if "has ended" in str(error) else "closed"
    if type(error) is ChannelError and "another one asks for" in str(error):
        return "succeeded"
    for kind, outcome in OUTCOMES.items():
        if isinstance(error, kind):
            return outcome
    message = f"a call fails with {error!r}"
    raise Violation(message)
