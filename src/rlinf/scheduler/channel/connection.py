"""One process's connection to one channel: a thin shell around `queueing.ClientState`.

All `Channel` objects of a process that mean the same channel share a connection. A user's thread encodes an item,
hands its operation over, and waits; everything else happens on the messenger's I/O thread, which is the only one that
touches what a connection knows. So an interruption of the user's thread, at whatever moment, finds nothing half done.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.operation import ANSWER_S, Operation, OperationPromise, mark_of
from rlinf.scheduler.channel.refusals import ending_error
from rlinf.scheduler.channel.spec import ChannelRef
from rlinf.scheduler.comm.framing import Buffer, total_bytes
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.parcel import Arrived
from rlinf.scheduler.comm.parcels import WAIT_S
from rlinf.scheduler.comm.peer import Request, run_guarded
from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.errors import (
    ChannelError,
    ChannelLost,
    ChannelUnanswered,
    CodecError,
    CommError,
    CommTimeout,
    SharedMemoryUnreadable,
)
from rlinf.scheduler.queueing import ClientInstruction, ClientState, Confirm, End, Ending, Fill, Reason, Send

logger = logging.getLogger(__name__)

# Confirmations wait this long for an operation to travel with; until then a dead consumer's item comes back.
CONFIRM_DELAY_S = 0.002
# Items that were delivered and are not taken are looked after so often at least.
SWEEP_S = 1.0
DELETE_TIMEOUT_S = 60.0
MAX_OPERATIONS = 1024
MAX_BYTES = 1 << 20
# The I/O thread ends an operation at its deadline; its caller waits so much longer for that before it says so itself.
IO_THREAD_S = 5.0
_NO_ANSWER = "the channel's server does not answer"
_STUCK = "this process's I/O thread does not answer"


class Connection:
    """A connection to the channel `ref`; made by the first operation that is handed over.

    Args:
        messenger: this process's messenger.
        ref: the channel.
        on_lost: called with it on the I/O thread when its server is gone.
    """

    def __init__(self, messenger: Messenger, ref: ChannelRef, on_lost: Callable[[Connection], None]) -> None:
        self.ref = ref
        self.lost: ChannelLost | None = None
        self._messenger = messenger
        self._on_lost = on_lost
        self._inbox: deque[tuple[Callable[[Any], None], Any]] = deque()
        # The rest is the I/O thread's alone.
        self._is_open = False
        self._state = ClientState(wire.CREDIT_BYTES if ref.spec.maxsize else 0)
        self._operations: dict[int, Operation] = {}
        self._delivered: dict[int, Operation] = {}
        self._confirmed: list[int] = []
        self._outbox: deque[tuple[wire.Operation, Sequence[Buffer]]] = deque()
        # Delivered, and about to be taken: by callers that block, and by those who ask a handle.
        self._soon: dict[int, Operation] = {}
        self._arrivals: list[Operation] = []
        self._soon_due = False
        self._sweep_due = False
        self._look_s = CONFIRM_DELAY_S
        self._service = wire.operations_service(ref.spec.channel_id)
        self._control = wire.control_service(ref.spec.channel_id)
        self._news = wire.news_service(ref.spec.channel_id)

    # -- users' threads --------------------------------------------------------------------------

    def pack(self, operation: Operation, encoded: Any, *, blocks: bool) -> None:
        """Give a put its item as it will travel.

        Args:
            operation: the put.
            encoded: the item.
            blocks: its caller may wait for room in shared memory, up to its deadline.
        """
        room_s = 0.0
        if blocks and operation.wait and not self._messenger.on_io_thread():
            left_s = operation.left_s
            room_s = WAIT_S if left_s is None else min(WAIT_S, left_s)
        # A snapshot even for a caller who waits: a wait that ends early leaves bytes behind that are still to be sent.
        operation.parcel = self._messenger.parcels.pack(
            encoded, self.ref.endpoint, snapshot=True, wait_s=room_s
        )

    def run(self, operation: Operation, load: Callable[[list[Arrived]], Any] | None = None) -> Any:
        """Run an operation until it is over.

        Args:
            operation: what to do.
            load: makes the result of the items of a get.

        Raises:
            ChannelError: what it failed with.
            CodecError: an item cannot be read here; it is taken all the same.
        """
        self._check_may_block()
        promise: Promise[Any] = Promise()
        operation.promise_to(promise)
        fate = promise.fate
        operation.blocks = True
        try:
            self._hand_over(self._begin, operation)
            left_s = operation.left_s
            if not promise.wait(None if left_s is None else left_s + operation.grace_s + IO_THREAD_S):
                raise self._unanswered(operation, _STUCK)  # noqa: TRY301 - handled as any other end
            value = promise.result(0)
            if load is not None:
                value = load(value)
                promise.forget()
            # Stores and a return: nothing can come in between. Before them, the items go back; after them, they are
            # the caller's.
            fate.mark[0] = 1
            fate.taken = True
            return value  # noqa: TRY300 - see above
        except CodecError:
            # Back in the queue it would stand in everybody's way.
            fate.taken = True
            raise
        except BaseException:
            operation.abandoned = True
            self._hand_over(self._abandon, operation)
            raise

    def start(self, operation: Operation) -> OperationPromise:
        """Start an operation; its end comes to the promise."""
        promise = OperationPromise(partial(self._withdraw, operation))
        # A get ends with its handle; a put goes on.
        on_dropped = None if operation.kind == "put" else partial(self._on_dropped, operation)
        operation.promise_to(promise, on_dropped)
        self._hand_over(self._begin, operation)
        return promise

    def look_after(self, operation: Operation) -> None:
        """Somebody is about to take the items of a handle: confirm them soon."""
        self._inbox.append((self._touch, operation))
        # Read only here: if the I/O thread is to look anyhow, it need not be woken.
        if not self._soon_due:
            self._hand_over(self._touch, operation)

    def ask(self, message: wire.Control, kind: type[Any] | None = None, timeout_s: float = ANSWER_S) -> Any:
        """Ask the server something, after all operations that were started before; wait for the answer.

        Raises:
            ChannelLost: the server is gone.
            ChannelUnanswered: it does not answer.
        """
        self._check_may_block()
        answer: Promise[Any] = Promise()
        self._hand_over(partial(self._ask, message, timeout_s), answer)
        name, operation = self.ref.spec.name, type(message).__name__.lower()
        if not answer.wait(timeout_s + IO_THREAD_S):
            raise ChannelUnanswered(name, "*", operation, timeout_s + IO_THREAD_S, _STUCK)
        try:
            head = answer.result(0).head
        except CommTimeout as error:
            raise ChannelUnanswered(name, "*", operation, error.waited_s, _NO_ANSWER) from error
        except CommError as error:
            raise self._gone(str(error)) from error
        return None if kind is None else wire.read(head, kind)

    def settle_puts(self, timeout_s: float) -> None:
        """Wait until the server has all that was put, before this process goes and takes its shared memory with it."""
        if any(operation.parcel is not None for operation in list(self._operations.values())):
            with contextlib.suppress(ChannelError):
                self.ask(wire.Query(""), timeout_s=timeout_s)

    def _hand_over(self, step: Callable[[Any], None], what: Any) -> None:
        self._messenger.check_process()
        self._inbox.append((step, what))
        self._messenger.submit(self._drain)

    def _withdraw(self, operation: Operation, promise: OperationPromise) -> None:
        self._hand_over(self._cancel, operation)
        if self._messenger.on_io_thread():
            self._drain()
        elif operation.kind != "put":
            promise.wait(ANSWER_S)

    def _on_dropped(self, operation: Operation, _ref: weakref.ref[Any]) -> None:
        operation.abandoned = True
        with contextlib.suppress(CommError):  # in a forked child, whose parent's operations go on
            self._hand_over(self._abandon, operation)

    def _check_may_block(self) -> None:
        if self._messenger.on_io_thread():
            problem = "a callback on the I/O thread cannot wait for it; use async_op=True"
            raise ChannelError(self.ref.spec.name, problem)

    # -- the I/O thread: what this process does ---------------------------------------------------

    def _drain(self) -> None:
        while self._inbox:
            step, what = self._inbox.popleft()
            run_guarded(step, what)
        self._look(self._soon)
        self._flush()

    def _begin(self, operation: Operation) -> None:
        if operation.abandoned:
            return
        self._open()
        if self.lost is not None:
            self._finish(operation, Ending.LOST, None)
            return
        ticket = operation.ticket
        self._operations[ticket] = operation
        if operation.parcel is None:
            self._carry_out(self._state.get(ticket, operation.queue_name))
        else:
            self._carry_out(self._state.put(ticket, operation.queue_name, self._inline_bytes(operation)))
        left_s = operation.left_s
        if left_s is not None and ticket in self._operations:
            operation.timer = self._messenger.call_later(left_s, partial(self._expire, operation))

    def _open(self) -> None:
        if self._is_open:
            return
        self._is_open = True
        self._messenger.unserve(self._news)
        self._messenger.serve(self._news, self._on_news)
        opened = self._messenger.request(
            self.ref.endpoint, self._control, wire.Open(self._messenger.endpoint)
        )
        opened.add_done_callback(self._on_opened)

    def _on_opened(self, opened: Any) -> None:
        error = None if opened.cancelled() else opened.exception()
        if error is not None:
            self.lose(str(error))

    def _ask(self, message: wire.Control, timeout_s: float, answer: Promise[Any]) -> None:
        self._open()
        self._look(self._soon)
        self._flush()
        asked = self._messenger.request(self.ref.endpoint, self._control, message, timeout_s=timeout_s)

        def answered(reply: Any) -> None:
            error = reply.exception()
            if error is None:
                answer.set_result(reply.result())
            else:
                answer.set_exception(error)

        asked.add_done_callback(answered)

    def _expire(self, operation: Operation) -> None:
        self._carry_out(self._state.expire(operation.ticket))
        if operation.ticket in self._operations:
            give_up = partial(self._give_up, operation)
            operation.timer = self._messenger.call_later(operation.grace_s, give_up)
        self._flush()

    def _give_up(self, operation: Operation) -> None:
        self._carry_out(self._state.give_up(operation.ticket))

    def _cancel(self, operation: Operation) -> None:
        self._carry_out(self._state.cancel(operation.ticket))

    def _abandon(self, operation: Operation) -> None:
        if not operation.fate.taken:
            self._stop_clock(operation)
            self._carry_out(self._state.abandon(operation.ticket))
            if not self._state.knows(operation.ticket):
                self._settle(operation)

    # -- the I/O thread: delivered items ----------------------------------------------------------

    def _touch(self, operation: Operation) -> None:
        if operation.ticket in self._delivered:
            self._soon[operation.ticket] = operation
            self._look_s = CONFIRM_DELAY_S
            self._look_later()

    def _look_later(self) -> None:
        if self._soon or self._arrivals:
            if not self._soon_due:
                self._soon_due = True
                self._messenger.call_later(self._look_s, self._on_soon)
        elif self._delivered and not self._sweep_due:
            self._sweep_due = True
            self._messenger.call_later(SWEEP_S, self._on_sweep)

    def _on_soon(self) -> None:
        self._soon_due = False
        self._look_s = min(2 * self._look_s, SWEEP_S)
        self._drain()
        arrivals, self._arrivals = self._arrivals, []
        for operation in arrivals:
            if operation.ticket in self._delivered:
                self._outbox.append((wire.Arrived(operation.ticket), ()))
        self._look_later()
        self._flush()

    def _on_sweep(self) -> None:
        """A dropped handle says so itself, unless an interruption came in between."""
        self._sweep_due = False
        self._look(self._delivered)
        self._look_later()
        self._flush()

    def _look(self, operations: dict[int, Operation]) -> None:
        """See what became of delivered items."""
        for operation in list(operations.values()):
            promise = operation.find_promise()
            if operation.fate.taken:
                if promise is not None:
                    promise.forget()
                self._settle(operation)
                self._carry_out(self._state.taken(operation.ticket))
            elif promise is None or operation.abandoned:
                self._abandon(operation)

    def _settle(self, operation: Operation) -> None:
        ticket = operation.ticket
        self._delivered.pop(ticket, None)
        self._soon.pop(ticket, None)
        self._operations.pop(ticket, None)

    # -- the I/O thread: instructions -------------------------------------------------------------

    def _carry_out(self, instructions: list[ClientInstruction]) -> None:
        for instruction in instructions:
            kind = type(instruction)
            if kind is End:
                self._end(*instruction)
            elif kind is Send:
                self._outbox.append(self._opening(self._operations[instruction.ticket]))
            elif kind is Confirm:
                self._confirmed.append(instruction.ticket)
            elif kind is Fill:
                self._fill(self._operations[instruction.ticket])
            else:
                self._outbox.append((wire.Withdraw(instruction.ticket), ()))

    def _inline_bytes(self, operation: Operation) -> int:
        """How many bytes of its item the opening message of a put carries."""
        parcel = operation.parcel
        if parcel is None or parcel.goes_as_descriptor(self.ref.endpoint) or self._is_announced(operation):
            return 0
        return parcel.size_bytes

    def _is_announced(self, operation: Operation) -> bool:
        parcel = operation.parcel
        return (
            parcel is not None
            and parcel.size_bytes > wire.INLINE_BYTES
            and self.ref.spec.maxsize > 0
            and not parcel.goes_as_descriptor(self.ref.endpoint)
        )

    def _opening(self, operation: Operation) -> tuple[wire.Operation, Sequence[Buffer]]:
        ticket, queue, parcel = operation.ticket, operation.queue_name, operation.parcel
        if parcel is None:
            return wire.Get(ticket, queue, operation.wait, operation.batch_weight), ()
        if self._is_announced(operation):
            return wire.Reserve(ticket, queue, operation.weight, operation.wait, parcel.size_bytes), ()
        frames = parcel.frames_for(self.ref.endpoint)
        return wire.Put(ticket, queue, operation.weight, operation.wait, len(frames)), frames

    def _fill(self, operation: Operation) -> None:
        if operation.parcel is not None:
            frames = operation.parcel.frames_for(self.ref.endpoint)
            self._outbox.append((wire.Fill(operation.ticket, len(frames)), frames))

    def _end(self, ticket: int, ending: Ending, detail: Any) -> None:
        operation = self._operations[ticket]
        if ending is Ending.DELIVERED:
            self._deliver(operation, detail)
            return
        if ending is not Ending.UNANSWERED:
            # An unanswered one keeps its item: the server may still read it.
            del self._operations[ticket]
            operation.parcel = None
        self._finish(operation, ending, detail)

    def _deliver(self, operation: Operation, items: list[Arrived]) -> None:
        self._stop_clock(operation)
        self._delivered[operation.ticket] = operation
        promise = operation.find_promise()
        if promise is None or operation.abandoned:
            self._abandon(operation)
            return
        operation.fate.mark = mark_of(items)
        promise.set_result(items)
        if operation.blocks:
            self._soon[operation.ticket] = operation
        self._arrivals.append(operation)
        self._look_s = CONFIRM_DELAY_S
        self._look_later()

    def _finish(self, operation: Operation, ending: Ending, detail: Any) -> None:
        self._stop_clock(operation)
        promise = operation.find_promise()
        if promise is None:
            return
        if ending is Ending.ACCEPTED:
            promise.set_result(None)
        elif ending is Ending.CANCELLED:
            promise.set_cancelled()
        elif ending is Ending.LOST:
            promise.set_exception(self.lost or self._gone(_NO_ANSWER))
        elif ending is Ending.UNANSWERED:
            promise.set_exception(self._unanswered(operation, _NO_ANSWER))
        else:
            promise.set_exception(ending_error(self.ref.spec.name, operation, ending, detail))

    def _stop_clock(self, operation: Operation) -> None:
        if operation.timer is not None:
            operation.timer.cancel()
            operation.timer = None

    def _flush(self) -> None:
        """Send everything that has gathered."""
        while self._outbox or self._confirmed:
            confirmed, self._confirmed = self._confirmed, []
            operations: list[wire.Operation] = []
            frames: list[Buffer] = []
            size = 0
            while self._outbox and len(operations) < MAX_OPERATIONS and size < MAX_BYTES:
                operation, its_frames = self._outbox.popleft()
                operations.append(operation)
                if its_frames:
                    frames.extend(its_frames)
                    size += total_bytes(its_frames)
            message = wire.Operations(confirmed, operations)
            # Frames were copied when the put began.
            self._messenger.notify(self.ref.endpoint, self._service, message, frames, snapshot=False)

    # -- the I/O thread: what the server says -----------------------------------------------------

    def _on_news(self, request: Request) -> None:
        if request.peer_id != self.ref.endpoint.process_id or self.lost is not None:
            return
        news = wire.read(request.head, wire.News)
        for ticket in news.accepted:
            self._answer(ticket, self._state.accepted(ticket))
        frames = iter(request.frames)
        for answer in news.answers:
            if isinstance(answer, wire.Delivered):
                self._on_delivered(answer, frames)
            elif isinstance(answer, wire.Refused):
                self._on_refused(answer)
            else:
                self._on_granted(answer)
        if news.left:
            self.lose("its server left")
            return
        self._drain()

    def _answer(self, ticket: int, instructions: list[ClientInstruction]) -> None:
        self._carry_out(instructions)
        operation = self._operations.pop(ticket, None)
        if operation is not None:
            self._stop_clock(operation)

    def _on_delivered(self, answer: wire.Delivered, frames: Iterator[Buffer]) -> None:
        # All that is the delivery's, before anything can go wrong: the rest belongs to others.
        parts = [list(islice(frames, count)) for count in answer.num_frames]
        if answer.ticket not in self._operations:
            return
        try:
            items = [self._messenger.parcels.receive(part) for part in parts]
        except SharedMemoryUnreadable as error:
            logger.warning("channel '%s': %s; its items are asked for as bytes", self.ref.spec.name, error)
            self._outbox.append((wire.Resend(answer.ticket), ()))
            return
        self._carry_out(self._state.delivered(answer.ticket, items))

    def _on_granted(self, answer: wire.Granted) -> None:
        if answer.problem:
            self._messenger.parcels.distrust(self.ref.endpoint.process_id, answer.problem)
        self._carry_out(self._state.granted(answer.ticket))

    def _on_refused(self, answer: wire.Refused) -> None:
        withdrawn = answer.reason == Reason.CANCELLED.value
        detail = answer.state if withdrawn else (answer.reason, answer.state)
        self._answer(answer.ticket, self._state.refused(answer.ticket, detail, withdrawn=withdrawn))

    # -- ends ------------------------------------------------------------------------------------

    def lose(self, reason: str) -> None:
        """End everything: the channel's server cannot be reached any more. On the I/O thread."""
        if self.lost is not None:
            return
        self._messenger.unserve(self._news)
        self.lost = self._gone(reason)
        self._on_lost(self)
        self._outbox.clear()
        self._confirmed.clear()
        self._carry_out(self._state.lose())
        for operation in self._operations.values():
            self._stop_clock(operation)
        self._operations.clear()
        self._delivered.clear()
        self._soon.clear()

    def leave(self, reason: str) -> None:
        """Confirm what was taken, and end everything: this process leaves the cluster. From any thread."""
        left: Promise[None] = Promise()

        def leave(_nothing: None) -> None:
            if self.lost is None:
                self._look(self._delivered)
                self._flush()
                self.lose(reason)
            left.set_result(None)

        self._hand_over(leave, None)
        if self._messenger.on_io_thread():
            self._drain()
        else:
            left.wait(ANSWER_S)

    def abandon(self, reason: str) -> None:
        """Make it unusable in a forked child; the parent's operations go on."""
        self.lost = ChannelLost(self.ref.spec.name, reason)

    def _gone(self, reason: str) -> ChannelLost:
        return ChannelLost(self.ref.spec.name, f"the process that held it is gone: {reason}")

    def _unanswered(self, operation: Operation, why: str) -> ChannelUnanswered:
        name = self.ref.spec.name
        return ChannelUnanswered(name, operation.queue_name, operation.kind, operation.waited_s, why)
