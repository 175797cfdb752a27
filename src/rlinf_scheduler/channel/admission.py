"""How old items may be when they are taken: leave to make one, with its copies, and the version that takes them."""

from __future__ import annotations

import secrets
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, overload

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.access import ChannelAccess, OfServer
from rlinf_scheduler.channel.arguments import (
    DEFAULT_QUEUE,
    checked_optional_count,
    checked_queue_name,
    checked_timeout,
    checked_version,
)
from rlinf_scheduler.channel.batch import Delivery
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.connections import ChannelConnections
from rlinf_scheduler.channel.copies import READING, SENT_COPIES, Ends, forget
from rlinf_scheduler.channel.operation import Operation
from rlinf_scheduler.channel.spec import ChannelRef
from rlinf_scheduler.comm.consumed import ConsumedFlag
from rlinf_scheduler.comm.handle import AsyncHandle, Later, Now, Seconds
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ChannelArgumentError, SchedulerError, VersionTooEarly
from rlinf_scheduler.queueing import OnSlot, QueueName, Reason
from rlinf_scheduler.queueing.admission import Admit, HoldSlot, LetGoOfSlot, SetVersion
from rlinf_scheduler.session import current_session

if TYPE_CHECKING:
    from rlinf_scheduler.channel.client import ChannelClient

KEY_BITS = 62
UNUSED = (
    "channel '%s': slot %d was dropped, and no item was put with it: it went back, and others have it. Keep a slot "
    "until put(item, slot=slot), or give it back by slot.give_back(). (This is said once.)"
)


class AdmitOperation(Operation):
    """Asking for a slot.

    Attributes:
        max_lag: how many versions later its item may be taken.
    """

    __slots__ = ("max_lag",)
    is_plain = False
    has_hooks = True
    is_own_end = True
    max_lag: int

    def opening(self, _num_frames: int = 0, _size_bytes: int | None = None) -> wire.OperationMessage:
        """How it begins at the server."""
        return Admit(self.ticket, self.queue_name, self.wait, self.max_lag)

    def delivered(self, client: ChannelClient, _told: wire.Delivered) -> None:
        """Have it looked after whether anybody keeps it."""
        client.deliveries.look_later()


class VersionOperation(Operation):
    """Saying which version takes items.

    Attributes:
        version: which one.
        batch_items: how many items a version takes; 0 for as many as before.
        begins: its caller begins with this version.
    """

    __slots__ = ("batch_items", "begins", "version")
    is_plain = False
    has_hooks = True
    goes_on = True
    version: int
    batch_items: int
    begins: bool

    def opening(self, _num_frames: int = 0, _size_bytes: int | None = None) -> wire.OperationMessage:
        """How it begins at the server."""
        about = self.version, self.batch_items, self.begins
        return SetVersion(self.ticket, self.queue_name, self.wait, *about)

    def refusal(self, channel: str, reason: str, state: str) -> SchedulerError | None:
        """Return the error of a version that is said too early."""
        if reason == Reason.TOO_EARLY.value:
            return VersionTooEarly(channel, self.queue_name, self.version, state)
        return None

    def begin(self, client: ChannelClient) -> None:
        """Begin it at the server: what was taken until now is not waited for."""
        client.begin_behind_all(self)


