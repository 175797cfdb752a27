"""How a channel is reached, and what every operation on it goes through."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.arguments import checked_queue_name, checked_weight
from rlinf_scheduler.channel.batch import Batch, Delivery
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.connections import ChannelConnections
from rlinf_scheduler.channel.operation import Operation
from rlinf_scheduler.channel.question import Question, refuse_questions
from rlinf_scheduler.channel.slot import SENT_COPIES, forget, read_at
from rlinf_scheduler.channel.spec import ChannelRef
from rlinf_scheduler.channel.starting import StartingChannel, wait_for_start
from rlinf_scheduler.channel.tracing import own_trace
from rlinf_scheduler.comm.codec import encode
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import (
    BatchUndecodable,
    ChannelArgumentError,
    ChannelError,
    ChannelUnanswered,
    CodecError,
    SchedulerError,
)
from rlinf_scheduler.queueing import QueueName
from rlinf_scheduler.session import current_session
from rlinf_scheduler.tape.work import Work, current_work


class ChannelAccess:
    """One process's way to a channel."""

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
        state: control_wire.QueueState = self._connection().ask(
            control_wire.Query(queue), control_wire.QueueState
        )
        return state

    def _put(
        self, item: Any, weight: float, operation: Operation, async_op: bool
    ) -> AsyncHandle[None] | None:
        operation.channel = self._name
        operation.weight = checked_weight(self._name, weight)
        if (Work.has_taken or operation.step is not None) and operation.trace is None:
            operation.trace = own_trace()
        connection = self._connection()
        num_copies = SENT_COPIES.number
        try:
            encoded = encode(item, connection.device_of)
            if async_op:
                promise = connection.start(operation, encoded)
                if SENT_COPIES.number != num_copies:
                    promise.add_done_callback(partial(_forget_if_failed, SENT_COPIES.since(num_copies)))
                return AsyncHandle(promise, None, operation.describe)
            connection.run(operation, encoded)
        except BaseException as error:
            was_put = isinstance(error, ChannelUnanswered) or not isinstance(error, SchedulerError)
            if SENT_COPIES.number != num_copies and not (was_put and operation.find_promise() is not None):
                forget(SENT_COPIES.since(num_copies))
            if operation.held is not None and not was_put:
                operation.held.unused()
            raise
        if operation.held is not None:
            operation.held.used()
        return None

    def _get(self, operation: Operation, async_op: bool) -> Any:
        operation.channel = self._name
        load = self._load_batch if operation.is_batch else self._load_item
        connection = self._connection()
        if not async_op:
            return connection.run(operation, load=load)

        take = partial(_take, connection, operation, load)
        return AsyncHandle(connection.start(operation), take, operation.describe)

    def _load_item(self, items: Delivery) -> Any:
        item = items[0].load()
        if type(item) is Question:
            refuse_questions(self._name, [item])
        if items.told.ids:
            current_work().take(items.told.ids)
        return item

    def _load_batch(self, items: Delivery) -> Batch:
        batch = load_all(items)
        refuse_questions(self._name, batch)
        return batch

    def _load_leased(self, items: Delivery) -> Batch:
        # What a consumer writes into items on lease is not to be seen by who has them next.
        return load_all(copies(items), read_at)

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


def _take(
    connection: ChannelConnection, operation: Operation, load: Callable[[Delivery], Any], items: Delivery
) -> Any:
    """Make of what a handle brings what its caller gets."""
    connection.look_after(operation)
    connection.note_moved(operation, items)  # of a rank that is recorded: into that, too
    try:
        return load(items)
    except ChannelArgumentError:
        connection.give_back(operation)  # a handle that fails takes what it has
        raise


def _forget_if_failed(copies: Any, put: Promise[Any]) -> None:
    if put.cancelled() or not isinstance(put.exception(0), ChannelUnanswered | None):
        forget(copies)


def copies(items: Delivery) -> Delivery:
    """Give what came in messages memory of its own; what lies in shared memory has it."""
    for place, item in enumerate(items):
        if item.lease is None:
            items[place] = item.copied()
    return items


def load_all(items: Delivery, begin: Callable[[int], None] | None = None) -> Batch:
    """Return what came as a batch; `begin` is told before each of them.

    Raises:
        BatchUndecodable: some of it cannot be read here.
    """
    values: list[Any] = []
    problems: list[tuple[int, str]] = []
    for place, item in enumerate(items):
        if begin is not None:
            begin(place)
        try:
            values.append(item.load())
        except CodecError as error:
            problems.append((place, str(error)))
    if problems:
        raise BatchUndecodable(problems, values)
    if items.told.ids:
        current_work().take(items.told.ids)
    return items.batch(values)
