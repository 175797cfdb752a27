"""Operations on a channel: puts and gets, with the messages to its server that each stands for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from rlinf_scheduler.channel import wire
from rlinf_scheduler.comm.operation import Operation, OperationPromise
from rlinf_scheduler.comm.promise import NOWHERE, Promise
from rlinf_scheduler.comm.waits import CHANNEL, Cause, Wait
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.queueing.out_of_turn import GroupName
from rlinf_scheduler.wording import number_text

if TYPE_CHECKING:
    from rlinf_scheduler.channel.client_parts import ClientParts
    from rlinf_scheduler.channel.holding import HeldPayload, InlinePayload
    from rlinf_scheduler.channel.placed import PlacedPayload
    from rlinf_scheduler.comm.shm.payload import ReceivedPayload
    from rlinf_scheduler.comm.shm.sent_payload import Payload
    from rlinf_scheduler.errors import SchedulerError

# One count for the whole process: a ticket of a lost connection can never mean an operation of the next one.
_next_ticket = itertools.count(1).__next__

# How long the server may take to answer what does not wait.
ANSWER_S = 5.0
# What is there now is given to whoever waits a millisecond, too: the answer takes its time.
MIN_ANSWER_S = 0.01
# So long after its deadline the server's word on an operation is waited for at least.
MIN_GRACE_S = 0.1


@dataclass(slots=True)
class ItemTerms:
    """Terms of a put for its item.

    Attributes:
        priority: items of a higher one are taken first.
        question: the number under which this process waits for an answer to it; 0 if it does not.
        group: that it belongs to.
        version: of the policy that made it.
        slot: the leave with which it is put, until it is known whether it was.
    """

    priority: int = 0
    question: int = 0
    group: GroupName | None = None
    version: int | None = None
    slot: Any = None

    def end(self, *, is_put: bool) -> None:
        """Say to the leave with which an item is put that it was, or was not."""
        slot, self.slot = self.slot, None
        if slot is not None:
            if is_put:
                slot.used()
            else:
                slot.unused()


NO_TERMS = ItemTerms()


class OperationOwner(Protocol):
    """The executor of operations."""

    def awaits(self, operation: ChannelOperation) -> Wait:
        """Return what the caller of an operation waits for; from any thread."""

    def cause(self, operation: ChannelOperation) -> Cause:
        """Return the cause under which that wait is counted."""

    def withdraw(self, operation: ChannelOperation, promise: OperationPromise) -> None:
        """Give one up."""

    def wake(self) -> None:
        """Have the I/O thread look at what was dropped."""

    def explain(self, error: BaseException, limit_s: float | None, waited_s: float) -> None:
        """Add to what ended a wait for it why it did not end by itself, where somebody knows (see `Messenger`)."""


class ChannelOperation(Operation):
    """A put or a get of one item under way; the base of what features add.

    Attributes:
        owner: carries it out, once it has a promise that somebody holds a handle of; on that channel.
        wait: whether the server may keep it waiting.
        item: what a put says of its item besides a weight; None for nothing.
        payload: the item of a put, until the server has answered.
        blocks: its caller waits for it, and will take what it brings at once.
        is_direct: its caller has sent it himself, or is about to: see `shortcut`.
        outcome_queried: the server was asked what became of it, after it went by a shortcut.
        has_hooks: of a class: its client calls `begin` and the methods after that, on the I/O thread.
        goes_on: of a class: it goes on without its handle, as a put does.
        is_own_end: of a class: what it brings is its caller's when it ends, though nobody says that it takes it.
        was_sent: of a class: copies of what it brought may be with others; False where it brings none.
        draining: of what takes work: done when its process is to take no more; None of other operations.
    """

    __slots__ = (
        "blocks",
        "channel",
        "is_direct",
        "item",
        "kind",
        "outcome_queried",
        "owner",
        "payload",
        "queue_name",
        "wait",
        "weight",
    )
    has_hooks: ClassVar[bool] = False
    goes_on: ClassVar[bool] = False
    is_own_end: ClassVar[bool] = False
    was_sent: bool = False
    draining: Promise[str] | None = None

    channel: str
    owner: OperationOwner

    def __init__(
        self,
        kind: str,
        queue_name: QueueName,
        timeout_s: float | None,
        now: Callable[[], float],
        *,
        wait: bool = True,
    ) -> None:
        super().__init__(_next_ticket(), timeout_s, now)
        self.kind = kind
        self.queue_name = queue_name
        # Who waits no time at all gets what is there.
        self.wait = wait and timeout_s != 0
        self.weight: float = 0
        self.item: ItemTerms | None = None
        self.payload: InlinePayload | Payload | HeldPayload | PlacedPayload | None = None
        self.blocks = False
        self.is_direct = False
        self.outcome_queried = False

    def says(self) -> ItemTerms:
        """Return what it says of its item, to be added to."""
        if self.item is None:
            self.item = ItemTerms()
        return self.item

    def renewed(self) -> Self:
        """The same, begun at the same time, as another operation."""
        again = type(self)(self.kind, self.queue_name, self.timeout_s, self.now, wait=self.wait)
        again.started = self.started
        again.weight, again.item = self.weight, self.item
        return again

    def opening(self, num_frames: int = 0, size_bytes: int | None = None) -> wire.OperationMessage:
        """How it begins at the server, with its item in so many frames, or (of so many bytes) announced."""
        if self.kind != "put":
            return wire.Get(self.ticket, self.queue_name, self.wait)
        item = self.item or NO_TERMS
        return wire.Put(
            self.ticket,
            self.queue_name,
            self.weight,
            self.wait,
            num_frames,
            item.priority,
            item.question,
            item.group,
            item.version,
            0 if item.slot is None else item.slot.number,
            size_bytes,
        )

    @property
    def is_plain(self) -> bool:
        """Whether it waits to put or get one item, of which nothing is said but a weight."""
        return self.wait and self.item is None and type(self.weight) is int

    @property
    def is_batch(self) -> bool:
        """Whether it asks for several items."""
        return False

    def describe_batch(self) -> str:
        """Describe the batch that it asks for, in a phrase."""
        return "an item"

    def describe(self) -> str:
        """It in a phrase, for messages."""
        return f"{self.kind} on channel '{self.channel}', queue {self.queue_name!r}"

    def needs(self) -> tuple[float, bool]:
        """Return how much has to be there for it, 0 where that is one item; and whether that is a number of items."""
        return 0, True

    def wait_at(self, channel: str, held_by: str) -> Wait:
        """Return what a wait for its end is for, in a channel of that name, which that process holds."""
        needs, counts_items = self.needs()
        queue = "" if self.queue_name == "default" else f", {self.queue_name!r}"
        text = f"{self.kind}('{channel}'{queue}{f', {number_text(needs)}' if needs else ''})"
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
            counts_items=counts_items,
        )

    def refusal(self, _channel: str, _reason: str, _state: str) -> SchedulerError | None:
        """Return the error of a refusal that only operations of its class know; None for the others."""
        return None

    def own_end(self, _channel: str) -> SchedulerError | None:
        """Return the error with which its process ended it; None where it did not."""
        return None

    # -- what its promise asks for ------------------------------------------------------------------

    def awaits(self) -> Wait:
        """Return what a wait for its end is for."""
        return self.owner.awaits(self)

    def cause(self) -> Cause:
        """Return the cause under which such a wait is counted."""
        return self.owner.cause(self)

    def withdraw(self, promise: OperationPromise) -> None:
        """Give it up."""
        self.owner.withdraw(self, promise)

    def gone(self) -> None:
        """Have the I/O thread look, unless it is about to: nobody has the promise any more."""
        if not self.is_taken:
            self.owner.wake()

    def explain(self, error: BaseException, limit_s: float | None, waited_s: float) -> None:
        """Add to what ended a wait for it why it did not end by itself, where somebody knows (see `Messenger`)."""
        self.owner.explain(error, limit_s, waited_s)

    # -- hooks of features, on the I/O thread ------------------------------------------------------

    def begin(self, client: ClientParts) -> None:
        """Begin it at the server."""
        client.begin_get(self)

    def arriving(self, client: ClientParts, told: wire.Delivered) -> None:
        """Hear that its items are on their way here."""

    def delivered(self, client: ClientParts, told: wire.Delivered) -> None:
        """Hear that its items are here; somebody has to look whether they are taken."""

    def unwanted(self, client: ClientParts) -> None:
        """Hear that nobody waits for it any more, before the server is told."""

    def over(self, client: ClientParts) -> None:
        """Hear that it is over, or that its items do not come as it was said."""

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

    def await_by(self, promise: Promise[Any]) -> None:
        """Let `promise` be its end, for which its caller waits from now on; on the I/O thread."""
        early, self._promise = self._promise, promise
        if early is not None:
            promise.follow(early)

    def find_promise(self) -> Promise[Any] | None:
        """Its end; None if nobody waits for that any more.

        A caller that blocks has none as long as its shortcut may bring that: what comes another way waits for it.
        """
        if self._promise_ref is not None:
            return self._promise_ref()
        if self._promise is None and self.blocks:
            self._promise = Promise()
        return self._promise

    @property
    def has_begun(self) -> bool:
        """Whether it was on its way to its server, or is."""
        return self.blocks or self._promise is not None or self._promise_ref is not None

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for its end, or holds its handle."""
        if self.dropped:
            return False
        if self._promise_ref is not None:
            return self._promise_ref() is not None
        return self.blocks or self._promise is not None


def consumed_byte_of(items: list[ReceivedPayload]) -> Any:
    """Return the flag by which a consumer says that it has taken items; the server sees it even if that dies."""
    for item in items:
        if item.block is not None:
            return item.block.mark()
    return NOWHERE


def is_consumed(items: Iterable[ReceivedPayload]) -> bool:
    """Whether a consumer had taken these items."""
    return any(mark[0] for item in items if (mark := item.mark()) is not None)
