"""The side that asks: `Channel.ask`, and questions that wait for their answers."""

from __future__ import annotations

import itertools
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, overload

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.access import ChannelAccess, OfServer
from rlinf_scheduler.channel.arguments import (
    DEFAULT_QUEUE,
    checked_group,
    checked_priority,
    checked_queue_name,
    checked_timeout,
)
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.connections import ChannelConnections
from rlinf_scheduler.channel.operation import ChannelOperation
from rlinf_scheduler.channel.question import (
    ANSWER,
    Answer,
    Answered,
    Failed,
    Question,
    Received,
    Unanswerable,
)
from rlinf_scheduler.checks import called_directly
from rlinf_scheduler.comm.failure import load_failure
from rlinf_scheduler.comm.handle import AsyncHandle, Later, Now, Seconds
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.operation import Operation, OperationPromise
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.promise import Promise, PromiseRef
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.waits import CHANNEL, Cause, Wait
from rlinf_scheduler.errors import (
    ChannelError,
    ChannelTimeout,
    ChannelUnanswerable,
    CommError,
    ResultTimeout,
    SharedMemoryUnreadable,
)
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.queueing.out_of_turn import GroupName
from rlinf_scheduler.session import Session, current_session

_next_number = itertools.count(1).__next__
_UNANSWERED = "it is in the queue or with a consumer, and nobody has answered"


class AskOperation(Operation):
    """A question and its answer to come; dropping the promise of that gives the question up.

    Attributes:
        connection: to the channel that was asked.
        queue: where the question is put.
    """

    __slots__ = ("_asking", "connection", "queue")

    def __init__(self, asking: Asking, connection: ChannelConnection, queue: QueueName) -> None:
        super().__init__(_next_number(), None, connection.now)
        self.connection = connection
        self.queue = queue
        self._asking = asking

    @property
    def channel(self) -> str:
        """The name of the channel that was asked."""
        return self.connection.ref.spec.name

    def describe(self) -> str:
        """The question, for messages."""
        return f"ask on channel '{self.channel}', queue {self.queue!r}"

    def late(self) -> ChannelTimeout:
        """Return the error of a question that nobody has answered in time."""
        return ChannelTimeout(self.channel, self.queue, "ask", self.waited_s, _UNANSWERED)

    def awaits(self) -> Wait:
        """Return what a wait for its end is for."""
        queue = "" if self.queue == "default" else f", {self.queue!r}"
        about = f"ask('{self.channel}'{queue})", self.waited_s
        return Wait(CHANNEL, *about, subject=self.channel, queue=repr(self.queue), detail="ask")

    def cause(self) -> Cause:
        """Return the cause under which such a wait is counted."""
        return Cause(CHANNEL, "ask", self.channel)

    def withdraw(self, promise: OperationPromise) -> None:
        """Give it up."""
        promise.set_cancelled()
        if promise.cancelled():
            self._asking.give_up(self)

    def gone(self) -> None:
        """Have the I/O thread look: nobody waits for the answer any more."""
        self._asking.wake()


