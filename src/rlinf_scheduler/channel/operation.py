"""One operation of a process on a channel, from its call to its end: where a user's thread and the I/O thread meet.

The user's thread makes the operation, hands it over, and waits for its promise. What it says afterwards are attribute
stores: `consumed.taken` (it has the items) or `dropped` (it was interrupted). The I/O thread looks at them.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.promise import NOWHERE, ConsumedFlag, Promise, PromiseRef
from rlinf_scheduler.comm.waits import CHANNEL, Cause, Wait
from rlinf_scheduler.queueing import GroupName, QueueName
from rlinf_scheduler.tape.tape import Note
from rlinf_scheduler.tape.work import work_said

if TYPE_CHECKING:
    from rlinf_scheduler.channel.device_items import DevicePayload
    from rlinf_scheduler.channel.fixed_payload import InlinePayload
    from rlinf_scheduler.channel.holding import HeldPayload
    from rlinf_scheduler.comm.shm.payload import ReceivedPayload
    from rlinf_scheduler.comm.shm.sent_payload import Payload

# One count for the whole process: a ticket of a lost connection can never mean an operation of the next one.
_next_ticket = itertools.count(1).__next__

# What an operation may be.
KINDS = ("put", "get", "get_batch", "get_group", "lease", "admit", "set_version")
# How long the server may take to answer what does not wait.
ANSWER_S = 5.0
# What is there now is given to whoever waits a millisecond, too: the answer takes its time.
MIN_ANSWER_S = 0.01
# So long after its deadline the server's word on an operation is waited for at least.
MIN_GRACE_S = 0.1


class Operation(ConsumedFlag):
    """An operation under way, and the consumed flag of its items.

    Attributes:
        timeout_s: its deadline, in seconds after `started`; None without.
        now: the clock that this goes by, of the messenger that carries it out.
        wait: whether the server may keep it waiting.
        question: the number under which this process waits for an answer to its item; 0 if it does not.
        version: of the policy, that made its item, or that a `set_version` says; None if nobody said.
        slot: with which its item is put; 0 for none. `held` keeps that slot.
        copies: of a lease: what is to be said when an item is done with, of the slots in it, by the item's place.
        batch_items: of a `set_version`: how many items a version takes; 0 for as many as before.
        begins: of a `set_version`: its caller begins with this version.
        keep_s: for how long this process keeps a lease alive.
        settlements: of a lease: what became of its items, until the server is told: what is to be sent, whether they
            are the last ones, and the reply to come.
        payload: the item of a put, until the server has answered.
        step: the training step that its caller works at; None where nobody said.
        trace: what its item was made of; None where nobody said.
        dropped: nobody waits for it any more.
        blocks: its caller waits for it, and will take what it brings at once.
        outcome_queried: the server was asked what became of it, after it went by a shortcut.
    """

    __slots__ = (
        "_promise",
        "_promise_ref",
        "batch_items",
        "batch_weight",
        "begins",
        "blocks",
        "channel",
        "copies",
        "dropped",
        "group",
        "group_size",
        "held",
        "keep_s",
        "kind",
        "lease",
        "limits",
        "max_lag",
        "now",
        "outcome_queried",
        "payload",
        "priority",
        "question",
        "queue_name",
        "settlements",
        "shard",
        "slot",
        "started",
        "step",
        "ticket",
        "timeout_s",
        "timer",
        "trace",
        "version",
        "wait",
        "weight",
    )

    channel: str
    copies: dict[int, list[Callable[[], None]]]
    keep_s: float
    settlements: deque[tuple[control_wire.Settle, bool, Promise[Any]]]
    max_lag: int
    batch_items: int
    begins: bool

    def __init__(
        self,
        kind: str,
        queue_name: QueueName,
        timeout_s: float | None,
        now: Callable[[], float],
        *,
        wait: bool = True,
    ) -> None:
        self.kind = kind
        self.queue_name = queue_name
        self.timeout_s = timeout_s
        self.now = now
        # Who waits no time at all gets what is there.
        self.wait = wait and timeout_s != 0
        self.batch_weight: float | None = None
        self.limits: wire.BatchLimits | None = None
        self.weight: float = 0
        self.priority = 0
        self.question = 0
        self.group: GroupName | None = None
        self.group_size = 0
        self.version: int | None = None
        self.slot = 0
        self.held: Any = None
        self.shard: wire.ShardRequest | None = None
        self.lease: wire.LeaseRequest | None = None
        self.payload: InlinePayload | Payload | HeldPayload | DevicePayload | None = None
        work = work_said()
        self.step = None if work is None else work.step
        self.trace: wire.Trace | None = None
        self.ticket = _next_ticket()
        self.started = now()
        self.dropped = False
        self.blocks = False
        self.outcome_queried = False
        self.timer: Timer | None = None
        self._promise: Promise[Any] | None = None
        self._promise_ref: PromiseRef | None = None
        self.taken = False
        self.mark: Any = NOWHERE
        self.whole: ConsumedFlag | None = None

    def renewed(self) -> Operation:
        """The same, begun at the same time, as another operation."""
        again = Operation(self.kind, self.queue_name, self.timeout_s, self.now, wait=self.wait)
        again.started = self.started
        again.weight, again.batch_weight, again.limits = self.weight, self.batch_weight, self.limits
        again.priority = self.priority
        again.question = self.question
        again.group, again.group_size = self.group, self.group_size
        again.shard = self.shard
        again.step, again.trace = self.step, self.trace
        again.version, again.slot, again.held = self.version, self.slot, self.held
        return again

    def opening(
        self, num_frames: int = 0, size_bytes: int | None = None
    ) -> wire.Put | wire.Get | wire.Admit | wire.SetVersion:
        """How it begins at the server, with its item in so many frames, or (of so many bytes) announced."""
        if self.kind == "put":
            return wire.Put(
                self.ticket,
                self.queue_name,
                self.weight,
                self.wait,
                num_frames,
                self.priority,
                self.question,
                self.group,
                self.version,
                self.slot,
                size_bytes,
                self.trace,
            )
        if self.kind == "admit":
            return wire.Admit(self.ticket, self.queue_name, self.wait, self.max_lag)
        if self.kind == "set_version":
            version = self.version or 0
            return wire.SetVersion(
                self.ticket, self.queue_name, self.wait, version, self.batch_items, self.begins
            )
        return wire.Get(
            self.ticket,
            self.queue_name,
            self.wait,
            self.batch_weight,
            self.limits,
            self.shard,
            self.lease,
            self.group_size,
            self.step,
        )

    @property
    def is_batch(self) -> bool:
        """Whether it asks for a batch, or a group."""
        is_sized = self.batch_weight is not None or self.limits is not None
        return is_sized or self.shard is not None or self.group_size > 0

    def describe_batch(self) -> str:
        """Describe the batch that it asks for, in a phrase."""
        if self.shard is not None:
            return f"step {self.shard.done_step + 1} of shard {self.shard.index} of {self.shard.num_shards}"
        if self.group_size:
            return f"a group of {self.group_size} items"
        text = "a batch" if self.batch_weight is None else f"a batch of weight {self.batch_weight}"
        if self.limits is None:
            return text
        parts = [f"at least {self.limits.min_items} items"] if self.limits.min_items > 1 else []
        if self.limits.max_items:
            parts.append(f"at most {self.limits.max_items} items")
        if self.limits.max_bytes:
            parts.append(f"at most {self.limits.max_bytes} bytes")
        return " of ".join([text, " and ".join(parts)]) if parts else text

    @property
    def is_plain(self) -> bool:
        """Whether it waits to put or get one item, of which nothing is said but a weight."""
        if not self.wait or (self.kind != "put" and self.kind != "get"):
            return False
        if self.priority or self.question or self.slot or type(self.weight) is not int:
            return False
        return self.group is None and self.version is None and self.trace is None

    def describe(self) -> str:
        """It in a phrase, for messages."""
        return f"{self.kind} on channel '{self.channel}', queue {self.queue_name!r}"

    def awaits(self, channel: str, held_by: str) -> Wait:
        """What whoever waits for its end waits for, in a channel of that name, which that process holds."""
        needs = self.batch_weight or self.group_size or 0
        if self.limits is not None and not needs:
            needs = self.limits.min_items
        queue = "" if self.queue_name == "default" else f", {self.queue_name!r}"
        text = f"{self.kind}('{channel}'{queue}{f', {needs:g}' if needs else ''})"
        return Wait(
            CHANNEL,
            text,
            self.waited_s,
            self.timeout_s,
            (held_by,),
            subject=channel,
            queue=repr(self.queue_name),
            needs=needs,
            detail=self.kind,
            counts_items=self.batch_weight is None,
        )

    @property
    def waited_s(self) -> float:
        """Seconds since it began."""
        return self.now() - self.started

    @property
    def left_s(self) -> float | None:
        """Seconds until its deadline, None without; what does not wait has ANSWER_S."""
        limit_s = max(self.timeout_s, MIN_ANSWER_S) if self.timeout_s is not None else None
        if not self.wait:
            limit_s = ANSWER_S
        return None if limit_s is None else max(0.0, limit_s - self.waited_s)

    @property
    def grace_s(self) -> float:
        """How long after its deadline the server's word on it is waited for."""
        return 0.0 if not self.wait else min(ANSWER_S, max(MIN_GRACE_S, (self.timeout_s or 0.0) / 10))

    def promise_to(self, promise: Promise[Any], dropped: deque[Any] | None = None) -> None:
        """Let `promise` be its end; with `dropped`, nobody but its handle keeps it, and its end is noted there."""
        if dropped is None:
            self._promise = promise
        else:
            self._promise_ref = ref = PromiseRef(promise, dropped.append)
            ref.ticket = self.ticket

    def find_promise(self) -> Promise[Any] | None:
        """Its end; None if nobody waits for that any more."""
        ref = self._promise_ref
        return self._promise if ref is None else ref()

    def stop_clock(self) -> None:
        """Let its deadline pass."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def let_go(self) -> None:
        """Refer no longer to its promise, which is kept: the two would be left to the garbage collector."""
        if not self.blocks:  # else its caller may not have looked for it yet
            self._promise = None


class PromiseOwner(Protocol):
    """The executor of operations."""

    def awaits(self, operation: Operation) -> Wait:
        """Return what the caller of an operation waits for; from any thread."""

    def cause(self, operation: Operation) -> Cause:
        """Return the cause under which that wait is counted."""

    def withdraw(self, operation: Operation, promise: OperationPromise) -> None:
        """Give one up."""

    def explain(self, error: BaseException, limit_s: float | None, waited_s: float) -> None:
        """Add to what ended a wait for it why it did not end by itself, where somebody knows (see `Messenger`)."""


class _Unclaimed:
    """Wakes the I/O thread when a promise is gone, unless somebody has what came; see `comm.promise.Wake`."""

    __slots__ = ("_consumed", "_wake")

    def __init__(self, consumed: Operation, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._consumed = consumed

    def __del__(self) -> None:
        consumed = getattr(self, "_consumed", None)  # none if an interruption came while it was made
        if consumed is not None and not consumed.is_taken:  # else the I/O thread is about to look
            self._wake()


class OperationPromise(Promise[Any]):
    """The end of an operation that somebody holds a handle of; `cancel` withdraws it.

    Args:
        owner: knows what is waited for, and gives it up.
        operation: which one.
        wake: wakes the I/O thread once nobody has the promise any more.

    Attributes:
        note: of what it brings, where that is noted when it is taken.
    """

    __slots__ = ("_operation", "_owner", "_unclaimed", "note")

    def __init__(
        self,
        owner: PromiseOwner,
        operation: Operation,
        wake: Callable[[], None] | None = None,
    ) -> None:
        Promise.__init__(self, None, operation)
        self._operation = operation
        self._owner = owner
        self._unclaimed = None if wake is None else _Unclaimed(operation, wake)
        self.note: Note | None = None

    def awaits(self) -> Wait:
        """What a wait for it is for; None where that is not known here. From any thread."""
        return self._owner.awaits(self._operation)

    def cause(self) -> Cause:
        """What a wait for it is counted as: of many small operations, words for each would cost most."""
        return self._owner.cause(self._operation)

    def explain(self, error: BaseException, limit_s: float | None, waited_s: float) -> None:
        """Add to what ended a wait for it why it did not end by itself, where somebody knows (see `Messenger`)."""
        self._owner.explain(error, limit_s, waited_s)

    def cancel(self) -> bool:
        """Give a get up, unless it is over; whether a put still can be is its server's decision."""
        if not self.done():
            self._owner.withdraw(self._operation, self)
        return self.cancelled()


def consumed_byte_of(items: list[ReceivedPayload]) -> Any:
    """Return the flag by which a consumer says that it has taken items; the server sees it even if that dies."""
    for item in items:
        if item.lease is not None:
            return item.lease.mark()
    return NOWHERE


def is_consumed(items: Iterable[ReceivedPayload]) -> bool:
    """Whether a consumer had taken these items."""
    return any(mark[0] for item in items if (mark := item.mark()) is not None)
