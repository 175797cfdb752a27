"""The side that asks: `Channel.ask`, and questions that wait for their answers."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable
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
from rlinf_scheduler.channel.spec import ChannelRef
from rlinf_scheduler.comm.failure import load_failure
from rlinf_scheduler.comm.handle import AsyncHandle, Later, Now, Seconds
from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.promise import Promise, PromiseRef, Wake
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
from rlinf_scheduler.keywords import called_directly
from rlinf_scheduler.queueing import GroupName, QueueName
from rlinf_scheduler.session import Session, current_session

_next_number = itertools.count(1).__next__
_UNANSWERED = "it is in the queue or with a consumer, and nobody has answered"


class Pending(Promise[ReceivedPayload]):
    """An answer to come; dropping it gives the question up.

    Attributes:
        ref: the channel that was asked.
        number: of the question.
        wake: lets the I/O thread see that this was dropped.
        now: the clock of this process.
    """

    __slots__ = ("_queue", "_started", "now", "number", "ref", "wake")

    def __init__(
        self,
        ref: ChannelRef,
        queue: QueueName,
        number: int,
        wake: Wake,
        now: Callable[[], float],
        cancelled: Callable[[], None],
    ) -> None:
        super().__init__(cancelled)
        self.ref = ref
        self.number = number
        self.wake = wake
        self._queue = queue
        self.now = now
        self._started = now()

    def what(self) -> str:
        """The question, for messages."""
        return f"ask on channel '{self.ref.spec.name}', queue {self._queue!r}"

    def awaits(self) -> Wait:
        """Return what a wait for it is for, None where that is not known here. From any thread."""
        name, waited_s = self.ref.spec.name, self.now() - self._started
        queue = "" if self._queue == "default" else f", {self._queue!r}"
        about = f"ask('{name}'{queue})", waited_s
        return Wait(CHANNEL, *about, subject=name, queue=repr(self._queue), detail="ask")

    def cause(self) -> Cause:
        """Return what a wait for it is counted as; None: as what the function that waits says."""
        return Cause(CHANNEL, "ask", self.ref.spec.name)

    def timeout(self) -> ChannelTimeout:
        """The error of a question that nobody has answered in time."""
        waited_s = self.now() - self._started
        return ChannelTimeout(self.ref.spec.name, self._queue, "ask", waited_s, _UNANSWERED)


class _Asked:
    """A question without an answer yet; nobody but who waits for that keeps its promise."""

    __slots__ = ("connection", "queue", "ref", "timer")

    def __init__(self, ref: PromiseRef, connection: ChannelConnection, queue: QueueName) -> None:
        self.ref = ref
        self.connection = connection
        self.queue = queue
        self.timer: Timer | None = None


class Asking:
    """The questions of one process; a service of its session."""

    def __init__(self, session: Session) -> None:
        self._name = session.name
        self._messenger: Messenger = session.messenger
        # By number; and promises that were dropped.
        self._asked: dict[int, _Asked] = {}
        self._dropped: deque[PromiseRef] = deque()
        self._messenger.serve(ANSWER, self._on_answer, Answer)
        session.service(ChannelConnections).on_lost(self._on_channel_lost)
        self._messenger.at_end(self._end)

    def begin(self, connection: ChannelConnection, queue: QueueName, item: Any) -> tuple[Question, Pending]:
        """A question about `item`, to be put into the channel, and its answer to come."""
        number = _next_number()
        wake, cancelled = Wake(self._on_dropped), partial(self._give_up, number)
        pending = Pending(connection.ref, queue, number, wake, self._messenger.now, cancelled)
        ref = PromiseRef(pending, self._dropped.append)
        ref.ticket = number
        self._asked[number] = _Asked(ref, connection, queue)
        return Question(number, self._messenger.endpoint, self._name, item), pending

    @staticmethod
    def handle(pending: Pending) -> AsyncHandle[Any]:
        """The handle of an answer; it keeps what says that somebody wants it."""
        return AsyncHandle(pending, ReceivedPayload.load, pending.what)

    def follow(self, put: AsyncHandle[None], pending: Pending, timeout_s: float | None) -> None:
        """Let a question that is not in its queue yet fail as its put does, and at its deadline."""
        number, find = pending.number, weakref.ref(pending)

        def on_put(done: Promise[Any]) -> None:
            pending = find()
            error = None if done.cancelled() else done.exception(0)
            if pending is not None and error is not None:
                self._forget(number)
                pending.set_exception(error)

        def on_time() -> None:
            pending = find()
            if pending is not None:
                pending.set_exception(pending.timeout())
            self._retract(number)

        put.settled.add_done_callback(on_put)
        asked = self._asked.get(number)
        if timeout_s is not None and asked is not None:
            asked.timer = self._messenger.call_later(timeout_s, on_time)

    def give_up(self, pending: Pending) -> None:
        """Nobody waits for an answer any more; from any thread."""
        self._give_up(pending.number)

    def _give_up(self, number: int) -> None:
        self._messenger.submit(partial(self._retract, number))

    def _on_dropped(self) -> None:
        with suppress(CommError):  # a forked child has none of its parent's questions
            self._messenger.submit_once(self._look_at_dropped)

    # -- the I/O thread --------------------------------------------------------------------------

    def _look_at_dropped(self) -> None:
        while self._dropped:
            self._retract(self._dropped.popleft().ticket)

    def _forget(self, number: int) -> _Asked | None:
        asked = self._asked.pop(number, None)
        if asked is not None and asked.timer is not None:
            asked.timer.cancel()
        return asked

    def _retract(self, number: int) -> None:
        """Let a question leave its queue, unless it has an answer or somebody is about to give one."""
        asked = self._forget(number)
        if asked is not None and asked.connection.lost is None:
            with suppress(ChannelError, CommError):
                asked.connection.requests.tell(control_wire.Retract(asked.queue, number))

    def _find(self, number: int) -> Pending | None:
        asked = self._asked.get(number)
        pending = None if asked is None else asked.ref()
        return pending if isinstance(pending, Pending) else None

    def _on_answer(self, request: Request) -> None:
        answer: Answer = request.head
        # The first answer counts. One that comes later is of somebody who was given up for lost, and was not.
        pending = self._find(answer.number)
        if pending is not None:
            pending.by = request.peer_name
        match answer:
            case Answered():
                self._take(request, pending)
                return
            case Failed() if pending is not None:
                pending.set_exception(load_failure(request.frames[0]).error(request.peer_name))
            case Unanswerable(_, attempts, consumer, reason) if pending is not None:
                error = ChannelUnanswerable(pending.ref.spec.name, attempts, consumer, reason)
                pending.set_exception(error)
        self._forget(answer.number)
        request.reply(Received())

    def _take(self, request: Request, pending: Pending | None) -> None:
        if pending is not None and not pending.done():
            try:
                pending.set_result(self._messenger.payloads.receive(request.frames))
            except SharedMemoryUnreadable as error:
                request.reply(Received(str(error)))
                return
            self._forget(pending.number)
        request.reply(Received())

    def _waiting(self) -> list[Pending]:
        found = [self._find(number) for number in list(self._asked)]
        return [pending for pending in found if pending is not None]

    def _on_channel_lost(self, connection: ChannelConnection) -> None:
        for pending in self._waiting():
            if pending.ref.spec.channel_id == connection.ref.spec.channel_id and connection.lost is not None:
                pending.set_exception(connection.lost)

    def _end(self) -> None:
        for pending in self._waiting():
            pending.set_exception(CommError(self._messenger.why_closed))


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
        question, pending = asking.begin(self._connection(), queue, item)
        said.question = question.number
        handle = asking.handle(pending)
        put = self._put(question, weight, operation, async_op)
        if put is not None:
            asking.follow(put, pending, limit_s)
            return handle
        try:
            return handle.wait(operation.left_s)
        except ResultTimeout:
            if pending.done():  # it is the answer
                raise
            asking.give_up(pending)
            raise pending.timeout() from None