class Asking:
    """The questions of one process; a service of its session."""

    def __init__(self, session: Session) -> None:
        self._name = session.name
        self._messenger: Messenger = session.messenger
        # By number; and promises that were dropped.
        self._asked: dict[int, AskOperation] = {}
        self._dropped: deque[PromiseRef] = deque()
        self._messenger.serve(ANSWER, self._on_answer, Answer)
        session.service(ChannelConnections).on_lost(self._on_channel_lost)
        self._messenger.at_end(self._end)

    def begin(
        self, connection: ChannelConnection, queue: QueueName, item: Any
    ) -> tuple[Question, AskOperation, OperationPromise]:
        """A question about `item`, to be put into the channel, and its answer to come."""
        operation = AskOperation(self, connection, queue)
        promise = OperationPromise(operation, is_watched=True)
        operation.promise_to(promise, self._dropped)
        self._asked[operation.ticket] = operation
        return Question(operation.ticket, self._messenger.endpoint, self._name, item), operation, promise

    def follow(self, put: AsyncHandle[None], operation: AskOperation, timeout_s: float | None) -> None:
        """Let a question that is not in its queue yet fail as its put does, and at its deadline."""

        def on_put(done: Promise[Any]) -> None:
            promise = operation.find_promise()
            error = None if done.cancelled() else done.exception(0)
            if promise is not None and error is not None:
                self._forget(operation.ticket)
                promise.set_exception(error)

        def on_time() -> None:
            promise = operation.find_promise()
            if promise is not None:
                promise.set_exception(operation.late())
            self._retract(operation.ticket)

        put.settled.add_done_callback(on_put)
        if timeout_s is not None and operation.ticket in self._asked:
            operation.timer = self._messenger.call_later(timeout_s, on_time)

    def give_up(self, operation: AskOperation) -> None:
        """Nobody waits for an answer any more; from any thread."""
        self._messenger.submit(partial(self._retract, operation.ticket))

    def wake(self) -> None:
        """Have what was dropped be looked at; from any thread."""
        with suppress(CommError):  # a forked child has none of its parent's questions
            self._messenger.submit_once(self._look_at_dropped)

    # -- the I/O thread --------------------------------------------------------------------------

    def _look_at_dropped(self) -> None:
        while self._dropped:
            self._retract(self._dropped.popleft().ticket)

    def _forget(self, number: int) -> AskOperation | None:
        operation = self._asked.pop(number, None)
        if operation is not None:
            operation.stop_clock()
        return operation

    def _retract(self, number: int) -> None:
        """Let a question leave its queue, unless it has an answer or somebody is about to give one."""
        operation = self._forget(number)
        if operation is not None and operation.connection.lost is None:
            with suppress(ChannelError, CommError):
                operation.connection.requests.tell(control_wire.Retract(operation.queue, number))

    def _on_answer(self, request: Request) -> None:
        answer: Answer = request.head
        # The first answer counts. One that comes later is of somebody who was given up for lost, and was not.
        operation = self._asked.get(answer.number)
        promise = None if operation is None else operation.find_promise()
        if promise is not None and not promise.done():
            promise.by = request.peer_name
            try:
                self._end_by(promise, answer, request)
            except SharedMemoryUnreadable as error:
                request.reply(Received(str(error)))
                return
        self._forget(answer.number)
        request.reply(Received())

    def _end_by(self, promise: Promise[Any], answer: Answer, request: Request) -> None:
        match answer:
            case Answered():
                promise.set_result(self._messenger.payloads.receive(request.frames))
            case Failed():
                promise.set_exception(load_failure(request.frames[0]).error(request.peer_name))
            case Unanswerable(number, attempts, consumer, reason):
                channel = self._asked[number].channel
                promise.set_exception(ChannelUnanswerable(channel, attempts, consumer, reason))

    def _on_channel_lost(self, connection: ChannelConnection) -> None:
        if connection.lost is not None:
            self._fail_all(connection.lost, connection.ref.spec.channel_id)

    def _end(self) -> None:
        self._fail_all(CommError(self._messenger.why_closed))

    def _fail_all(self, error: BaseException, channel_id: str = "") -> None:
        """Let the questions to a channel fail, or all."""
        for operation in list(self._asked.values()):
            promise = operation.find_promise()
            if promise is not None and channel_id in ("", operation.connection.ref.spec.channel_id):
                promise.set_exception(error)


class Questions(ChannelAccess):
    """The part of `Channel` that asks."""

    _of_server: ClassVar[OfServer] = (("ask", "questions"),)

    @overload
    def ask(
        self,
        item: Any,
        weight: float = ...,
        queue_name: QueueName = ...,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        *,
        priority: int = ...,
        group: GroupName | None = ...,
        key: QueueName | None = ...,
    ) -> Any: ...
    @overload
    def ask(
        self,
        item: Any,
        weight: float = ...,
        queue_name: QueueName = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        priority: int = ...,
        group: GroupName | None = ...,
        key: QueueName | None = ...,
    ) -> AsyncHandle[Any]: ...

    @called_directly("Channel")
    def ask(
        self,
        item: Any,
        weight: float = 0,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: bool = False,
        timeout_s: float | None = None,
        *,
        priority: int = 0,
        group: GroupName | None = None,
        key: QueueName | None = None,
    ) -> Any:
        """Put a question into a queue, and return what its consumer answers (see `next_request`).

        The answer comes straight from the consumer's process. A consumer that dies or hangs does not end the wait: the
        question is given to another one.

        Args:
            item: what is asked; any picklable object, as the rest of the arguments as of `put`.
            weight: what it counts in a batch of requests.
            queue_name: the queue.
            async_op: return a handle at once, whose result is the answer.
            timeout_s: how long to wait for the answer, in seconds.
            priority: questions of a higher one are taken first.
            group: what it belongs to, such as a conversation: see `sticky` of `next_request`.
            key: another name of `queue_name`.

        Raises:
            ChannelTimeout: there was no room for it, or no answer, in time. It leaves its queue if nobody has it.
            ChannelUnanswerable: it was given out `max_attempts` times, and nobody answered.
            ChannelClosed: the channel is closed, or the queue has ended.
            ChannelLost: the channel was deleted, or its process is gone, before there was an answer.
            CodecError: the question cannot be pickled.
            Exception: what the consumer answered with `fail`.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        limit_s = checked_timeout(self._name, timeout_s)
        operation = ChannelOperation("put", queue, limit_s, self._now)
        said = operation.says()
        said.priority = checked_priority(self._name, priority)
        said.group = None if group is None else checked_group(self._name, group)
        asking = current_session().service(Asking)
        question, asked, promise = asking.begin(self._connection(), queue, item)
        said.question = question.number
        handle = AsyncHandle(promise, ReceivedPayload.load, asked.describe)
        put = self._put(question, weight, operation, async_op)
        if put is not None:
            asking.follow(put, asked, limit_s)
            return handle
        try:
            return handle.wait(operation.left_s)
        except ResultTimeout:
            if promise.done():  # it is the answer
                raise
            asking.give_up(asked)
            raise asked.late() from None
