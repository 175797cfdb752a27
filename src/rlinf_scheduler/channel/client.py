"""What a process does on a channel, on its I/O thread: `queueing.ClientState` decides, this carries it out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.batch import Delivery
from rlinf_scheduler.channel.holding import HeldPayload, Holding
from rlinf_scheduler.channel.operation import ChannelOperation, consumed_byte_of
from rlinf_scheduler.channel.placed import PlacedItems, PlacedPayload
from rlinf_scheduler.channel.receiving import Receiving
from rlinf_scheduler.channel.refusals import (
    NO_ANSWER,
    deleted_error,
    ending_error,
    gone_error,
    lost_error,
    unanswered_error,
    unheard_puts,
)
from rlinf_scheduler.channel.requests import Requests
from rlinf_scheduler.channel.sender import OperationSender, ServerTransport
from rlinf_scheduler.channel.spec import HOLDS_NODE, ChannelRef
from rlinf_scheduler.comm.loop import run_guarded
from rlinf_scheduler.comm.operation import Deliveries
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.promise import Promise, PromiseRef
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.errors import ChannelError, ChannelLost
from rlinf_scheduler.queueing.client import (
    ClientInstruction,
    ClientState,
    End,
    Ending,
    Send,
    SendItem,
    SendOutcomeQuery,
)
from rlinf_scheduler.queueing.messages import Reason
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import Draining

logger = Reporter(__name__)

FeatureT = TypeVar("FeatureT")


class ChannelClient:
    """One process's operations on one channel. On the I/O thread only, but where something else is said.

    Args:
        transport: leads to its server.
        on_lost: called when its server is gone.

    Attributes:
        inbox: what users' threads have handed over: a step and its argument.
        operations: those that have not ended, and those whose items are here, by their tickets.
        sender: of what is said to the server; `outbox` is what it has of operations.
        dropped: promises of gets whose handles are gone.
        lost: why nothing works here any more; None as long as it does.
        direct: gets that users' threads send by shortcuts.
        deliveries: the operations whose items are here.
        hands_over: large items stay on this node, in the hands of its holder.
        on_devices: puts items into the memory of devices; None: the channel has none there.
        requests: what is asked of the server beside operations.
        wake: has what was handed over be done; from any thread.
        on_lost: called when the server is gone, for features to end.
    """

    def __init__(
        self, session: Session, ref: ChannelRef, transport: ServerTransport, on_lost: Callable[[], None]
    ) -> None:
        messenger = session.messenger
        elsewhere = messenger.endpoint.machine_id != ref.endpoint.machine_id
        self.hands_over = elsewhere and ref.spec.holds == HOLDS_NODE
        self.on_devices: PlacedItems | None = (
            of_room("devices.items:DeviceItems")(session, ref.spec.name, ref.endpoint)
            if ref.spec.device_items
            else None
        )
        self._session = session
        # Puts whose bytes this node's holder is about to take.
        self._handing: set[int] = set()
        self.inbox: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.dropped: deque[PromiseRef] = deque()
        self.lost: ChannelLost | None = None
        self.direct: deque[ChannelOperation] = deque()
        self.name = ref.spec.name
        self.ref = ref
        self.messenger = messenger
        # Always the same function: what is last in line already is not put there again.
        self.wake = partial(messenger.submit_once, self.drain)
        self._transport = transport
        self.on_lost: list[Callable[[], None]] = [on_lost]
        self._features: dict[Callable[[ChannelClient], Any], Any] = {}
        self._is_open = False
        self._state = ClientState(ref.spec.credit_bytes)
        self.operations: dict[int, ChannelOperation] = {}
        # Those that wait for credit; and whether what was handed over is being looked at.
        self._held: dict[int, ChannelOperation] = {}
        self._busy = False
        self.sender = OperationSender(transport, ref, self._on_unsent)
        self.outbox = self.sender.waiting
        self.requests = Requests(self, transport)
        self._receiving = Receiving(self, messenger, self.on_devices)
        self.deliveries = Deliveries(self, messenger.call_later)

    # -- what this process does -------------------------------------------------------------------

    def hand_over(self, step: Callable[[Any], None], what: Any) -> None:
        """Have a step done here, as soon as it can be; from any thread."""
        self.messenger.check_process()
        self.inbox.append((step, what))
        self.wake()

    def check_may_block(self) -> None:
        """Raise a ChannelError on the I/O thread, which would wait for itself; from any thread."""
        if self.messenger.on_io_thread():
            problem = "a callback on the I/O thread cannot wait for it; use async_op=True"
            raise ChannelError(self.name, problem)

    def drain(self) -> None:
        """Do what was handed over."""
        # Each hand-over asks for this; the first one to run does what all of them brought.
        if self.inbox or self.dropped or self.direct:
            self.catch_up()
            self.deliveries.look()
            self.flush()

    def catch_up(self) -> None:
        """Do what was handed over, and know of what threads have sent by themselves."""
        self._run_inbox()
        if self.direct:
            self.note_direct()

    def _run_inbox(self) -> None:
        inbox = self.inbox
        was_busy, self._busy = self._busy, True
        while inbox:
            step, what = inbox.popleft()
            try:
                step(what)
            except Exception as error:
                logger.exception("channel '%s': a step on the I/O thread failed", self.name)
                run_guarded(self._fail, what, error)
        self._look_at_dropped()
        self._busy = was_busy

    def _fail(self, what: Any, error: Exception) -> None:
        """End what the thread waits for that has handed over a step which failed."""
        for each in what if isinstance(what, tuple) else (what,):
            if isinstance(each, Promise):
                each.set_exception(error)
        if isinstance(what, ChannelOperation):
            promise = what.find_promise()
            if promise is not None and not promise.done():
                self.refuse(what.ticket, repr(error))
                # One that had not begun is over, too.
                failure = ChannelError(self.name, f"{what.kind} cannot be begun: {error!r}")
                failure.__cause__ = error
                promise.set_exception(failure)

    def _on_unsent(self, operations: list[wire.OperationMessage], error: Exception) -> None:
        """What the server has not been told of ends here."""
        for ticket in (ticket for each in operations for ticket in wire.tickets_of(each)):
            self._answer((ticket,), self._state.refused(ticket, (wire.INVALID, str(error) or repr(error))))

    def begin(self, operation: ChannelOperation) -> None:
        """Begin an operation."""
        if not operation.is_awaited:
            return
        # First of all what was given up before: it stands in front of what is asked for now.
        if self.dropped:
            self._look_at_dropped()
        if self.lost is None and not self._is_open:
            self.open()  # which may lose it: its server is known to be gone
        if self.lost is not None:
            operation.payload = None
            self._finish(operation, Ending.LOST, None)
            return
        ticket = operation.ticket
        self.operations[ticket] = operation
        if operation.payload is not None:
            self._begin_put(operation)
        elif operation.has_hooks:
            operation.begin(self)
        else:
            self.begin_get(operation)
        # Most have no deadline.
        if operation.timeout_s is not None or not operation.wait:
            self._start_clock(operation)

    def begin_get(self, operation: ChannelOperation) -> None:
        """Begin what brings something."""
        self._state.get(operation.ticket, operation.queue_name)
        self.sender.begin(operation)

    def end_unsent(self, operation: ChannelOperation) -> None:
        """End what would have begun."""
        del self.operations[operation.ticket]
        self._finish(operation, Ending.TIMED_OUT, None)

    @property
    def draining(self) -> Promise[str]:
        """Done when this process is to take no more work."""
        return self._session.service(Draining).began

    def begin_behind_all(self, operation: ChannelOperation) -> None:
        """Begin what brings nothing, when the server knows all that was taken until now."""
        self.note_direct()
        self.deliveries.look_at_all()
        self._state.say(operation.ticket, operation.queue_name)
        self._send_or_refuse(self.sender.begin, operation)

    def _begin_put(self, operation: ChannelOperation) -> None:
        payload, ticket = operation.payload, operation.ticket
        is_ready = not (self.hands_over and isinstance(payload, Payload) and payload.in_shared_memory)
        inline_bytes = self.sender.inline_bytes(operation) if is_ready else 0
        if self._state.put(ticket, operation.queue_name, inline_bytes, is_ready=is_ready):
            self.sender.begin(operation)
        else:
            self._held[ticket] = operation
        if isinstance(payload, Payload) and not is_ready:
            self._handing.add(ticket)
            holding = self._session.service(Holding)
            holding.hold(payload, self.ref.endpoint, partial(self._on_handed_over, operation))

    def _on_handed_over(self, operation: ChannelOperation, held: HeldPayload | None) -> None:
        """This node's holder has the bytes of a put; or (None) they are to travel."""
        self._handing.discard(operation.ticket)
        if operation.ticket not in self._held:
            return  # it was given up, or the channel is gone
        if held is not None:
            operation.payload = held
        self._carry_out(self._state.ready(operation.ticket, self.sender.inline_bytes(operation)))
        self.flush()

    def open(self) -> None:
        """Make the server know this process, if it does not yet."""
        if self._is_open:
            return
        self._transport.begin(self._on_responses, self.lose)
        opened = self._transport.ask(control_wire.Open(self.messenger.endpoint))
        self._is_open = True
        opened.add_done_callback(self._on_opened)

    def _on_opened(self, opened: Any) -> None:
        error = None if opened.cancelled() else opened.exception()
        if error is not None:
            self.lose(lost_error(self.name, error))

    # -- what users' threads do by themselves -----------------------------------------------------

    def sent_before(self) -> int | None:
        """Return after how many messages a shortcut's operation comes (see `wire.Direct`); None if some are not sent.

        From any thread: what a thread has handed over passes through these from the first to the last.
        """
        if self.inbox or self.dropped or self._busy or self._held or self.outbox:
            return None
        return self.sender.num_sent

    def note_direct(self) -> None:
        """Know of the gets that users' threads have sent: their items are to be confirmed."""
        if self.lost is not None:
            self.direct.clear()
            return
        while self.direct:
            operation = self.direct.popleft()
            self._know_direct(operation)
            self.deliveries.expect(operation)
        self.deliveries.wake()

    def _know_direct(self, operation: ChannelOperation) -> None:
        ticket = operation.ticket
        self.operations[ticket] = operation
        self._state.direct(ticket, operation.queue_name, is_get=operation.kind != "put")

    def query_outcome(self, operation: ChannelOperation) -> None:
        """A user's thread has sent an operation and cannot wait for its answer; or nobody waits for it any more."""
        if self.lost is not None:
            self._finish(operation, Ending.LOST, None)
            return
        self.note_direct()
        if operation.taken:  # it came another way
            return
        if operation.outcome_queried:
            self.drop(operation)
            return
        operation.outcome_queried = True
        if operation.ticket not in self.operations:
            self._know_direct(operation)
        if operation.dropped:
            self.drop(operation)
        elif operation.left_s == 0:
            self.expire(operation)
        else:
            self.cancel(operation)
            self._start_clock(operation)

    def expect(self, operation: ChannelOperation) -> None:
        """A user's thread was told by its shortcut that the items of a get come the usual way."""
        if self.lost is not None:
            self._finish(operation, Ending.LOST, None)
            return
        self.note_direct()
        if operation.ticket not in self.deliveries:
            self._start_clock(operation)

    # -- what the server says ---------------------------------------------------------------------

    def _on_responses(self, request: Request) -> None:
        if request.peer_id != self.ref.endpoint.process_id or self.lost is not None:
            return
        if self.direct:
            self.note_direct()
        responses: wire.Responses = request.head
        if self.hands_over:
            for ticket in responses.accepted:
                self._note_accepted(ticket)
        self._answer(responses.accepted, self._state.accepted(responses.accepted), is_put=True)
        frames = iter(request.frames)
        for answer in responses.others:
            if isinstance(answer, wire.Handed):
                self._receiving.receive_run(answer, frames)
            elif isinstance(answer, wire.Delivered):
                self._receiving.receive(answer.ticket, answer, frames)
            elif isinstance(answer, wire.Refused):
                self._on_refused(answer)
            else:
                self._on_granted(answer)
        if responses.left:
            self.lose(deleted_error(self.name))
            return
        self._run_inbox()
        self.deliveries.look()
        self.flush()

    def _note_accepted(self, ticket: int) -> None:
        operation = self.operations.get(ticket)
        if operation is not None and isinstance(operation.payload, HeldPayload):
            operation.payload.is_accepted = True

    def on_items(self, ticket: int, items: Delivery) -> None:
        """Give an operation its items, which are here, unless nobody waits for them."""
        if self._state.delivered(ticket):
            if self._receiving.is_fetching:
                self._receiving.stop(ticket)
            self._deliver(self.operations[ticket], items)

    def _on_granted(self, answer: wire.Granted) -> None:
        if answer.problem:
            self.messenger.payloads.distrust(self.ref.endpoint.process_id, answer.problem)
        self._carry_out(self._state.granted(answer.ticket))

    def _on_refused(self, answer: wire.Refused) -> None:
        withdrawn = answer.reason == Reason.CANCELLED.value and self._state.is_withdrawn(answer.ticket)
        detail = answer.state if withdrawn else (answer.reason, answer.state)
        self._answer((answer.ticket,), self._state.refused(answer.ticket, detail, withdrawn=withdrawn))

    # -- given up, dropped, late -----------------------------------------------------------------

    def cancel(self, operation: ChannelOperation) -> None:
        """Somebody who waits for an operation gives it up."""
        self._carry_out(self._state.cancel(operation.ticket))

    def drop(self, operation: ChannelOperation) -> None:
        """Nobody waits for an operation any more."""
        if operation.has_hooks:
            operation.unwanted(self)
        if not operation.is_taken:
            self._receiving.stop(operation.ticket)
            operation.stop_clock()
            self._carry_out(self._state.drop(operation.ticket))
            if not self._state.knows(operation.ticket):
                operation.payload = None  # the error of an interrupted caller may keep the operation
                self._forget(operation)
                if operation.item is not None:
                    operation.item.end(is_put=False)

    def _start_clock(self, operation: ChannelOperation) -> None:
        left_s = operation.left_s
        if left_s is not None and operation.ticket in self.operations:
            operation.timer = self.messenger.call_later(left_s, partial(self.expire, operation))

    def expire(self, operation: ChannelOperation) -> None:
        """End an operation, unless what it brings is here: its time is over."""
        self._carry_out(self._state.expire(operation.ticket))
        if operation.ticket in self.operations:
            give_up = partial(self._give_up, operation)
            operation.timer = self.messenger.call_later(operation.grace_s, give_up)
        self.flush()

    def _give_up(self, operation: ChannelOperation) -> None:
        self._carry_out(self._state.give_up(operation.ticket))
        self.flush()

    # -- delivered items -------------------------------------------------------------------------

    def _look_at_dropped(self) -> None:
        while self.dropped:
            operation = self.operations.get(self.dropped.popleft().ticket)
            if operation is not None:
                self.look_at(operation)

    def look_at(self, operation: ChannelOperation) -> None:
        """Confirm what an operation brought if its caller has it, and give it back if nobody wants it."""
        if operation.taken or operation.is_taken:
            operation.forget()
            self._forget(operation)
            if self._state.taken(operation.ticket):
                self.sender.confirmed.append(operation.ticket)
        elif not operation.is_awaited:
            if operation.was_sent:  # behind what was said of its copies before it was dropped
                self.hand_over(self.drop, operation)
            else:
                self.drop(operation)

    def note_arrived(self, tickets: list[int]) -> None:
        """Tell the server whose items have been here for a moment, and are not taken."""
        self.sender.arrived += tickets

    def feature(self, kind: Callable[[ChannelClient], FeatureT]) -> FeatureT:
        """Return what a feature keeps here; it is made when it is needed first."""
        found = self._features.get(kind)
        if found is None:
            found = self._features[kind] = kind(self)
        made: FeatureT = found
        return made

    def settled(self, operation: ChannelOperation) -> None:
        """Expect nothing more of an operation: the server was told in another way what became of all its items."""
        self._state.settled(operation.ticket)
        self._forget(operation)

    def _forget(self, operation: ChannelOperation) -> None:
        ticket = operation.ticket
        self.deliveries.forget(ticket)
        if self._held or self._handing:
            self._held.pop(ticket, None)
            self._handing.discard(ticket)
        self.operations.pop(ticket, None)
        if operation.has_hooks:
            operation.over(self)

    # -- instructions ----------------------------------------------------------------------------

    def _carry_out(self, instructions: list[ClientInstruction]) -> None:
        for instruction in instructions:
            kind = type(instruction)
            if kind is End:
                self._end(*instruction)
            elif kind is Send:
                self._send_or_refuse(self.sender.begin, self.operations[instruction.ticket])
                self._held.pop(instruction.ticket, None)
            elif kind is SendItem:
                self._send_or_refuse(self._fill, self.operations[instruction.ticket])
            elif kind is SendOutcomeQuery:
                self.outbox.append((wire.QueryOutcome(instruction.ticket), []))
            else:
                self.outbox.append((wire.Withdraw(instruction.ticket), []))

    def _send_or_refuse(self, send: Callable[[ChannelOperation], None], operation: ChannelOperation) -> None:
        """Send a part of an operation; what cannot be sent ends that, and nothing beside it."""
        try:
            send(operation)
        except Exception as error:
            logger.exception("channel '%s': an operation cannot be sent", self.name)
            self.refuse(operation.ticket, repr(error))

    def _fill(self, operation: ChannelOperation) -> None:
        """Send the bytes of a put that was announced, or whose shared memory the server cannot read."""
        if isinstance(operation.payload, PlacedPayload):
            operation.payload.bring(partial(self._on_brought, operation))
        else:
            self.sender.fill(operation)

    def _on_brought(self, operation: ChannelOperation, copied: Payload | BaseException) -> None:
        if operation.ticket not in self.operations or operation.payload is None:
            return
        if isinstance(copied, BaseException):
            self.refuse(operation.ticket, f"its item cannot be copied off its device: {copied!r}")
        else:
            operation.payload = copied
            self.sender.fill(operation)
        self.flush()

    def refuse(self, ticket: int, problem: str) -> None:
        """End an operation by this side's own fault."""
        self._answer((ticket,), self._state.refused(ticket, (wire.INVALID, problem)))
        self.outbox.append((wire.Withdraw(ticket), []))

    def _answer(
        self, tickets: Iterable[int], instructions: list[ClientInstruction], *, is_put: bool = False
    ) -> None:
        self._carry_out(instructions)
        for ticket in tickets:
            operation = self.operations.get(ticket)
            if operation is not None:  # its caller was told before, or is gone; its items may be on their way
                self._receiving.stop(ticket)
                operation.stop_clock()
                operation.payload = None
                self._forget(operation)
                if operation.item is not None:
                    operation.item.end(is_put=is_put)

    def _end(self, ticket: int, ending: Ending, detail: Any) -> None:
        operation = self.operations[ticket]
        if ending is Ending.ACCEPTED:
            self._accept(operation)
            return
        fetch = self._receiving.stop(ticket) if self._receiving.is_fetching else None
        if ending is Ending.TIMED_OUT:
            if fetch is not None:
                detail = fetch.describe()
            elif ticket in self._handing:
                detail = "the process that holds this node's items has not taken it yet"
        if self._held:
            self._held.pop(ticket, None)
        if operation.kind != "put":
            self.deliveries.forget(ticket)
        if ending is not Ending.UNANSWERED:
            # An unanswered one keeps its item: the server may still read it.
            del self.operations[ticket]
            operation.payload = None
            # A caller that blocks and gave it up itself begins anew, with the same slot.
            if operation.item is not None and not (operation.blocks and ending is Ending.CANCELLED):
                operation.item.end(is_put=False)
            if operation.has_hooks:
                operation.over(self)
        self._finish(operation, ending, detail)

    def _accept(self, operation: ChannelOperation) -> None:
        del self.operations[operation.ticket]
        operation.payload = None
        if operation.item is not None:
            operation.item.end(is_put=True)
        if operation.timer is not None:
            operation.stop_clock()
        promise = operation.find_promise()
        if promise is not None:
            promise.set_result(None)
            if not operation.blocks:  # else its caller may not have looked for it yet
                operation.let_go()

    def _deliver(self, operation: ChannelOperation, items: Delivery) -> None:
        if operation.timer is not None:
            operation.stop_clock()
        self.deliveries.add(operation)
        promise = operation.find_promise()
        if promise is None or operation.dropped:
            self.drop(operation)
            return
        operation.mark = consumed_byte_of(items)
        promise.by = items.told.by
        promise.set_result(items)
        if operation.has_hooks:
            operation.delivered(self, items.told)
        else:
            if operation.blocks:
                self.deliveries.expect(operation)
            self.deliveries.tell(operation)

    def _finish(self, operation: ChannelOperation, ending: Ending, detail: Any) -> None:
        operation.stop_clock()
        promise = operation.find_promise()
        if promise is None:
            return
        if ending is Ending.CANCELLED:
            promise.set_cancelled()
            return
        error: BaseException | None = operation.own_end(self.name)
        if ending is Ending.LOST:
            error = self.lost or gone_error(self.name, NO_ANSWER)
        elif error is None and ending is Ending.UNANSWERED:
            error = unanswered_error(self.name, operation, self.requests.condition)
        error = error or ending_error(self.name, operation, ending, detail)
        if operation.kind != "put" or operation.blocks or operation.says().question:
            promise.set_exception(error)
        else:
            del promise
            self.feature(unheard_puts).fail(operation, error)

    # -- this process, and the server ------------------------------------------------------------

    def flush(self) -> None:
        """Send everything that has gathered."""
        self.sender.send()
        if self.requests.awaited_puts:
            self.requests.look_at_puts()

    def lose(self, lost: ChannelLost) -> None:
        """End everything: the channel's server cannot be reached any more. On the I/O thread."""
        if self.lost is not None:
            return
        self.lost = lost
        self._transport.end()
        for end in self.on_lost:
            end()
        self.sender.clear()
        self._carry_out(self._state.lose())
        for operation in self.operations.values():
            operation.stop_clock()
            operation.payload = None  # of one that was not answered: nobody reads it any more
        for held in (self.operations, self._held, self._receiving, self.deliveries):
            held.clear()
        self.requests.look_at_puts()

    def leave(self, reason: str) -> None:
        """Confirm what was taken, and end everything: this process leaves the cluster."""
        if self.lost is None:
            self.note_direct()
            self.deliveries.look_at_all()
            self.flush()
            self.lose(gone_error(self.name, reason))

    def abandon(self, lost: ChannelLost) -> None:
        """Make it unusable in a forked child; the parent's operations go on."""
        self.lost = lost
