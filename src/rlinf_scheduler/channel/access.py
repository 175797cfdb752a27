"""How a channel is reached; putting items in and taking them out for good."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, Unpack, overload

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.arguments import (
    DEFAULT_QUEUE,
    checked_group,
    checked_priority,
    checked_queue_name,
    checked_timeout,
    checked_version,
    checked_weight,
)
from rlinf_scheduler.channel.batch import Batch, Delivery, load_all
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.connections import ChannelConnections
from rlinf_scheduler.channel.copies import SENT_COPIES, forget
from rlinf_scheduler.channel.operation import ChannelOperation
from rlinf_scheduler.channel.question import Question, refuse_questions
from rlinf_scheduler.channel.spec import ChannelRef
from rlinf_scheduler.channel.starting import StartingChannel, wait_for_start
from rlinf_scheduler.channel.taking import IterationGet
from rlinf_scheduler.checks import called_directly
from rlinf_scheduler.comm.codec import encode
from rlinf_scheduler.comm.handle import AsyncHandle, Later, Now, Seconds
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import (
    ChannelArgumentError,
    ChannelClosed,
    ChannelError,
    ChannelUnanswered,
    SchedulerError,
)
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.queueing.out_of_turn import GroupName
from rlinf_scheduler.session import current_session

if TYPE_CHECKING:
    from rlinf_scheduler.channel.slot import Slot


# Methods, and what they are for, in a word.
OfServer = tuple[tuple[str, str], ...]


class ChannelAccess:
    """One process's way to a channel.

    Attributes:
        _of_server: of a class: its methods that need the process of a server.
    """

    _of_server: ClassVar[OfServer] = ()

    def __init__(self, ref: ChannelRef | StartingChannel) -> None:
        self._where = ref
        self._name = ref.spec.name
        self._cached: ChannelConnection | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def maxsize(self) -> int:
        """How many items each of its queues holds; 0 is unbounded."""
        return self._where.spec.maxsize

    def _queue(self, queue_name: Any, key: Any) -> QueueName:
        """The queue that is meant by two names of one argument."""
        return checked_queue_name(self._name, queue_name, key)

    def _query(self, queue_name: Any, key: Any) -> control_wire.QueueState:
        queue = self._queue(queue_name, key)
        state: control_wire.QueueState = self._connection().requests.ask(
            control_wire.Query(queue), control_wire.QueueState
        )
        return state

    def _put(
        self, item: Any, weight: float, operation: ChannelOperation, async_op: bool
    ) -> AsyncHandle[None] | None:
        num_copies = SENT_COPIES.number
        try:
            operation.weight = checked_weight(self._name, weight)
            connection = self._connection()
            encoded = encode(item, connection.device_of)
            if async_op:
                promise = connection.start(operation, encoded)
                if SENT_COPIES.number != num_copies:
                    promise.add_done_callback(partial(_forget_if_failed, SENT_COPIES.since(num_copies)))
                return AsyncHandle(promise, None, operation.describe)
            connection.run(operation, encoded)
        except BaseException as error:
            is_known = isinstance(error, SchedulerError) and not isinstance(error, ChannelUnanswered)
            if is_known or not operation.has_begun:  # else it may have been put
                if SENT_COPIES.number != num_copies:
                    forget(SENT_COPIES.since(num_copies))
                if operation.item is not None:
                    operation.item.end(is_put=False)
            raise
        if operation.item is not None:
            operation.item.end(is_put=True)
        return None

    def _get(self, operation: ChannelOperation, async_op: bool) -> Any:
        load = self._load_batch if operation.is_batch else self._load_item
        connection = self._connection()
        if not async_op:
            return connection.run(operation, load=load)

        take = partial(_take, connection, operation, load)
        return AsyncHandle(connection.start(operation), take, operation.describe)

    def _use(self, slot: Slot, operation: ChannelOperation) -> None:
        """Let a put be one with a slot; where there are slots."""
        raise NotImplementedError

    def _load_item(self, items: Delivery) -> Any:
        item = items[0].load()
        if type(item) is Question:
            refuse_questions(self._name, [item])
        return item

    def _load_batch(self, items: Delivery) -> Batch:
        batch = self._load_all(items)
        refuse_questions(self._name, batch)
        return batch

    def _load_all(self, items: Delivery, begin: Callable[[int], None] | None = None) -> Batch:
        return load_all(items, begin)

    @property
    def _now(self) -> Callable[[], float]:
        """The clock that its operations go by."""
        connection = self._cached
        return current_session().messenger.now if connection is None else connection.now

    def _connection(self) -> ChannelConnection:
        connection = self._cached
        if connection is None or connection.lost is not None:
            connection = self._cached = current_session().service(ChannelConnections).to(self._ref)
        return connection

    @property
    def _ref(self) -> ChannelRef:
        """How it is reached, once it has started."""
        where = self._where
        if isinstance(where, StartingChannel):
            if not where.started.done() and current_session().messenger.on_io_thread():
                raise ChannelError(
                    self._name, "it is still starting, and a callback on the I/O thread cannot wait"
                )
            self._where = where = ChannelRef(where.spec, wait_for_start(where.spec, where.started))
        return where


class ItemOptions(TypedDict, total=False):
    """What `Channel.put` and `put_nowait` say of an item."""

    priority: int
    group: GroupName | None
    version: int | None
    slot: Slot | None


class Putting(ChannelAccess):
    """The part of `Channel` that puts items in."""

    @overload
    def put(
        self,
        item: Any,
        weight: float = ...,
        queue_name: QueueName = ...,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        *,
        key: QueueName | None = ...,
        **about: Unpack[ItemOptions],
    ) -> None: ...
    @overload
    def put(
        self,
        item: Any,
        weight: float = ...,
        queue_name: QueueName = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        key: QueueName | None = ...,
        **about: Unpack[ItemOptions],
    ) -> AsyncHandle[None]: ...

    @called_directly("Channel")
    def put(
        self,
        item: Any,
        weight: float = 0,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: bool = False,
        timeout_s: float | None = None,
        *,
        priority: int = 0,
        group: GroupName | None = None,
        version: int | None = None,
        slot: Slot | None = None,
        key: QueueName | None = None,
    ) -> AsyncHandle[None] | None:
        """Put an item at the tail of a queue; done when the queue holds it.

        A full queue makes the put wait before the bytes of a large item move. Other queues and other
        producers are not held up.

        Args:
            item: any picklable object.
            weight: what it counts in `get_batch`, at least 0.
            queue_name: the queue; it appears with its first item.
            async_op: see the class, like the rest.
            timeout_s: seconds.
            priority: items of a higher one are taken first; in order within one. After eight that passed an older item,
                the oldest of all is next, so that none waits for ever.
            group: what the item belongs to, such as the prompt of a sample: a string, an int, or a tuple of these. See
                `get_group`.
            version: of the policy that made the item, which the batch that it comes in has in `versions`; with a slot,
                the slot's by default. An earlier one than that is refused. A later one is noted, also one that
                `set_version` has not said yet: when the item is to be taken is the slot's to say.
            slot: leave to put it (see `Slot`), which is used up if the put succeeds; the queue is the slot's.
            key: another name of `queue_name`.

        Raises:
            ChannelTimeout: there was no room in time.
            ChannelUnanswered: the channel's process did not answer; the item may be in the queue or not.
            ChannelClosed: the channel is closed; the item is still the caller's alone.
            SlotExpired: an item was put with this slot before, or it was given back.
            CodecError: the item cannot be pickled.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        operation = ChannelOperation("put", queue, checked_timeout(self._name, timeout_s), self._now)
        if priority != 0 or group is not None or version is not None or slot is not None:
            self._say(operation, priority, group, version, slot)
        return self._put(item, weight, operation, async_op)

    @called_directly("Channel")
    def put_nowait(
        self,
        item: Any,
        weight: float = 0,
        queue_name: QueueName = DEFAULT_QUEUE,
        *,
        priority: int = 0,
        group: GroupName | None = None,
        version: int | None = None,
        slot: Slot | None = None,
        key: QueueName | None = None,
    ) -> None:
        """Put an item if there is room now.

        Raises:
            ChannelFull: there is none.
            ChannelUnanswered: the channel's process did not answer within 5 s; the item may be in the queue or not.
            ChannelClosed: the channel is closed.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        operation = ChannelOperation("put", queue, None, self._now, wait=False)
        self._say(operation, priority, group, version, slot)
        self._put(item, weight, operation, False)

    def _say(
        self,
        operation: ChannelOperation,
        priority: int,
        group: GroupName | None,
        version: int | None,
        slot: Slot | None,
    ) -> None:
        """Say of a put what its item is, where its caller has."""
        item = operation.says()
        item.priority = checked_priority(self._name, priority)
        if group is not None:
            item.group = checked_group(self._name, group)
        if version is not None:
            item.version = checked_version(self._name, version)
        if slot is not None:  # last: it is in use from now on
            self._use(slot, operation)


class Getting(ChannelAccess):
    """The part of `Channel` that takes items for good."""

    @overload
    def get(
        self,
        queue_name: QueueName = ...,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        *,
        key: QueueName | None = ...,
    ) -> Any: ...
    @overload
    def get(
        self,
        queue_name: QueueName = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        key: QueueName | None = ...,
    ) -> AsyncHandle[Any]: ...

    @called_directly("Channel")
    def get(
        self,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: bool = False,
        timeout_s: float | None = None,
        *,
        key: QueueName | None = None,
    ) -> Any:
        """Take the item at the head of a queue, when there is one and it is this getter's turn.

        Raises:
            ChannelTimeout: nothing came in time.
            ChannelClosed: the channel is closed, and the queue is drained.
            CodecError: the item cannot be read here, its class is missing, say. It is taken all the same.
        """
        queue = self._queue(queue_name, key)
        return self._get(
            ChannelOperation("get", queue, checked_timeout(self._name, timeout_s), self._now), async_op
        )

    @called_directly("Channel")
    def get_nowait(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> Any:
        """Take the item at the head of a queue if there is one now.

        Raises:
            ChannelEmpty: there is none, or getters that came before wait for it.
            ChannelUnanswered: the channel's process did not answer within 5 s; nothing was taken.
            ChannelClosed: the channel is closed, and the queue is drained.
        """
        queue = self._queue(queue_name, key)
        return self._get(ChannelOperation("get", queue, None, self._now, wait=False), False)

    def _iteration_get(self) -> ChannelOperation:
        draining = self._connection().draining
        return IterationGet.until(draining, self._queue(DEFAULT_QUEUE, None), self._now)

    def __iter__(self) -> Iterator[Any]:
        """Take the items of the default queue, until the channel is closed and drained, or this rank is."""
        while True:
            try:
                item = self._get(self._iteration_get(), False)
            except ChannelClosed:
                return
            yield item
            del item  # what its consumer has let go is let go

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Take the items of the default queue, until the channel is closed and drained, or this rank is."""
        while True:
            try:
                item = await self._get(self._iteration_get(), True)
            except ChannelClosed:
                return
            yield item
            del item


def _take(
    connection: ChannelConnection,
    operation: ChannelOperation,
    load: Callable[[Delivery], Any],
    items: Delivery,
) -> Any:
    """Make of what a handle brings what its caller gets."""
    connection.look_after(operation)
    connection.note_moved(operation, items)
    try:
        return load(items)
    except ChannelArgumentError:
        connection.give_back(operation)  # a handle that fails takes what it has
        raise


def _forget_if_failed(copies: Any, put: Promise[Any]) -> None:
    if put.cancelled() or not isinstance(put.exception(0), ChannelUnanswered | None):
        forget(copies)
