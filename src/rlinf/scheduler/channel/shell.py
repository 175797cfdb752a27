"""What a process does on a channel, as `queueing.ClientState` decides it: messages, timers, and ends of operations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any
from weakref import WeakSet

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.batch import Delivery
from rlinf.scheduler.channel.operation import ANSWER_S, Operation, mark_of
from rlinf.scheduler.channel.refusals import ending_error
from rlinf.scheduler.channel.shortcut import Shortcut, ShortcutRequest, dial
from rlinf.scheduler.channel.spec import ChannelRef
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.loop import Timer
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.peer import Request
from rlinf.scheduler.comm.promise import Promise, PromiseRef
from rlinf.scheduler.comm.reports import Reporter
from rlinf.scheduler.comm.shm.parcel import Arrived
from rlinf.scheduler.errors import ChannelLost, ChannelUnanswered, NotServed, SharedMemoryUnreadable
from rlinf.scheduler.queueing import (
    ClientInstruction,
    ClientState,
    Confirm,
    End,
    Ending,
    Fill,
    Reason,
    Recall,
    Send,
)

logger = Reporter(__name__)

# Confirmations wait this long for an operation to travel with; until then a dead consumer's item comes back.
CONFIRM_DELAY_S = 0.002
# Items that were delivered and are not taken are looked after so often at least.
SWEEP_S = 1.0
# A process that leaves waits so long to hear what it holds.
LOOK_S = 5.0
MAX_OPERATIONS = 1024
MAX_BYTES = 1 << 20
NO_ANSWER = "the channel's server does not answer"


class ClientShell:
    """Carries out what `ClientState` decides for one process's operations on one channel. On the I/O thread only.

    Args:
        messenger: this process's messenger.
        ref: the channel.
        on_lost: called when its server is gone.

    Attributes:
        inbox: what users' threads have handed over: a step and its argument.
        dropped: promises of gets whose handles are gone.
        lost: why nothing works here any more; None as long as it does.
        direct: gets that users' threads send by shortcuts.
        looks_soon: it will look by itself what became of delivered items.
        num_sent: how many messages with operations it has sent, or is about to send.
    """

    def __init__(self, messenger: Messenger, ref: ChannelRef, on_lost: Callable[[], None]) -> None:
        self.inbox: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.dropped: deque[PromiseRef] = deque()
        self.lost: ChannelLost | None = None
        self.direct: deque[Operation] = deque()
        self.looks_soon = False
        self.num_sent = 0
        self._ref = ref
        self._messenger = messenger
        self._on_lost = on_lost
        self._inline_bytes_limit = ref.spec.inline_bytes
        self._is_open = False
        self._state = ClientState(ref.spec.credit_bytes)
        self._operations: dict[int, Operation] = {}
        # Those that wait for credit; and whether what was handed over is being looked at.
        self._held: dict[int, Operation] = {}
        self._busy = False
        self._shortcuts: WeakSet[Shortcut] = WeakSet()
        self._delivered: dict[int, Operation] = {}
        # Delivered, and about to be taken: by callers that block, and by those who ask a handle.
        self._soon: dict[int, Operation] = {}
        self._arrivals: list[Operation] = []
        self._sweep_due = False
        self._look_s = CONFIRM_DELAY_S
        self._look_timer: Timer | None = None
        self._confirmed: list[int] = []
        self._arrived: list[int] = []
        self._outbox: deque[tuple[wire.Operation, Sequence[Buffer]]] = deque()
        # Who waits until certain puts are over, and for which.
        self._after_puts: list[tuple[list[Operation], Promise[None]]] = []
        self._service = wire.operations_service(ref.spec.channel_id)
        self._control = wire.control_service(ref.spec.channel_id)
        self._news = wire.news_service(ref.spec.channel_id)

    # -- the I/O thread: what this process does ---------------------------------------------------

    def drain(self) -> None:
        """Do what was handed over."""
        # Each hand-over asks for this; the first one to run does what all of them brought.
        if self.inbox or self.dropped or self.direct:
            self._run_inbox()
            if self.direct:
                self._note_direct()
            if self._soon:
                self._look(self._soon)
            self._flush()

    def _run_inbox(self) -> None:
        inbox = self.inbox
        was_busy, self._busy = self._busy, True
        while inbox:
            step, what = inbox.popleft()
            try:
                step(what)
            except Exception:
                logger.exception("channel '%s': a step on the I/O thread failed", self._ref.spec.name)
        self._look_at_dropped()
        self._busy = was_busy

    def begin(self, operation: Operation) -> None:
        """Begin an operation."""
        if operation.dropped or operation.find_promise() is None:
            return
        # First of all what was given up before: it stands in front of what is asked for now.
        if self.dropped:
            self._look_at_dropped()
        if not self._is_open:
            self._open()
        if self.lost is not None:
            self._finish(operation, Ending.LOST, None)
            return
        ticket = operation.ticket
        self._operations[ticket] = operation
        if operation.parcel is None:
            self._carry_out(self._state.get(ticket, operation.queue_name))
        else:
            instructions = self._state.put(ticket, operation.queue_name, self._inline_bytes(operation))
            if not instructions:
                self._held[ticket] = operation
            self._carry_out(instructions)
        # Most have no deadline.
        if operation.timeout_s is not None or not operation.wait:
            self._start_clock(operation)

    def _start_clock(self, operation: Operation) -> None:
        left_s = operation.left_s
        if left_s is not None and operation.ticket in self._operations:
            operation.timer = self._messenger.call_later(left_s, partial(self._expire, operation))

    def _open(self) -> None:
        if self._is_open:
            return
        self._is_open = True
        self._messenger.unserve(self._news)
        self._messenger.serve(self._news, self._on_news, wire.News)
        opened = self._messenger.request(
            self._ref.endpoint, self._control, wire.Open(self._messenger.endpoint)
        )
        opened.add_done_callback(self._on_opened)

    def _on_opened(self, opened: Any) -> None:
        error = None if opened.cancelled() else opened.exception()
        if error is not None:
            self.lose(self.why_lost(error))

    def ask(self, message: wire.Control, kind: Any, timeout_s: float, answer: Promise[Any]) -> None:
        """Send a request after all operations that began before."""
        self._open()
        self._note_direct()
        self._look(self._soon)
        self._flush()
        asked = self._messenger.request(
            self._ref.endpoint, self._control, message, timeout_s=timeout_s, reply_type=kind
        )

        def answered(reply: Any) -> None:
            error = reply.exception()
            if error is None:
                answer.set_result(reply.result().head)
            else:
                answer.set_exception(error)

        asked.add_done_callback(answered)

    def tell(self, message: wire.Control) -> None:
        """Send what nobody waits for the answer of."""
        self.ask(message, None, ANSWER_S, Promise())

    def tell_after_puts(self, over: Promise[None]) -> None:
        """Complete a promise when every put that has begun here is over."""
        puts = [operation for operation in self._operations.values() if operation.kind == "put"]
        self._after_puts.append((puts, over))

    def _look_at_puts(self) -> None:
        waiting, self._after_puts = self._after_puts, []
        for puts, over in waiting:
            left = [operation for operation in puts if self._is_under_way(operation)]
            if left:
                self._after_puts.append((left, over))
            else:
                over.set_result(None)

    def _is_under_way(self, operation: Operation) -> bool:
        promise = operation.find_promise()
        return operation.ticket in self._operations and not (promise is not None and promise.done())

    def _expire(self, operation: Operation) -> None:
        self._carry_out(self._state.expire(operation.ticket))
        if operation.ticket in self._operations:
            give_up = partial(self._give_up, operation)
            operation.timer = self._messenger.call_later(operation.grace_s, give_up)
        self._flush()

    def _give_up(self, operation: Operation) -> None:
        self._carry_out(self._state.give_up(operation.ticket))
        self._flush()

    def cancel(self, operation: Operation) -> None:
        """Somebody who waits for an operation gives it up."""
        self._carry_out(self._state.cancel(operation.ticket))

    def drop(self, operation: Operation) -> None:
        """Nobody waits for an operation any more."""
        if not operation.fate.taken:
            self._stop_clock(operation)
            self._carry_out(self._state.drop(operation.ticket))
            if not self._state.knows(operation.ticket):
                self._settle(operation)

    # -- the I/O thread: what users' threads do by themselves -------------------------------------

    def sent_before(self) -> int | None:
        """What a shortcut's operation stands behind (see `wire.Direct`); None if that is not sent yet.

        From any thread: what a thread has handed over passes through these from the first to the last.
        """
        if self.inbox or self.dropped or self._busy or self._held or self._outbox:
            return None
        return self.num_sent

    def open_shortcut(self, request: ShortcutRequest) -> None:
        """Get a shortcut for a thread."""
        self._open()
        asked = self._messenger.request(
            self._ref.endpoint, self._control, wire.Invite(), reply_type=wire.Invitation
        )

        def invited(reply: Any) -> None:
            if reply.exception() is None and self.lost is None and reply.result().head.path:
                shortcut = dial(reply.result().head)
                if shortcut is not None:
                    self._shortcuts.add(shortcut)
                    # It hears the server's first word, or its end, soon.
                    self._messenger.watch(shortcut.fileno(), partial(self._on_welcome, shortcut, request))

        asked.add_done_callback(invited)

    def _on_welcome(self, shortcut: Shortcut, request: ShortcutRequest) -> None:
        self._messenger.unwatch(shortcut.fileno())
        if shortcut.is_welcome():
            request.shortcut = shortcut

    def _note_direct(self) -> None:
        """Know of the gets that users' threads have sent: their items are to be confirmed."""
        if self.lost is not None:
            self.direct.clear()
            return
        while self.direct:
            operation = self.direct.popleft()
            self._know_direct(operation)
            self._soon[operation.ticket] = operation
        self._look_s = CONFIRM_DELAY_S
        self._look_later()

    def hurry(self, _nothing: None) -> None:
        """Items came by a shortcut after a while: look soon whether they were taken."""
        self._look_s = CONFIRM_DELAY_S
        self._look_later()

    def _know_direct(self, operation: Operation) -> None:
        ticket = operation.ticket
        self._operations[ticket] = operation
        self._state.direct(ticket, operation.queue_name, is_get=operation.kind != "put")

    def recall(self, operation: Operation) -> None:
        """A user's thread has sent an operation and cannot wait for its answer; or nobody waits for it any more."""
        if self.lost is not None:
            self._finish(operation, Ending.LOST, None)
            return
        self._note_direct()
        if operation.fate.taken:  # it came another way
            return
        if operation.recalled:
            self.drop(operation)
            return
        operation.recalled = True
        if operation.ticket not in self._operations:
            self._know_direct(operation)
        if operation.dropped:
            self.drop(operation)
        elif operation.left_s == 0:
            self._expire(operation)
        else:
            self.cancel(operation)
            self._start_clock(operation)

    def expect(self, operation: Operation) -> None:
        """A user's thread was told by its shortcut that the items of a get come the usual way."""
        if self.lost is not None:
            self._finish(operation, Ending.LOST, None)
            return
        self._note_direct()
        if operation.ticket not in self._delivered:
            self._start_clock(operation)

    # -- the I/O thread: delivered items ----------------------------------------------------------

    def touch(self, operation: Operation) -> None:
        """Somebody is about to take the items of a handle."""
        if operation.ticket in self._delivered:
            self._soon[operation.ticket] = operation
            self._look_s = CONFIRM_DELAY_S
            self._look_later()

    def _look_later(self) -> None:
        if self._soon or self._arrivals:
            # One that is due late gives way to one that is due soon.
            if not self.looks_soon:
                if self._look_timer is not None:
                    self._look_timer.cancel()
                self.looks_soon = self._look_s == CONFIRM_DELAY_S
                self._look_timer = self._messenger.call_later(self._look_s, self._on_soon)
        elif self._delivered and not self._sweep_due:
            self._sweep_due = True
            self._messenger.call_later(SWEEP_S, self._on_sweep)

    def _look_at_dropped(self) -> None:
        while self.dropped:
            operation = self._operations.get(self.dropped.popleft().ticket)
            if operation is not None:
                self._look_at(operation)

    def _on_soon(self) -> None:
        self.looks_soon, self._look_timer = False, None
        self._look_s = min(2 * self._look_s, SWEEP_S)
        self._run_inbox()
        if self.direct:
            self._note_direct()
        self._look(self._soon)
        arrivals, self._arrivals = self._arrivals, []
        self._arrived += [each.ticket for each in arrivals if each.ticket in self._delivered]
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
            self._look_at(operation)

    def _look_at(self, operation: Operation) -> None:
        promise = operation.find_promise()
        if operation.fate.taken:
            if promise is not None:
                promise.forget()
            self._settle(operation)
            self._carry_out(self._state.taken(operation.ticket))
        elif promise is None or operation.dropped:
            self.drop(operation)

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
                if self._held:
                    self._held.pop(instruction.ticket, None)
            elif kind is Confirm:
                self._confirmed.append(instruction.ticket)
            elif kind is Fill:
                self._fill(self._operations[instruction.ticket])
            elif kind is Recall:
                self._outbox.append((wire.Recall(instruction.ticket), ()))
            else:
                self._outbox.append((wire.Withdraw(instruction.ticket), ()))

    def _inline_bytes(self, operation: Operation) -> int:
        """How many bytes of its item the opening message of a put carries."""
        parcel = operation.parcel
        if parcel is None or parcel.goes_as_descriptor(self._ref.endpoint) or self._is_announced(operation):
            return 0
        return parcel.size_bytes

    def _is_announced(self, operation: Operation) -> bool:
        parcel = operation.parcel
        return (
            parcel is not None
            and self._inline_bytes_limit is not None
            and parcel.size_bytes > self._inline_bytes_limit
            and not parcel.goes_as_descriptor(self._ref.endpoint)
        )

    def _opening(self, operation: Operation) -> tuple[wire.Operation, Sequence[Buffer]]:
        parcel = operation.parcel
        if parcel is None:
            return operation.opening(), ()
        if self._is_announced(operation):
            return wire.Reserve(
                operation.ticket,
                operation.queue_name,
                operation.weight,
                operation.wait,
                parcel.size_bytes,
                operation.priority,
            ), ()
        frames = parcel.frames_for(self._ref.endpoint)
        return operation.opening(len(frames)), frames

    def _fill(self, operation: Operation) -> None:
        if operation.parcel is not None:
            frames = operation.parcel.bytes_frames()
            self._outbox.append((wire.Fill(operation.ticket, len(frames)), frames))

    def _end(self, ticket: int, ending: Ending, detail: Any) -> None:
        operation = self._operations[ticket]
        if ending is Ending.DELIVERED:
            self._deliver(operation, detail)
            return
        for waiting in (self._held, self._soon):
            if waiting:
                waiting.pop(ticket, None)
        if ending is not Ending.UNANSWERED:
            # An unanswered one keeps its item: the server may still read it.
            del self._operations[ticket]
            operation.parcel = None
        self._finish(operation, ending, detail)

    def _deliver(self, operation: Operation, items: list[Arrived]) -> None:
        self._stop_clock(operation)
        self._delivered[operation.ticket] = operation
        promise = operation.find_promise()
        if promise is None or operation.dropped:
            self.drop(operation)
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
            promise.set_exception(self.lost or self.gone(NO_ANSWER))
        elif ending is Ending.UNANSWERED:
            promise.set_exception(self.unanswered(operation, NO_ANSWER))
        else:
            promise.set_exception(ending_error(self._ref.spec.name, operation, ending, detail))

    def _stop_clock(self, operation: Operation) -> None:
        if operation.timer is not None:
            operation.timer.cancel()
            operation.timer = None

    def _flush(self) -> None:
        """Send everything that has gathered."""
        while self._outbox or self._confirmed or self._arrived:
            # Before anything leaves the outbox: see `sent_before`.
            self.num_sent += 1
            confirmed, self._confirmed = self._confirmed, []
            arrived, self._arrived = self._arrived, []
            operations: list[wire.Operation] = []
            frames: list[Buffer] = []
            size = 0
            while self._outbox and len(operations) < MAX_OPERATIONS and size < MAX_BYTES:
                operation, its_frames = self._outbox.popleft()
                operations.append(operation)
                for frame in its_frames:
                    frames.append(frame)
                    size += len(frame)
            message = wire.Operations(confirmed, arrived, operations)
            # Frames were copied when the put began.
            self._messenger.notify(self._ref.endpoint, self._service, message, frames, snapshot=False)
        if self._after_puts:
            self._look_at_puts()

    # -- the I/O thread: what the server says -----------------------------------------------------

    def _on_news(self, request: Request) -> None:
        if request.peer_id != self._ref.endpoint.process_id or self.lost is not None:
            return
        if self.direct:
            self._note_direct()
        news: wire.News = request.head
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
            self.lose(self._deleted())
            return
        self._run_inbox()
        if self._soon:
            self._look(self._soon)
        self._flush()

    def _answer(self, ticket: int, instructions: list[ClientInstruction]) -> None:
        self._carry_out(instructions)
        operation = self._operations.pop(ticket, None)
        if operation is not None:
            self._stop_clock(operation)

    def _on_delivered(self, answer: wire.Delivered, frames: Iterator[Buffer]) -> None:
        # All that is the delivery's, before anything can go wrong: the rest belongs to others.
        parts = [list(islice(frames, count)) for count in answer.num_frames]
        if answer.ticket not in self._operations:
            # Nobody has asked for it any more; an answer to a withdrawal that was on its way does no harm.
            self._outbox.append((wire.Withdraw(answer.ticket), ()))
            return
        try:
            items = Delivery(map(self._messenger.parcels.receive, parts), answer.complete, answer.part)
        except SharedMemoryUnreadable as error:
            logger.warning("channel '%s': %s; its items are asked for as bytes", self._ref.spec.name, error)
            self._outbox.append((wire.Resend(answer.ticket), ()))
            return
        except Exception as error:  # the other answers in this message are not to wait in vain
            logger.exception("channel '%s': a delivery cannot be received", self._ref.spec.name)
            self._answer(answer.ticket, self._state.refused(answer.ticket, (wire.INVALID, repr(error))))
            self._outbox.append((wire.Withdraw(answer.ticket), ()))
            return
        self._carry_out(self._state.delivered(answer.ticket, items))

    def _on_granted(self, answer: wire.Granted) -> None:
        if answer.problem:
            self._messenger.parcels.distrust(self._ref.endpoint.process_id, answer.problem)
        self._carry_out(self._state.granted(answer.ticket))

    def _on_refused(self, answer: wire.Refused) -> None:
        withdrawn = answer.reason == Reason.CANCELLED.value
        detail = answer.state if withdrawn else (answer.reason, answer.state)
        self._answer(answer.ticket, self._state.refused(answer.ticket, detail, withdrawn=withdrawn))

    # -- ends ------------------------------------------------------------------------------------

    def lose(self, lost: ChannelLost) -> None:
        """End everything: the channel's server cannot be reached any more. On the I/O thread."""
        if self.lost is not None:
            return
        self._messenger.unserve(self._news)
        self.lost = lost
        self._on_lost()
        self._outbox.clear()
        self._confirmed.clear()
        self._arrived.clear()
        self._carry_out(self._state.lose())
        for operation in self._operations.values():
            self._stop_clock(operation)
        for held in (self._operations, self._held, self._delivered, self._soon):
            held.clear()
        self._look_at_puts()
        for shortcut in list(self._shortcuts):
            shortcut.end()

    def leave(self, reason: str) -> None:
        """Confirm what was taken, and end everything: this process leaves the cluster."""
        if self.lost is None:
            self._note_direct()
            self._look(self._soon)
            self._look(self._delivered)
            self._flush()
            self.lose(self.gone(reason))

    def holds_puts(self) -> bool:
        """Whether items of this process are not in their queues yet; from any thread but the I/O thread."""
        answer: Promise[bool] = Promise()

        def look(_nothing: None) -> None:
            answer.set_result(any(operation.parcel is not None for operation in self._operations.values()))

        # Behind the puts that were handed over and have not begun.
        self.inbox.append((look, None))
        self._messenger.submit(self.drain)
        return not answer.wait(LOOK_S) or answer.result(0)

    def abandon(self, lost: ChannelLost) -> None:
        """Make it unusable in a forked child; the parent's operations go on."""
        self.lost = lost

    def gone(self, reason: str) -> ChannelLost:
        """The error of operations on a channel whose server is gone."""
        return ChannelLost(self._ref.spec.name, f"the process that held it is gone: {reason}")

    def why_lost(self, error: BaseException) -> ChannelLost:
        """The error of operations on a channel, of what a request to its server has failed with."""
        return self._deleted() if isinstance(error, NotServed) else self.gone(str(error))

    def _deleted(self) -> ChannelLost:
        return ChannelLost(self._ref.spec.name, "the channel was deleted")

    def unanswered(self, operation: Operation, why: str) -> ChannelUnanswered:
        """The error of an operation that nobody has answered."""
        name = self._ref.spec.name
        return ChannelUnanswered(name, operation.queue_name, operation.kind, operation.waited_s, why)
