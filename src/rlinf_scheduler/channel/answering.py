"""Questions that are put into a channel, and their answers."""

from __future__ import annotations

from typing import Any, ClassVar, overload

from rlinf_scheduler.channel.access import OfServer
from rlinf_scheduler.channel.arguments import (
    DEFAULT_QUEUE,
    checked_priority,
    checked_queue_name,
    checked_timeout,
)
from rlinf_scheduler.channel.asking import Asking
from rlinf_scheduler.channel.lease import LEASE_S, LeaseContext, Leasing
from rlinf_scheduler.channel.operation import Operation
from rlinf_scheduler.channel.request import ChannelRequest, RequestLoop, open_requests
from rlinf_scheduler.comm.handle import AsyncHandle, Later, Now, Seconds
from rlinf_scheduler.errors import ResultTimeout
from rlinf_scheduler.keywords import called_directly
from rlinf_scheduler.queueing import QueueName
from rlinf_scheduler.session import current_session


class Answering(Leasing):
    """The part of `Channel` that asks and answers."""

    _of_server: ClassVar[OfServer] = (
        ("ask", "questions"),
        ("next_request", "questions"),
        ("next_requests", "questions"),
        ("requests", "questions"),
    )

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
        operation = Operation("put", queue, limit_s, self._now)
        said = operation.says()
        said.priority = checked_priority(self._name, priority)
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

    def next_request(
        self,
        queue_name: QueueName = DEFAULT_QUEUE,
        *,
        ttl_s: float = LEASE_S,
        work_deadline_s: float | None = None,
        timeout_s: float | None = None,
        key: QueueName | None = None,
    ) -> ChannelRequest:
        """Return the next question of a queue, on lease: `request.reply(answer)` or `request.fail(error)`.

        A request that is dropped unanswered, or whose process dies or hangs, is given to the next consumer.

        Args:
            queue_name: the queue.
            ttl_s: as of `lease`, like the next two.
            work_deadline_s: seconds.
            timeout_s: how long to wait for a question, in seconds.
            key: another name of `queue_name`.

        Raises:
            ChannelTimeout, ChannelClosed: as of `lease`.
            ChannelArgumentError: the next item was put, and not asked; it stays where it is.
        """
        (request,) = self._requests(
            self.lease(queue_name, ttl_s=ttl_s, work_deadline_s=work_deadline_s, timeout_s=timeout_s, key=key)
        )
        return request

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
