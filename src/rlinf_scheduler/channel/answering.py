"""The side that answers: questions that a consumer has on lease, and what of `Channel` gives them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypedDict, Unpack, overload

from rlinf_scheduler.channel.access import OfServer
from rlinf_scheduler.channel.arguments import (
    DEFAULT_QUEUE,
)
from rlinf_scheduler.channel.lease import LEASE_S, Lease, LeaseContext, Leasing
from rlinf_scheduler.channel.question import ANSWER, Answered, Failed, Question, Received
from rlinf_scheduler.comm.codec import encode
from rlinf_scheduler.comm.codec.interruptions import raised_by_signal_handler
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.failure import dump_failure
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.handle import AsyncHandle, Later, Now, Seconds
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payloads import WAIT_S
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.errors import ChannelArgumentError, ChannelClosed, ChannelError, CommError
from rlinf_scheduler.observe.timekeeping import REPLY, TIMES
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.session import current_session


class RequestOptions(TypedDict, total=False):
    """What `Channel.next_request` takes besides the queue; as of `lease`."""

    ttl_s: float
    work_deadline_s: float | None
    sticky: bool
    key: QueueName | None


class Answering(Leasing):
    """The part of `Channel` that answers."""

    _of_server: ClassVar[OfServer] = (
        ("next_request", "questions"),
        ("next_requests", "questions"),
        ("requests", "questions"),
    )

    @overload
    def next_request(
        self,
        queue_name: QueueName = ...,
        async_op: Now = ...,
        timeout_s: Seconds = ...,
        **options: Unpack[RequestOptions],
    ) -> ChannelRequest: ...
    @overload
    def next_request(
        self,
        queue_name: QueueName = ...,
        *,
        async_op: Later,
        timeout_s: Seconds = ...,
        **options: Unpack[RequestOptions],
    ) -> AsyncHandle[ChannelRequest]: ...

    def next_request(
        self,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> Any:
        """Return the next question of a queue, on lease: `request.reply(answer)` or `request.fail(error)`.

        A request that is dropped unanswered, or whose process dies or hangs, is given to the next consumer.

        Args:
            queue_name: the queue.
            async_op: return a handle at once; one that is cancelled or dropped takes nothing.
            timeout_s: how long to wait for a question, in seconds.
            options: `ttl_s`, `work_deadline_s`, `sticky` and `key` of `lease`.

        Raises:
            ChannelTimeout, ChannelClosed: as of `lease`.
            ChannelArgumentError: the next item was put, and not asked; it stays where it is.
        """
        context = self.lease(queue_name, timeout_s=timeout_s, **options)
        if not async_op:
            (request,) = self._requests(context)
            return request
        messenger, name = current_session().messenger, self._name
        return context.of_questions().begin(lambda lease: open_requests(messenger, name, context, lease)[0])

    def next_requests(
        self,
        max_items: int,
        queue_name: QueueName = DEFAULT_QUEUE,
        *,
        batch_weight: float | None = None,
        max_bytes: int | None = None,
        min_items: int = 1,
        max_wait_s: float | None = None,
        ttl_s: float = LEASE_S,
        work_deadline_s: float | None = None,
        timeout_s: float | None = None,
        key: QueueName | None = None,
    ) -> list[ChannelRequest]:
        """Return several questions, to be answered one by one: what an inference server makes a batch of.

        Args:
            max_items: at most so many; with the other defaults, at least one and what else is there now.
            queue_name: the queue.
            batch_weight: as of `get_batch`, like the next three.
            max_bytes: at most so many bytes.
            min_items: at least so many questions.
            max_wait_s: how long a batch that has `min_items` waits for more, in seconds.
            ttl_s: as of `lease`, like the next two.
            work_deadline_s: seconds.
            timeout_s: how long to wait, in seconds.
            key: another name of `queue_name`.

        Raises:
            BatchTimeout, ChannelClosed, BatchImpossible: as of `get_batch`.
            ChannelArgumentError: one of the next items was put, and not asked; they stay where they are.
        """
        return self._requests(
            self.lease(
                queue_name,
                batch_weight=batch_weight,
                max_items=max_items,
                max_bytes=max_bytes,
                min_items=min_items,
                max_wait_s=max_wait_s,
                ttl_s=ttl_s,
                work_deadline_s=work_deadline_s,
                timeout_s=timeout_s,
                key=key,
            )
        )

    def requests(
        self,
        queue_name: QueueName = DEFAULT_QUEUE,
        *,
        ttl_s: float = LEASE_S,
        work_deadline_s: float | None = None,
        timeout_s: float | None = None,
        key: QueueName | None = None,
    ) -> RequestLoop:
        """Return one request after the other, until the queue ends, for `for` and `async for`.

            for request in channel.requests():
                request.reply(policy(request.item))

        Args:
            queue_name: as of `next_request`, like the rest; for several at once there is `next_requests`.
            ttl_s: seconds.
            work_deadline_s: seconds.
            timeout_s: how long to wait for each question, in seconds.
            key: another name of `queue_name`.
        """

        def make() -> LeaseContext:
            return self.lease(
                queue_name, ttl_s=ttl_s, work_deadline_s=work_deadline_s, timeout_s=timeout_s, key=key
            )

        make()  # what is wrong with the arguments is said at once
        return RequestLoop(current_session().messenger, self._name, make)

    def _requests(self, context: LeaseContext) -> list[ChannelRequest]:
        messenger = current_session().messenger
        return open_requests(messenger, self._name, context, context.of_questions().__enter__())


LEFT = "the loop was left before it was answered"


class ChannelRequest:
    """A question that this process is to answer: `request.reply(policy(request.item))`.

    It is on lease: if this process dies or hangs, or the request is dropped without an answer, another consumer gets
    it. As a context manager it answers with the exception that ends its block.

    Attributes:
        item: what is asked.
        asked_by: who asked, e.g. "env:3".
        attempt: how often it was given out, 1 the first time.
    """

    def __init__(
        self,
        messenger: Messenger,
        channel: str,
        question: Question,
        context: LeaseContext,
        lease: Lease,
        place: int,
    ) -> None:
        self.item = question.item
        self.asked_by = question.asked_by
        self.attempt = lease.attempts[place]
        self._messenger = messenger
        self._channel = channel
        self._number = question.number
        self._asker = question.asker
        self._lease = lease
        self._place = place
        # It alone keeps the lease: a request that is dropped gives its question back.
        self._context: LeaseContext | None = context

    def reply(self, value: Any) -> None:
        """Answer; the answer goes straight to the asker, and this does not wait until it is there.

        Nothing happens if the asker is gone, or has somebody else's answer by now.

        Args:
            value: any picklable object.

        Raises:
            ChannelArgumentError: it was answered before.
            CodecError: `value` cannot be pickled; nothing was answered.
        """
        self._check_open()
        began = TIMES.now()
        payload = self._messenger.payloads.pack(encode(value), self._asker, snapshot=True, wait_s=WAIT_S)
        self._send(_Answer(self._messenger, self._asker, Answered(self._number), payload, (), self._settle))
        TIMES.note_moved(REPLY, began, "reply", self._channel)

    def fail(self, error: BaseException) -> None:
        """Answer with an error, which the asker's `ask` raises.

        Raises:
            ChannelArgumentError: it was answered before.
        """
        self._check_open()
        why = [dump_failure(error)]
        self._send(_Answer(self._messenger, self._asker, Failed(self._number), None, why, self._settle))
        TIMES.note_moved(REPLY, TIMES.now(), "reply", self._channel)

    def answer(self, function: Callable[[Any], Any]) -> bool:
        """Answer with `function(item)`, or with the exception that it raises; whether it raised none.

        So a loop survives a question that cannot be answered:

            for request in channel.requests():
                request.answer(policy)

        Raises:
            ChannelArgumentError: it was answered before.
        """
        self._check_open()
        try:
            value = function(self.item)
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            self.fail(error)
            return False
        self.reply(value)
        return True

    def abandon(self, reason: str) -> None:
        """Give it back, if it has no answer, as an attempt that has failed: another consumer gets it."""
        if self._context is not None:
            with suppress(ChannelError, CommError):
                self._lease.nack(only=self._place, reason=reason, async_op=True)
            # Last: a lease that is dropped goes back, and that is no attempt.
            self._context = None

    def _check_open(self) -> None:
        if self._context is None:
            raise ChannelArgumentError(self._channel, "this request was answered before")

    def _send(self, answer: _Answer) -> None:
        # The answer keeps the lease from here on.
        answer.lease = self._context
        self._messenger.submit(ending(answer.send, answer.fail))
        self._context = None

    def _settle(self) -> None:
        """The asker has the answer, or nobody wants it: the channel need not keep the question."""
        # It may have been given to another one meanwhile, and the channel may be gone.
        with suppress(ChannelError, CommError):
            self._lease.ack(only=self._place, async_op=True)

    def __enter__(self) -> ChannelRequest:
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if self._context is not None and isinstance(error, Exception):
            self.fail(error)
        # What has no answer goes back.
        self._context = None

    def __repr__(self) -> str:
        state = "answered" if self._context is None else "open"
        return f"<ChannelRequest of '{self.asked_by}' on channel '{self._channel}': {state}>"


class _Answer:
    """An answer on its way; on the I/O thread.

    Args:
        asker: to whom.
        head: what kind of answer to which question.
        payload: the value; None for a failure.
        frames: the failure.
        settle: called when the asker has it, or is gone.

    Attributes:
        lease: kept until then: before, another consumer gets the question if this process dies.
    """

    def __init__(
        self,
        messenger: Messenger,
        asker: Endpoint,
        head: Answered | Failed,
        payload: Payload | None,
        frames: Sequence[Buffer],
        settle: Callable[[], None],
    ) -> None:
        self.lease: LeaseContext | None = None
        self._messenger = messenger
        self._asker = asker
        self._head = head
        self._payload = payload
        self._frames = frames
        self._settle = settle

    def send(self) -> None:
        self._send(self._frames if self._payload is None else self._payload.frames_for(self._asker))

    def fail(self, _error: Exception) -> None:
        """It cannot be sent: the question goes back."""
        self.lease = self._payload = None

    def _send(self, frames: Sequence[Buffer]) -> None:
        receipt = self._messenger.request(
            self._asker, ANSWER, self._head, frames, snapshot=False, reply_type=Received
        )
        receipt.add_done_callback(self._on_receipt)

    def _on_receipt(self, receipt: Promise[Reply]) -> None:
        if receipt.exception(0) is None and self._payload is not None:
            received: Received = receipt.result(0).head
            if received.unreadable:
                self._messenger.payloads.distrust(self._asker.process_id, received.unreadable)
                self._send(self._payload.bytes_frames())
                return
        self._settle()
        self.lease = self._payload = None


class RequestLoop:
    """An iterator of requests until the queue ends, as `Channel.requests` returns it, for `for` and `async for`.

    A request that was not answered when the next one is asked for, and is not kept, goes back. What the loop is left
    with, by an error or by `break`, goes back too, and that was an attempt.

    Args:
        messenger: this process's messenger.
        channel: the channel's name.
        make: makes the next lease, not entered.
    """

    def __init__(self, messenger: Messenger, channel: str, make: Callable[[], LeaseContext]) -> None:
        self._messenger = messenger
        self._channel = channel
        self._make = make

    def __iter__(self) -> Iterator[ChannelRequest]:
        """Give requests until the queue ends."""
        while True:
            context = self._make().of_questions()
            try:
                lease = context.__enter__()
            except ChannelClosed:
                return
            (request,) = open_requests(self._messenger, self._channel, context, lease)
            del context, lease
            try:
                yield request
            except GeneratorExit:
                request.abandon(LEFT)
                raise
            del request

    async def __aiter__(self) -> AsyncIterator[ChannelRequest]:
        """Give requests until the queue ends."""
        while True:
            context = self._make().of_questions()
            try:
                lease = await context.__aenter__()
            except ChannelClosed:
                return
            (request,) = open_requests(self._messenger, self._channel, context, lease)
            del context, lease
            try:
                yield request
            except GeneratorExit:
                request.abandon(LEFT)
                raise
            del request


def open_requests(
    messenger: Messenger, channel: str, context: LeaseContext, lease: Lease
) -> list[ChannelRequest]:
    """The requests of a lease that was entered.

    Raises:
        ChannelArgumentError: its items were put, and not asked; they go back, and this was no attempt.
    """
    for item in lease.items:
        if not isinstance(item, Question):
            problem = f"the next item of this queue is no question, but was put: {type(item).__name__}"
            context.decline()
            raise ChannelArgumentError(channel, problem)
    return [
        ChannelRequest(messenger, channel, question, context, lease, place)
        for place, question in enumerate(lease.items)
    ]
