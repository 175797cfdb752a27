"""How operations of a process end: at their deadlines, given up, or as `ClientState` says. On the I/O thread only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.batch import Delivery
from rlinf_scheduler.channel.deliveries import Deliveries
from rlinf_scheduler.channel.device_items import DeviceParcel
from rlinf_scheduler.channel.lease_keeper import LeaseKeeper
from rlinf_scheduler.channel.line import ServerLine
from rlinf_scheduler.channel.operation import Operation, mark_of
from rlinf_scheduler.channel.puts_under_way import PutsUnderWay
from rlinf_scheduler.channel.receiving import Receiving
from rlinf_scheduler.channel.refusals import NO_ANSWER, ending_error, gone_error
from rlinf_scheduler.channel.sender import OperationSender
from rlinf_scheduler.channel.spec import ChannelRef
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.promise import PromiseRef
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.parcel import Parcel
from rlinf_scheduler.errors import ChannelLost, ChannelUnanswered
from rlinf_scheduler.queueing import ClientInstruction, ClientState, End, Ending, Send, SendItem, SendRecall

logger = Reporter(__name__)


class OperationEnds:
    """The part of `ClientShell` that carries out what follows from an event, until an operation has ended."""

    dropped: deque[PromiseRef]
    lost: ChannelLost | None
    deliveries: Deliveries
    puts: PutsUnderWay
    _ref: ChannelRef
    _messenger: Messenger
    _line: ServerLine
    _state: ClientState
    _operations: dict[int, Operation]
    _held: dict[int, Operation]
    _handing: set[int]
    _sender: OperationSender
    _outbox: deque[tuple[wire.OperationMessage, list[Buffer]]]
    _leases: LeaseKeeper
    _receiving: Receiving

    # -- given up, dropped, late -----------------------------------------------------------------

    def cancel(self, operation: Operation) -> None:
        """Somebody who waits for an operation gives it up."""
        self._carry_out(self._state.cancel(operation.ticket))

    def drop(self, operation: Operation) -> None:
        """Nobody waits for an operation any more."""
        if not operation.is_taken:
            self._receiving.stop(operation.ticket)
            self._stop_clock(operation)
            self._carry_out(self._state.drop(operation.ticket))
            if not self._state.knows(operation.ticket):
                self._settle(operation)

    def _start_clock(self, operation: Operation) -> None:
        left_s = operation.left_s
        if left_s is not None and operation.ticket in self._operations:
            operation.timer = self._messenger.call_later(left_s, partial(self._expire, operation))

    def _expire(self, operation: Operation) -> None:
        self._carry_out(self._state.expire(operation.ticket))
        if operation.ticket in self._operations:
            give_up = partial(self._give_up, operation)
            operation.timer = self._messenger.call_later(operation.grace_s, give_up)
        self._flush()

    def _give_up(self, operation: Operation) -> None:
        self._carry_out(self._state.give_up(operation.ticket))
        self._flush()

    def _stop_clock(self, operation: Operation) -> None:
        if operation.timer is not None:
            operation.timer.cancel()
            operation.timer = None

    # -- delivered items -------------------------------------------------------------------------

    def _look_at_dropped(self) -> None:
        while self.dropped:
            operation = self._operations.get(self.dropped.popleft().ticket)
            if operation is not None:
                self._look_at(operation)

    def _look_at(self, operation: Operation) -> None:
        promise = operation.find_promise()
        if operation.is_taken:
            if promise is not None:
                promise.forget()
            self._settle(operation)
            if self._state.may_confirm(operation.ticket):
                self._sender.confirmed.append(operation.ticket)
        elif promise is None or operation.dropped:
            self.drop(operation)

    def _settle(self, operation: Operation) -> None:
        ticket = operation.ticket
        self.deliveries.forget(ticket)
        if self._held or self._handing:
            self._held.pop(ticket, None)
            self._handing.discard(ticket)
        self._operations.pop(ticket, None)
        if operation.lease is not None:
            self._leases.end(ticket)

    # -- instructions ----------------------------------------------------------------------------

    def _carry_out(self, instructions: list[ClientInstruction]) -> None:
        for instruction in instructions:
            kind = type(instruction)
            if kind is End:
                self._end(*instruction)
            elif kind is Send:
                self._send_or_refuse(self._sender.begin, self._operations[instruction.ticket])
                self._held.pop(instruction.ticket, None)
            elif kind is SendItem:
                self._send_or_refuse(self._fill, self._operations[instruction.ticket])
            elif kind is SendRecall:
                self._outbox.append((wire.Recall(instruction.ticket), []))
            else:
                self._outbox.append((wire.Withdraw(instruction.ticket), []))

    def _send_or_refuse(self, send: Callable[[Operation], None], operation: Operation) -> None:
        """Send a part of an operation; what cannot be sent ends that, and nothing beside it."""
        try:
            send(operation)
        except Exception as error:
            logger.exception("channel '%s': an operation cannot be sent", self._ref.spec.name)
            self._refuse(operation.ticket, repr(error))

    def _fill(self, operation: Operation) -> None:
        """Send the bytes of a put that was announced, or whose shared memory the server cannot read."""
        if isinstance(operation.parcel, DeviceParcel):
            operation.parcel.bring(partial(self._on_brought, operation))
        else:
            self._sender.fill(operation)

    def _on_brought(self, operation: Operation, copied: Parcel | BaseException) -> None:
        if operation.ticket not in self._operations or operation.parcel is None:
            return
        if isinstance(copied, BaseException):
            self._refuse(operation.ticket, f"its item cannot be copied off its device: {copied!r}")
        else:
            operation.parcel = copied
            self._sender.fill(operation)
        self._flush()

    def _refuse(self, ticket: int, problem: str) -> None:
        """End an operation by this side's own fault."""
        self._answer((ticket,), self._state.refused(ticket, (wire.INVALID, problem)))
        self._outbox.append((wire.Withdraw(ticket), []))

    def _answer(self, tickets: Iterable[int], instructions: list[ClientInstruction]) -> None:
        self._carry_out(instructions)
        for ticket in tickets:
            operation = self._operations.pop(ticket, None)
            if operation is not None:
                self._stop_clock(operation)

    def _end(self, ticket: int, ending: Ending, detail: Any) -> None:
        operation = self._operations[ticket]
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
            del self._operations[ticket]
            operation.parcel = None
            if operation.held is not None:
                operation.held.unused()
                operation.held = None
            if operation.lease is not None:
                self._settle(operation)  # its time is over, perhaps after it came
        self._finish(operation, ending, detail)

    def _accept(self, operation: Operation) -> None:
        del self._operations[operation.ticket]
        operation.parcel = None
        if operation.held is not None:
            operation.held.used()
            operation.held = None
        if operation.timer is not None:
            self._stop_clock(operation)
        promise = operation.find_promise()
        if promise is not None:
            promise.set_result(None)
            operation.let_go()

    def _deliver(self, operation: Operation, items: Delivery) -> None:
        if operation.timer is not None:
            self._stop_clock(operation)
        self.deliveries.add(operation)
        promise = operation.find_promise()
        if promise is None or operation.dropped:
            self.drop(operation)
            return
        operation.mark = mark_of(items)
        promise.by = items.told.by
        promise.set_result(items)
        if operation.lease is not None:
            # Its server keeps it, wherever it is, until it is settled.
            self._leases.begin(operation, items)
            self.deliveries.look_later()
        elif operation.kind == "admit":
            self.deliveries.look_later()  # whether anybody keeps it
        else:
            self.deliveries.tell(operation)

    def _finish(self, operation: Operation, ending: Ending, detail: Any) -> None:
        if operation.timer is not None:
            self._stop_clock(operation)
        promise = operation.find_promise()
        if promise is None:
            return
        if ending is Ending.CANCELLED:
            promise.set_cancelled()
        elif ending is Ending.LOST:
            promise.set_exception(self.lost or self.gone(NO_ANSWER))
        elif ending is Ending.UNANSWERED:
            promise.set_exception(self.unanswered(operation, self._line.condition or NO_ANSWER))
        else:
            promise.set_exception(ending_error(self._ref.spec.name, operation, ending, detail))

    def unanswered(self, operation: Operation, why: str) -> ChannelUnanswered:
        """The error of an operation that nobody has answered."""
        name = self._ref.spec.name
        return ChannelUnanswered(name, operation.queue_name, operation.kind, operation.waited_s, why)

    def gone(self, reason: str) -> ChannelLost:
        """The error of operations on a channel whose server is gone."""
        return gone_error(self._ref.spec.name, reason)

    def _flush(self) -> None:
        """Send everything that has gathered."""
        self._sender.send()
        if self.puts.awaited:
            self.puts.look()
