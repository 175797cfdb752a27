"""How old items may be when they are taken: leave to make one, with its copies, and the version that takes them."""

from __future__ import annotations

from typing import Any, ClassVar, overload

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.access import ChannelAccess, OfServer
from rlinf_scheduler.channel.arguments import (
    DEFAULT_QUEUE,
    checked_optional_count,
    checked_queue_name,
    checked_timeout,
    checked_version,
)
from rlinf_scheduler.channel.client_parts import ClientParts
from rlinf_scheduler.channel.operation import ChannelOperation
from rlinf_scheduler.channel.slot import AdmitOperation, Slot
from rlinf_scheduler.comm.handle import AsyncHandle, Later, Now, Seconds
from rlinf_scheduler.comm.promise import ConsumedFlag, Promise
from rlinf_scheduler.errors import ChannelArgumentError, SchedulerError, VersionTooEarly
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.queueing.messages import Reason
from rlinf_scheduler.queueing.versions import SetVersion


class VersionOperation(ChannelOperation):
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

    def begin(self, client: ClientParts) -> None:
        """Begin it at the server: what was taken until now is not waited for."""
        client.begin_behind_all(self)


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
        operation.max_lag = checked_version(self._name, max_lag, "max_lag")
        operation.was_sent = False
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
        operation.begins = bool(begins)
        connection = self._connection()
        if async_op:
            return AsyncHandle(connection.start(operation), None, operation.describe)
        connection.run(operation)
        return None

    def _use(self, slot: Any, operation: ChannelOperation) -> None:
        ref = self._ref
        if type(slot) is not Slot:
            raise ChannelArgumentError(self._name, f"slot is what `admit` returns, not {slot!r}")
        if slot.channel_id != ref.spec.channel_id:
            raise ChannelArgumentError(self._name, f"{slot!r} is of another channel")
        if operation.queue_name not in (DEFAULT_QUEUE, slot.queue_name):
            raise ChannelArgumentError(self._name, f"{slot!r} is not for queue {operation.queue_name!r}")
        operation.queue_name = slot.queue_name
        operation.says().slot = slot.use()