class Slot:
    """Leave to make one item, which is used up by `channel.put(item, slot=slot)`; what `Channel.admit` returns.

    It can be sent to other processes, which put with it. It lives as long as any copy of it: in a process, in a queue,
    given out, or on its way. When the last one is dropped, its `with` block left without a put, or its process dead, it
    goes back, and to the next one who waits.

    Attributes:
        queue_name: the queue for which it is.
        version: make the item with this version of the policy, or a newer one.
        number: which slot of the channel; no other one has it.
    """

    def __init__(self, ref: ChannelRef, queue_name: QueueName, number: int, version: int) -> None:
        self._ref = ref
        self.queue_name = queue_name
        self.number = number
        self.version = version
        # It, and a put that is under way with it, keep what says that somebody wants it.
        self._hold: Promise[Any] | None = None
        self._connection: ChannelConnection | None = None
        self._operation: Operation | None = None
        # Of a copy: how this process calls it. Of one in an item that may go back: the one that was sent, until that is
        # done with; and where it stands what is said then.
        self._key = self._source = 0
        self._ends: Ends | None = None
        self._place = 0
        self._is_over = False  # as far as this copy is concerned
        self._is_used = False  # by a put that may be under way
        self._was_sent = False

    @classmethod
    def granted(cls, connection: ChannelConnection, operation: Operation, promise: Promise[Any]) -> Slot:
        """The slot that an `admit` was given."""
        delivery: Delivery = promise.result(0)
        note = OnSlot(*delivery.told.grant)
        slot = cls(connection.ref, operation.queue_name, note.number, note.version)
        slot._hold, slot._connection, slot._operation = promise, connection, operation
        return slot

    @classmethod
    def sent(cls, ref: ChannelRef, queue_name: QueueName, number: int, version: int, source: int) -> Slot:
        """The copy that somebody has sent, here."""
        slot = cls(ref, queue_name, number, version)
        ends, taken = READING.ends, source if READING.takes else 0
        with suppress(SchedulerError):  # there may be no job, or no channel any more
            connection = slot._connection = current_session().service(ChannelConnections).to(ref)
            slot._key = secrets.randbits(KEY_BITS)
            if ends is not None and taken:
                slot._ends, slot._place, slot._source, taken = ends, READING.place, taken, 0
                message = LetGoOfSlot(queue_name, number, 0, source)
                ends.setdefault(slot._place, []).append(partial(forget, [(connection, message)]))
            slot._tell(HoldSlot(queue_name, number, slot._key, False, taken))
        return slot

    @property
    def channel_id(self) -> str:
        """Tells its channel from others of the same name."""
        return self._ref.spec.channel_id

    def give_back(self) -> None:
        """Let go of it, unless an item was put with it or is about to be; without waiting."""
        if not (self._is_over or self._is_used):
            self._let_go(self._source)

    def use(self) -> Slot:
        """A put with it begins; until its end it keeps what this returns. Not for users."""
        self._is_used = True
        return self

    def unused(self) -> None:
        """A put with it has put nothing. Not for users."""
        self._is_used = False

    def used(self) -> None:
        """An item was put with it. Not for users."""
        self._is_over = True
        if self._hold is not None:
            self._hold.consumed.taken = True  # by the channel

    def _let_go(self, source: int) -> None:
        self._is_over = True
        if self._operation is not None and self._connection is not None:
            with suppress(SchedulerError):  # a forked child has none of its parent's
                self._connection.drop(self._operation)
        elif self._key:
            self._tell(LetGoOfSlot(self.queue_name, self.number, self._key, source))
        self._hold = None

    def _tell(self, message: HoldSlot | LetGoOfSlot) -> None:
        if self._connection is not None:
            with suppress(SchedulerError):
                self._connection.requests.tell(message)

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ends is None:  # else it is known at the end of that
            self.give_back()

    def __del__(self) -> None:
        if getattr(self, "_is_over", True):
            return
        is_wanted = self._ends is not None and self._place in self._ends
        self._let_go(0)
        if self._connection is not None and not (self._is_used or self._was_sent or is_wanted):
            with suppress(SchedulerError):
                self._connection.warn_once(UNUSED, self.number)

    def __reduce__(self) -> tuple[Any, ...]:
        key = secrets.randbits(KEY_BITS)
        self._was_sent = True
        self._tell(HoldSlot(self.queue_name, self.number, key, True))
        if self._connection is not None:
            SENT_COPIES.add(self._connection, LetGoOfSlot(self.queue_name, self.number, 0, key))
        return Slot.sent, (self._ref, self.queue_name, self.number, self.version, key)

    def __repr__(self) -> str:
        return f"<Slot {self.number} of queue {self.queue_name!r}: version {self.version}>"


