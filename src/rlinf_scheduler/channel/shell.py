"""What a process does on a channel, as `queueing.ClientState` decides it: messages, timers, and ends of operations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.batch import Delivery
from rlinf_scheduler.channel.deliveries import Deliveries
from rlinf_scheduler.channel.device_items import DeviceItems
from rlinf_scheduler.channel.holding import HeldParcel, Holding
from rlinf_scheduler.channel.lease_keeper import LeaseKeeper
from rlinf_scheduler.channel.line import ServerLine
from rlinf_scheduler.channel.operation import ANSWER_S, Operation
from rlinf_scheduler.channel.operation_ends import OperationEnds
from rlinf_scheduler.channel.puts_under_way import PutsUnderWay
from rlinf_scheduler.channel.receiving import Receiving
from rlinf_scheduler.channel.refusals import deleted_error, lost_error, request_error
from rlinf_scheduler.channel.sender import OperationSender
from rlinf_scheduler.channel.shortcut_opening import ShortcutOpening
from rlinf_scheduler.channel.spec import HOLDS_NODE, ChannelRef
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.loop import run_guarded
from rlinf_scheduler.comm.peer import Reply, Request
from rlinf_scheduler.comm.promise import Promise, PromiseRef
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.parcel import Parcel
from rlinf_scheduler.errors import ChannelError, ChannelLost
from rlinf_scheduler.queueing import ClientState, Ending, Reason
from rlinf_scheduler.session import Session
from rlinf_scheduler.tape.shared_devices import open_devices

logger = Reporter(__name__)


class ClientShell(OperationEnds):
    """Carries out what `ClientState` decides for one process's operations on one channel. On the I/O thread only.

    Args:
        session: this process's.
        ref: the channel.
        line: leads to its server.
        on_lost: called when its server is gone.

    Attributes:
        inbox: what users' threads have handed over: a step and its argument.
        dropped: promises of gets whose handles are gone.
        lost: why nothing works here any more; None as long as it does.
        direct: gets that users' threads send by shortcuts.
        deliveries: the operations whose items are here.
        hands_over: large items stay on this node, in the hands of its holder.
        on_devices: puts items into the memory of devices; None: the channel has none there.
        puts: those that have begun here and are not over.
        shortcuts: of this process's threads.
    """

    def __init__(
        self, session: Session, ref: ChannelRef, line: ServerLine, on_lost: Callable[[], None]
    ) -> None:
        messenger = session.messenger
        elsewhere = messenger.endpoint.machine_id != ref.endpoint.machine_id
        self.hands_over = elsewhere and ref.spec.holds == HOLDS_NODE
        self.on_devices = _on_devices(session, ref)
        self._session = session
        # Puts whose bytes this node's holder is about to take.
        self._handing: set[int] = set()
        self.inbox: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.dropped: deque[PromiseRef] = deque()
        self.lost: ChannelLost | None = None
        self.direct: deque[Operation] = deque()
        self._ref = ref
        self._messenger = messenger
        self._line = line
        self._on_lost = on_lost
        self._is_open = False
        self._state = ClientState(ref.spec.credit_bytes)
        self._operations: dict[int, Operation] = {}
        # Those that wait for credit; and whether what was handed over is being looked at.
        self._held: dict[int, Operation] = {}
        self._busy = False
        self._sender = OperationSender(line, ref, self._on_unsent)
        self._outbox = self._sender.waiting
        self.puts = PutsUnderWay(self._operations)
        self.shortcuts = ShortcutOpening(messenger, self._invite)
        self._leases = LeaseKeeper(messenger, self.tell)
        self._receiving = Receiving(
            messenger,
            ref.spec.name,
            self._leases,
            self._on_items,
            self._resend,
            self._flush,
            self.on_devices,
        )
        self.deliveries = Deliveries(
            messenger.call_later, self._sender, self._look_at, self._catch_up, self._flush
        )

    # -- the I/O thread: what this process does ---------------------------------------------------

    def drain(self) -> None:
        """Do what was handed over."""
        # Each hand-over asks for this; the first one to run does what all of them brought.
        if self.inbox or self.dropped or self.direct:
            self._catch_up()
            self.deliveries.look()
            self._flush()

    def _catch_up(self) -> None:
        """Do what was handed over, and know of what threads have sent by themselves."""
        self._run_inbox()
        if self.direct:
            self._note_direct()

    def _run_inbox(self) -> None:
        inbox = self.inbox
        was_busy, self._busy = self._busy, True
        while inbox:
            step, what = inbox.popleft()
            try:
                step(what)
            except Exception as error:
                logger.exception("channel '%s': a step on the I/O thread failed", self._ref.spec.name)
                run_guarded(self._fail, what, error)
        self._look_at_dropped()
        self._busy = was_busy

    def _fail(self, what: Any, error: Exception) -> None:
        """End what the thread waits for that has handed over a step which failed."""
        for each in what if isinstance(what, tuple) else (what,):
            if isinstance(each, Promise):
                each.set_exception(error)
        if isinstance(what, Operation):
            promise = what.find_promise()
            if promise is not None and not promise.done():
                self._refuse(what.ticket, repr(error))
                # One that had not begun is over, too.
                failure = ChannelError(self._ref.spec.name, f"{what.kind} cannot be begun: {error!r}")
                failure.__cause__ = error
                promise.set_exception(failure)

    def _on_unsent(self, operations: list[wire.OperationMessage], error: Exception) -> None:
        """What the server has not been told of ends here."""
        for ticket in (ticket for each in operations for ticket in wire.tickets_of(each)):
            self._answer((ticket,), self._state.refused(ticket, (wire.INVALID, str(error) or repr(error))))

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
        if operation.kind == "set_version":
            # What was taken until now is not waited for.
            self._note_direct()
            self.deliveries.look_at_all()
            self._carry_out(self._state.say(ticket, operation.queue_name))
        elif operation.parcel is None:
            self._state.know_get(ticket, operation.queue_name)
            self._sender.begin(operation)
        else:
            self._begin_put(operation)
        # Most have no deadline.
        if operation.timeout_s is not None or not operation.wait:
            self._start_clock(operation)

    def _begin_put(self, operation: Operation) -> None:
        parcel, ticket = operation.parcel, operation.ticket
        is_ready = not (self.hands_over and isinstance(parcel, Parcel) and parcel.in_shared_memory)
        inline_bytes = self._sender.inline_bytes(operation) if is_ready else 0
        if self._state.may_put(ticket, operation.queue_name, inline_bytes, is_ready=is_ready):
            self._sender.begin(operation)
        else:
            self._held[ticket] = operation
        if isinstance(parcel, Parcel) and not is_ready:
            self._handing.add(ticket)
            holding = self._session.service(Holding)
            holding.hold(parcel, self._ref.endpoint, partial(self._on_handed_over, operation))

    def _on_handed_over(self, operation: Operation, held: HeldParcel | None) -> None:
        """This node's holder has the bytes of a put; or (None) they are to travel."""
        self._handing.discard(operation.ticket)
        if operation.ticket not in self._held:
            return  # it was given up, or the channel is gone
        if held is not None:
            operation.parcel = held
        self._carry_out(self._state.ready(operation.ticket, self._sender.inline_bytes(operation)))
        self._flush()

    def _open(self) -> None:
        if self._is_open:
            return
        self._line.begin(self._on_news, self.lose)
        opened = self._line.ask(control_wire.Open(self._messenger.endpoint))
        self._is_open = True
        opened.add_done_callback(self._on_opened)

    def _on_opened(self, opened: Any) -> None:
        error = None if opened.cancelled() else opened.exception()
        if error is not None:
            self.lose(lost_error(self._ref.spec.name, error))

    def ask(
        self, message: control_wire.Control, kind: Any, what: str, timeout_s: float, answer: Promise[Any]
    ) -> None:
        """Send a request after all operations that began before; `what` it is, for messages."""
        self._open()
        self._note_direct()
        self.deliveries.look()
        self._flush()
        asked = self._line.ask(message, timeout_s, kind)

        def answered(reply: Any) -> None:
            error = reply.exception()
            if error is None:
                answer.set_result(reply.result())
            else:
                queue = message.queue if isinstance(message, control_wire.Query) else None
                answer.set_exception(self._failure(error, what, queue))

        asked.add_done_callback(answered)

    def tell(self, message: control_wire.Control) -> None:
        """Send what nobody waits for the answer of."""
        self.ask(message, None, "", ANSWER_S, Promise())

    @property
    def condition(self) -> str:
        """Why nothing comes from the server now; from any thread."""
        return self._line.condition

    def _failure(self, error: BaseException, what: str, queue: Any) -> BaseException:
        failure = request_error(self._ref.spec.name, error, what, queue, self._line.condition)
        if self.lost is not None and isinstance(failure, ChannelLost):
            return self.lost  # for the first reason
        return failure

    def settle(self, what: tuple[Operation, control_wire.Settle, bool, Promise[Any]]) -> None:
        """Say what became of items on lease; after the last ones nothing is to follow."""
        operation, message, is_last, answer = what
        if is_last:
            self._state.settled(operation.ticket)
            self._settle(operation)
        self.ask(message, control_wire.Done, "ack" if message.done else "nack", ANSWER_S, answer)

    def extend(self, what: tuple[Operation, control_wire.Extend, Promise[Any]]) -> None:
        """Let items be on lease for longer."""
        operation, message, answer = what
        self._leases.extend(operation.ticket, message.for_s or 0.0)
        self.ask(message, control_wire.Done, "extend", ANSWER_S, answer)

    # -- the I/O thread: what users' threads do by themselves -------------------------------------

    def sent_before(self) -> int | None:
        """Return after how many messages a shortcut's operation comes (see `wire.Direct`); None if some are not sent.

        From any thread: what a thread has handed over passes through these from the first to the last.
        """
        if self.inbox or self.dropped or self._busy or self._held or self._outbox:
            return None
        return self._sender.num_sent

    def _invite(self) -> Promise[Reply]:
        self._open()
        return self._line.ask(control_wire.Invite(), None, control_wire.Invitation)

    def _note_direct(self) -> None:
        """Know of the gets that users' threads have sent: their items are to be confirmed."""
        if self.lost is not None:
            self.direct.clear()
            return
        while self.direct:
            operation = self.direct.popleft()
            self._know_direct(operation)
            self.deliveries.expect(operation)
        self.deliveries.hurry()

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
        if operation.taken:  # it came another way
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
        if operation.ticket not in self.deliveries:
            self._start_clock(operation)

    # -- the I/O thread: what the server says -----------------------------------------------------

    def _on_news(self, request: Request) -> None:
        if request.peer_id != self._ref.endpoint.process_id or self.lost is not None:
            return
        if self.direct:
            self._note_direct()
        news: wire.News = request.head
        if self.hands_over:
            for ticket in news.accepted:
                self._note_accepted(ticket)
        self._answer(news.accepted, self._state.accepted_run(news.accepted))
        frames = iter(request.frames)
        for answer in news.answers:
            if isinstance(answer, wire.Handed):
                self._on_handed(answer, frames)
            elif isinstance(answer, wire.Delivered):
                self._on_delivered(answer, frames)
            elif isinstance(answer, wire.Refused):
                self._on_refused(answer)
            else:
                self._on_granted(answer)
        if news.left:
            self.lose(deleted_error(self._ref.spec.name))
            return
        self._run_inbox()
        self.deliveries.look()
        self._flush()

    def _note_accepted(self, ticket: int) -> None:
        operation = self._operations.get(ticket)
        if operation is not None and isinstance(operation.parcel, HeldParcel):
            operation.parcel.is_accepted = True

    def _on_handed(self, answer: wire.Handed, frames: Iterator[Buffer]) -> None:
        told = wire.Delivered(0, [answer.num_frames], by=answer.by)  # the same of each of them
        for ticket, *part in zip(answer.tickets, *[frames] * answer.num_frames, strict=False):
            self._receive(ticket, told, [part])

    def _on_delivered(self, answer: wire.Delivered, frames: Iterator[Buffer]) -> None:
        # All that is the delivery's, before anything can go wrong: the rest belongs to others.
        parts = [list(islice(frames, count)) for count in answer.num_frames]
        self._receive(answer.ticket, answer, parts)

    def _receive(self, ticket: int, told: wire.Delivered, parts: list[list[Buffer]]) -> None:
        operation = self._operations.get(ticket)
        if operation is None:
            # Nobody has asked for it any more; an answer to a withdrawal that was on its way does no harm.
            self._outbox.append((wire.Withdraw(ticket), []))
            return
        try:
            items = self._receiving.receive(operation, told, parts)
        except Exception as error:  # the other answers in this message are not to wait in vain
            logger.exception("channel '%s': a delivery cannot be received", self._ref.spec.name)
            self._refuse(ticket, repr(error))
            return
        if items is not None:
            # Its caller may have them before anything goes wrong here: then they are not given to another one.
            run_guarded(self._on_items, ticket, items)

    def _on_items(self, ticket: int, items: Delivery) -> None:
        if self._state.may_take(ticket):
            if self._receiving.is_fetching:
                self._receiving.stop(ticket)
            self._deliver(self._operations[ticket], items)

    def _resend(self, ticket: int) -> None:
        self._outbox.append((wire.Resend(ticket), []))

    def _on_granted(self, answer: wire.Granted) -> None:
        if answer.problem:
            self._messenger.parcels.distrust(self._ref.endpoint.process_id, answer.problem)
        self._carry_out(self._state.granted(answer.ticket))

    def _on_refused(self, answer: wire.Refused) -> None:
        withdrawn = answer.reason == Reason.CANCELLED.value
        detail = answer.state if withdrawn else (answer.reason, answer.state)
        self._answer((answer.ticket,), self._state.refused(answer.ticket, detail, withdrawn=withdrawn))

    # -- ends ------------------------------------------------------------------------------------

    def lose(self, lost: ChannelLost) -> None:
        """End everything: the channel's server cannot be reached any more. On the I/O thread."""
        if self.lost is not None:
            return
        self.lost = lost
        self._line.end()
        self._on_lost()
        self._sender.clear()
        self._carry_out(self._state.lose())
        for operation in self._operations.values():
            self._stop_clock(operation)
        for held in (self._operations, self._held, self._receiving, self.deliveries):
            held.clear()
        self._leases.close()
        self.puts.look()
        self.shortcuts.end()

    def leave(self, reason: str) -> None:
        """Confirm what was taken, and end everything: this process leaves the cluster."""
        if self.lost is None:
            self._note_direct()
            self.deliveries.look_at_all()
            self._flush()
            self.lose(self.gone(reason))

    def abandon(self, lost: ChannelLost) -> None:
        """Make it unusable in a forked child; the parent's operations go on."""
        self.lost = lost


def _on_devices(session: Session, ref: ChannelRef) -> DeviceItems | None:
    if not ref.spec.device_items:
        return None
    return DeviceItems(session.messenger, session.service(open_devices), ref.spec.name, ref.endpoint)
