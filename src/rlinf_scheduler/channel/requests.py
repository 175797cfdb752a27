"""Questions to the server of a channel that are no operations, and waits for other things than their ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.client_parts import ClientParts
from rlinf_scheduler.channel.held import FETCH_TIMEOUT_S
from rlinf_scheduler.channel.operation import ANSWER_S, ChannelOperation
from rlinf_scheduler.channel.refusals import request_error
from rlinf_scheduler.channel.sender import ServerTransport
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.waits import CHANNEL, Wait, awaited
from rlinf_scheduler.errors import ChannelError, ChannelLost, ChannelTimeout, ChannelUnanswered

OperationT = TypeVar("OperationT", bound=ChannelOperation)

# The I/O thread ends an operation at its deadline; its caller waits so much longer for that before it says so itself.
IO_THREAD_S = 5.0
# What has no deadline of its own waits so long for another process to hold a durable channel.
RESTART_S = 60.0
# The server answers with an item, which it may fetch from the node that holds it before.
READ_S = FETCH_TIMEOUT_S + ANSWER_S
# A process that leaves waits so long to hear what it holds.
LOOK_S = 5.0
STUCK = "this process's I/O thread does not answer"


def _awaits_answer(local: dict[str, Any]) -> Wait:
    requests: Requests = local["self"]
    return requests.awaits(local["what"])


class Requests:
    """The requests of one process to one channel's server.

    Args:
        client: of the channel.
        transport: leads to its server.

    Attributes:
        awaited_puts: who waits until certain puts are over, and for which; on the I/O thread.
    """

    def __init__(self, client: ClientParts, transport: ServerTransport) -> None:
        self.awaited_puts: list[tuple[list[ChannelOperation], Promise[None]]] = []
        self._client = client
        self._transport = transport

    # -- users' threads --------------------------------------------------------------------------

    def awaits(self, what: str) -> Wait:
        """Return what somebody waits for who has asked that; from any thread."""
        ref = self._client.ref
        name, held_by = ref.spec.name, self._client.messenger.peer_name(ref.endpoint.process_id)
        return Wait(CHANNEL, f"{what}('{name}')", peers=(held_by,), subject=name, detail=what)

    def ask(
        self, message: control_wire.Control, kind: type[Any] | None = None, timeout_s: float = ANSWER_S
    ) -> Any:
        """Ask the server something, after all operations that were started before; wait for the answer.

        Raises:
            ChannelLost: the server is gone.
            ChannelUnanswered: it does not answer.
        """
        answer = self.begin(message, kind, timeout_s)
        return self.answer_to(answer, type(message).__name__.lower(), timeout_s).head

    def begin(self, message: control_wire.Control, kind: type[Any] | None, timeout_s: float) -> Promise[Any]:
        """As `ask`, and return at once; the reply is to come."""
        answer: Promise[Any] = Promise()
        what = type(message).__name__.lower()
        self._client.hand_over(partial(self.send, message, kind, what, timeout_s), answer)
        return answer

    @awaited(_awaits_answer)
    def answer_to(self, answer: Promise[Any], what: str, timeout_s: float = ANSWER_S) -> Any:
        """Wait for the reply to something that was asked.

        Raises:
            ChannelLost: the server is gone.
            ChannelUnanswered: it does not answer.
        """
        self._client.check_may_block()
        limit_s = timeout_s + (RESTART_S if self._client.ref.spec.durable else IO_THREAD_S)
        if not answer.wait(limit_s):
            raise ChannelUnanswered(self._client.name, None, what, limit_s, self.condition or STUCK)
        return answer.result(0)

    def read(self, message: control_wire.Control, what: str) -> Any:
        """The reply that has an item in its frames; raises as `ask`, and as `landed` of items on devices."""
        answer: Promise[Any] = Promise()
        self._client.hand_over(partial(self.send, message, control_wire.Done, what, READ_S), answer)
        reply, there = self.answer_to(answer, what, READ_S), self._client.on_devices
        if there is None or not there.has(reply.frames):
            return reply
        # Nothing here holds what it is a copy of: so it comes through host memory.
        landed = there.landed(ReceivedPayload(reply.frames))
        return Reply(reply.head, landed.frames())

    def request(
        self,
        step: Callable[[ClientParts, OperationT, Promise[Any]], None],
        operation: OperationT,
        answer: Promise[Any],
    ) -> Promise[Any]:
        """Have a feature do a step on the I/O thread, whose reply comes to `answer`."""
        self._client.hand_over(lambda about: step(self._client, *about), (operation, answer))
        return answer

    def tell(self, message: control_wire.Control) -> None:
        """Send the server something without waiting for its answer."""
        self._client.hand_over(self.send_untold, message)

    def finish_puts(self, operation: str, timeout_s: float | None) -> None:
        """Wait until every put that this process has begun is over.

        Raises:
            ChannelTimeout: some are not yet; `operation` is what wanted to know.
        """
        self._client.check_may_block()
        over: Promise[None] = Promise()
        self._client.hand_over(self.await_puts, over)
        if not over.wait(timeout_s):
            state = "puts of this process still wait for room"
            raise ChannelTimeout(self._client.name, None, operation, timeout_s or 0.0, state)

    def settle_puts(self, timeout_s: float) -> None:
        """Wait until the server has all that was put, before this process goes and takes its shared memory with it."""
        held: Promise[bool] = Promise()
        # Behind the puts that were handed over and have not begun.
        self._client.inbox.append((self._say_held, held))
        self._client.messenger.submit(self._client.drain)
        if not held.wait(LOOK_S) or held.result(0):
            with contextlib.suppress(ChannelError):
                self.ask(control_wire.Query(""), control_wire.QueueState, timeout_s)

    @property
    def condition(self) -> str:
        """Why nothing comes from the server now; from any thread."""
        return self._transport.condition

    # -- the I/O thread --------------------------------------------------------------------------

    def send(
        self, message: control_wire.Control, kind: Any, what: str, timeout_s: float, answer: Promise[Any]
    ) -> None:
        """Send a request after all operations that began before; `what` it is, for messages."""
        self._client.note_direct()
        self._client.deliveries.look()
        self.send_at_once(message, kind, what, timeout_s, answer)

    def send_at_once(
        self,
        message: control_wire.Control,
        kind: Any,
        what: str,
        timeout_s: float | None,
        answer: Promise[Any],
    ) -> None:
        """Send a request before what was dropped since it was handed over; else as `send`."""
        client = self._client
        if client.lost is not None:
            # Its server would take it for one of a client that it has not met, and never miss that.
            answer.set_exception(client.lost)
            return
        client.open()
        client.flush()
        asked = self._transport.ask(message, timeout_s, kind)

        def answered(reply: Any) -> None:
            error = reply.exception()
            if error is None:
                answer.set_result(reply.result())
            else:
                queue = message.queue if isinstance(message, control_wire.Query) else None
                answer.set_exception(self._failure(error, what, queue))

        asked.add_done_callback(answered)

    def send_untold(self, message: control_wire.Control) -> None:
        """Send what nobody waits for the answer of."""
        self.send(message, None, "", ANSWER_S, Promise())

    def _failure(self, error: BaseException, what: str, queue: Any) -> BaseException:
        lost = self._client.lost
        failure = request_error(self._client.name, error, what, queue, self.condition)
        return (
            lost if lost is not None and isinstance(failure, ChannelLost) else failure
        )  # for the first reason

    def await_puts(self, over: Promise[None]) -> None:
        """Complete a promise when every put that has begun here is over."""
        puts = [operation for operation in self._client.operations.values() if operation.kind == "put"]
        self.awaited_puts.append((puts, over))

    def look_at_puts(self) -> None:
        """Complete the promises of those whose puts are over."""
        awaited_puts, self.awaited_puts = self.awaited_puts, []
        for puts, over in awaited_puts:
            left = [operation for operation in puts if self._is_under_way(operation)]
            if left:
                self.awaited_puts.append((left, over))
            else:
                over.set_result(None)

    def _is_under_way(self, operation: ChannelOperation) -> bool:
        promise = operation.find_promise()
        # An asynchronous one without its promise has failed: nobody has answered.
        return operation.ticket in self._client.operations and promise is not None and not promise.done()

    def _say_held(self, answer: Promise[bool]) -> None:
        """Say whether items of this process are not in their queues yet."""
        answer.set_result(
            any(operation.payload is not None for operation in self._client.operations.values())
        )