class Admitting(ChannelAccess):
    """The part of `Channel` that bounds how many versions of a policy lie between making an item and taking it."""

    _of_server: ClassVar[OfServer] = (("admit", "slots"), ("set_version", "versions to wait for"))

    @overload
    def admit(
        self,
        max_lag: int,
        queue_name: QueueName = ...,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        *,
        key: QueueName | None = ...,
    ) -> Slot: ...
    @overload
    def admit(
        self,
        max_lag: int,
        queue_name: QueueName = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        key: QueueName | None = ...,
    ) -> AsyncHandle[Slot]: ...

    def admit(
        self,
        max_lag: int,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: bool = False,
        timeout_s: float | None = None,
        *,
        key: QueueName | None = None,
    ) -> Slot | AsyncHandle[Slot]:
        """Wait for leave to make an item with the present version, which is taken at most `max_lag` versions later.

            with channel.admit(max_lag=1) as slot:
                channel.put(rollout(slot.version), slot=slot)

        Leave is given, in order of arrival, when it is certain that a consumer will take the item in time, however long
        it takes to make it: no item is ever thrown away for its age. Before the first `set_version` none is given. A
        queue that admits takes nothing without a slot, so it begins empty; it gives the items that have to be taken
        first, and none that would keep another one, perhaps still in the making, from being taken in time.

        Args:
            max_lag: how many versions later the item may be taken; another one for each slot, if you like. With 0, the
                version that it is made with takes it.
            queue_name: the queue.
            async_op: see the class, like the rest; a handle that is dropped gives its slot back.
            timeout_s: seconds.
            key: another name of `queue_name`.

        Raises:
            ChannelTimeout: leave was not given in time; the text says what is waited for.
            ChannelClosed: the queue has ended, or the channel is closed.
            ChannelArgumentError: the queue holds items that were put without a slot.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        operation = AdmitOperation("admit", queue, checked_timeout(self._name, timeout_s), self._now)
        operation.channel = self._name
        operation.max_lag = checked_version(self._name, max_lag, "max_lag")
        connection = self._connection()
        if not async_op:
            promise: Promise[Any] = connection.hold(operation)
            try:
                return Slot.granted(connection, operation, promise)
            finally:
                del promise  # an error keeps this frame
        promise = connection.start(operation)
        # Waiting for it takes nothing: what is not kept goes back.
        return AsyncHandle(
            promise,
            lambda _: Slot.granted(connection, operation, promise),
            operation.describe,
            ConsumedFlag(),
        )

    @overload
    def set_version(
        self,
        version: int,
        queue_name: QueueName = ...,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        *,
        batch_items: int | None = ...,
        begins: bool = ...,
        key: QueueName | None = ...,
    ) -> None: ...
    @overload
    def set_version(
        self,
        version: int,
        queue_name: QueueName = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        batch_items: int | None = ...,
        begins: bool = ...,
        key: QueueName | None = ...,
    ) -> AsyncHandle[None]: ...

    def set_version(
        self,
        version: int,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: bool = False,
        timeout_s: float | None = None,
        *,
        batch_items: int | None = None,
        begins: bool = False,
        key: QueueName | None = None,
    ) -> AsyncHandle[None] | None:
        """Say which version of the policy takes the items of a queue from now on.

            channel.set_version(0, batch_items=32, begins=True)
            for step in range(num_steps):
                train(channel.get_batch(min_items=32, max_items=32))
                channel.set_version(step + 1)

        A version takes `batch_items` items, in one batch or in several; who asks for more gets them with the next
        version, so that what is asked for early is not too old when it is used. A batch is of one version: what is left
        of its items comes as an incomplete one. It may be said by every rank; the first one counts. What was
        given out and may come back, or was not taken, is waited for if it would be too old then.

        Args:
            version: a whole number, larger than the one before, or the same.
            queue_name: the queue.
            async_op: see the class, like the rest.
            timeout_s: seconds.
            batch_items: how many items a version takes; None for as many as before. The first call says it.
            begins: a trainer begins, perhaps again, from a checkpoint: the version may be any, also an earlier one, and
                takes its items anew. Items of versions that are to come once more stay, and may be taken.
            key: another name of `queue_name`.

        Raises:
            VersionTooEarly: the version before has to take more, or items would be older than they may be. Take them,
                and say it again.
            ChannelTimeout: what was given out is not settled; the version is the one before.
            ChannelArgumentError: the version goes back, or `batch_items` is missing.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        operation = VersionOperation("set_version", queue, checked_timeout(self._name, timeout_s), self._now)
        operation.version = checked_version(self._name, version)
        operation.batch_items = checked_optional_count(self._name, "batch_items", batch_items)
        operation.channel = self._name
        operation.begins = bool(begins)
        connection = self._connection()
        if async_op:
            return AsyncHandle(connection.start(operation), None, operation.describe)
        connection.run(operation)
        return None

    def _use(self, slot: Any, operation: Operation) -> None:
        ref = self._ref
        if type(slot) is not Slot:
            raise ChannelArgumentError(self._name, f"slot is what `admit` returns, not {slot!r}")
        if slot.channel_id != ref.spec.channel_id:
            raise ChannelArgumentError(self._name, f"{slot!r} is of another channel")
        if operation.queue_name not in (DEFAULT_QUEUE, slot.queue_name):
            raise ChannelArgumentError(self._name, f"{slot!r} is not for queue {operation.queue_name!r}")
        operation.queue_name = slot.queue_name
        operation.says().slot = slot.use()
