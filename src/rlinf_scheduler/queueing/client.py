"""One process's side of a channel: what its operations do next, without a thread, a clock or a connection.

An operation is begun, held back while the channel's server has no credit for its bytes, sent, perhaps asked for its
bytes, and ends in exactly one way. What may happen at any moment is that nobody wants it any more: its deadline has
passed, it was cancelled, its caller was interrupted, its handle was dropped. Then the server is told once
(`SendWithdraw`), and from then on this side takes nothing for its ticket: a delivery that is on its way is the server's
again as soon as it reads that. So items never get lost between the two, and what is asked for next stands behind.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from rlinf_scheduler.queueing.item import QueueName


class Ending(Enum):
    """How an operation ended for its caller."""

    ACCEPTED = "accepted"  # a put: the queue holds its item
    DELIVERED = "delivered"  # a get: its items are here; `taken` or `withdraw` is to follow
    REFUSED = "refused"  # the server refused it, `detail` is (reason, state of the queue)
    TIMED_OUT = "timed out"  # its deadline passed, and it has put or taken nothing
    UNANSWERED = "unanswered"  # its deadline passed, and the server has not said what became of it
    CANCELLED = "cancelled"  # it was given up, and has put or taken nothing
    LOST = "lost"  # the server is gone


class Send(NamedTuple):
    """Send an operation to the server."""

    ticket: int


class SendItem(NamedTuple):
    """Send the bytes of a put that was announced, or whose shared memory the server could not read."""

    ticket: int


class SendWithdraw(NamedTuple):
    """Tell the server that nobody wants an operation any more."""

    ticket: int


class SendOutcomeQuery(NamedTuple):
    """The same, of an operation that its caller has sent himself: the server always says what became of it."""

    ticket: int


class End(NamedTuple):
    """The end of an operation, for its caller."""

    ticket: int
    ending: Ending
    detail: Any = None


# As the class makes it, without a call of Python code: one is made for every operation.
_ended = partial(tuple.__new__, End)

ClientInstruction = Send | SendItem | SendWithdraw | SendOutcomeQuery | End


class _Phase(Enum):
    HELD = 1  # begun; there is no credit for its bytes, or it, or one before it, is not ready
    SENT = 2
    DELIVERED = 3  # its items are here, and nobody has taken them
    DIRECT = 4  # sent by its caller, who waits for the answer himself
    LEAVING = 5  # withdrawn; the server's word on it is still to come


_SENT, _DELIVERED = _Phase.SENT, _Phase.DELIVERED
_AWAITED = (_Phase.SENT, _Phase.DIRECT)
_TAKEABLE = (_Phase.DELIVERED, _Phase.DIRECT)
_CANCELLED = Ending.CANCELLED


class _Operation:
    __slots__ = ("ending", "inline_bytes", "is_get", "is_over", "is_ready", "phase", "queue_name", "ticket")

    def __init__(
        self, ticket: int, queue_name: QueueName, inline_bytes: int, *, is_get: bool = False
    ) -> None:
        self.ticket = ticket
        self.is_get = is_get
        self.queue_name = queue_name
        self.inline_bytes = inline_bytes
        self.is_ready = True  # it may leave as soon as there is credit
        self.phase = _SENT
        self.ending = _CANCELLED  # what a withdrawn one ends as
        self.is_over = False  # whoever began it knows, or is gone


class _Credit:
    """What is under way to one queue of the server, and what waits until that was accepted."""

    __slots__ = ("line", "used_bytes")

    def __init__(self) -> None:
        self.used_bytes = 0
        self.line: OrderedDict[int, _Operation] = OrderedDict()


class ClientState:
    """The operations of one process on one channel.

    Every event returns the instructions that follow from it, in order.

    Args:
        credit_bytes: so many bytes of puts may be with the server before it has accepted them, for each queue (one
            put may exceed it); 0 is unbounded, for a channel that accepts everything at once.

    >>> client = ClientState(credit_bytes=100)
    >>> client.put(1, "default", 80), client.put(2, "default", 80)
    (True, False)
    >>> client.accepted([1])
    [Send(ticket=2), End(ticket=1, ending=<Ending.ACCEPTED: 'accepted'>, detail=None)]
    """

    def __init__(self, credit_bytes: int = 0) -> None:
        self._credit_bytes = credit_bytes
        self._operations: dict[int, _Operation] = {}
        self._credits: dict[QueueName, _Credit] = {}

    # -- what this process does ------------------------------------------------------------------

    def put(self, ticket: int, queue_name: QueueName, inline_bytes: int, *, is_ready: bool = True) -> bool:
        """Begin a put, whose opening message carries so many bytes of its item; that is known when it is ready.

        Returns: whether it is to be sent now. Else it is held, and a later event lets it go.
        """
        # Who has credit without end uses none.
        inline_bytes = inline_bytes if self._credit_bytes else 0
        operation = self._operations[ticket] = _Operation(ticket, queue_name, inline_bytes)
        operation.is_ready = is_ready
        credit = self._credits.get(queue_name)
        if not self._credit_bytes and is_ready and credit is None:
            return True
        if credit is None:
            credit = self._credits[queue_name] = _Credit()
        # Also what carries nothing stays behind what is held: puts keep their order.
        if credit.line or not self._may_go(operation, credit):
            operation.phase = _Phase.HELD
            credit.line[ticket] = operation
            return False
        credit.used_bytes += inline_bytes
        return True

    def ready(self, ticket: int, inline_bytes: int) -> list[ClientInstruction]:
        """A put may leave that was not ready; its opening message carries so many bytes."""
        operation = self._operations.get(ticket)
        if operation is None or operation.phase is not _Phase.HELD or operation.is_ready:
            return []
        operation.is_ready, operation.inline_bytes = True, inline_bytes if self._credit_bytes else 0
        out: list[ClientInstruction] = []
        self._let_go(operation.queue_name, out)
        return out

    def get(self, ticket: int, queue_name: QueueName) -> None:
        """Begin a get or a batch, which is to be sent now."""
        self._operations[ticket] = _Operation(ticket, queue_name, 0, is_get=True)

    def say(self, ticket: int, queue_name: QueueName) -> None:
        """Begin what brings nothing, and is to be sent now: the server takes it, or does not."""
        self._operations[ticket] = _Operation(ticket, queue_name, 0)

    def direct(self, ticket: int, queue_name: QueueName, *, is_get: bool) -> None:
        """Know of an operation that its caller has sent himself, and may have the answer to."""
        operation = self._operations[ticket] = _Operation(ticket, queue_name, 0, is_get=is_get)
        operation.phase = _Phase.DIRECT

    def taken(self, ticket: int) -> bool:
        """Note that the caller has the items of a delivery; whether the server is to be told so."""
        operation = self._operations.get(ticket)
        if operation is None or operation.phase not in _TAKEABLE:
            return False
        del self._operations[ticket]
        return True

    def settled(self, ticket: int) -> None:
        """The server hears another way what became of the items of a delivery."""
        operation = self._operations.get(ticket)
        if operation is not None and operation.phase is _Phase.DELIVERED:
            del self._operations[ticket]

    def expire(self, ticket: int) -> list[ClientInstruction]:
        """The deadline of an operation has passed; one that was delivered has met it."""
        operation = self._operations.get(ticket)
        if operation is not None and operation.phase is _Phase.DELIVERED:
            return []
        return self._leave(ticket, Ending.TIMED_OUT)

    def cancel(self, ticket: int) -> list[ClientInstruction]:
        """An operation was given up by somebody who waits for its end.

        A get ends at once: whatever the server says, it takes nothing. A put may be in its queue by now.
        """
        operation = self._operations.get(ticket)
        if operation is not None and operation.phase is _Phase.DELIVERED:
            return []  # it is too late: whoever waits has been told
        out = self._leave(ticket, Ending.CANCELLED)
        if operation is not None and operation.is_get and not operation.is_over:
            operation.is_over = True
            out.append(End(ticket, Ending.CANCELLED))
        return out

    def drop(self, ticket: int) -> list[ClientInstruction]:
        """Nobody waits for an operation any more: its caller was interrupted, its handle dropped."""
        out = self._leave(ticket, Ending.CANCELLED)
        operation = self._operations.get(ticket)
        if operation is not None:
            operation.is_over = True
        return [
            instruction
            for instruction in out
            if not (type(instruction) is End and instruction.ticket == ticket)
        ]

    def give_up(self, ticket: int) -> list[ClientInstruction]:
        """The server has not answered the withdrawal of an expired operation in time."""
        operation = self._operations.get(ticket)
        if operation is None or operation.is_over or operation.phase is not _Phase.LEAVING:
            return []
        # It stays known: what it sent is with the server until that says otherwise.
        operation.is_over = True
        return [End(ticket, Ending.UNANSWERED)]

    # -- what the server says --------------------------------------------------------------------

    def accepted(self, tickets: Iterable[int]) -> list[ClientInstruction]:
        """The queues hold the items of puts, one after the other."""
        out: list[ClientInstruction] = []
        ends: list[ClientInstruction] = []
        for ticket in tickets:
            self._end(ticket, Ending.ACCEPTED, None, out, ends)
        # What leaves goes first: who is told of an end may put what is to stand behind it.
        return out + ends if out else ends

    def granted(self, ticket: int) -> list[ClientInstruction]:
        """The server has room for the bytes of a put."""
        operation = self._operations.get(ticket)
        return [SendItem(ticket)] if operation is not None and operation.phase is _Phase.SENT else []

    def delivered(self, ticket: int) -> bool:
        """Note that the items of a get are here; whether they are for its caller."""
        operation = self._operations.get(ticket)
        if operation is None or operation.phase not in _AWAITED:
            return False  # it was withdrawn, and the server reads that next
        operation.phase = _DELIVERED
        return True

    def refused(self, ticket: int, detail: Any, *, withdrawn: bool = False) -> list[ClientInstruction]:
        """The server has refused an operation, or answers that it is `withdrawn`."""
        operation = self._operations.get(ticket)
        if operation is None:
            return []
        return self._ended(ticket, operation.ending if withdrawn else Ending.REFUSED, detail)

    def lose(self) -> list[ClientInstruction]:
        """The server is gone."""
        operations, self._operations = self._operations, {}
        self._credits.clear()
        return [
            End(operation.ticket, Ending.LOST)
            for operation in operations.values()
            if not operation.is_over and operation.phase is not _Phase.DELIVERED
        ]

    # -- what there is ---------------------------------------------------------------------------

    @property
    def num_open(self) -> int:
        """Operations that have not ended, deliveries that nobody has taken among them."""
        return len(self._operations)

    def knows(self, ticket: int) -> bool:
        """Return whether something of an operation is still to come, from the server or from its caller."""
        return ticket in self._operations

    def is_withdrawn(self, ticket: int) -> bool:
        """Return whether an operation was given up, and the server has not said yet what became of it."""
        operation = self._operations.get(ticket)
        return operation is not None and operation.phase is _Phase.LEAVING

    def _leave(self, ticket: int, ending: Ending) -> list[ClientInstruction]:
        operation = self._operations.get(ticket)
        if operation is None or operation.phase is _Phase.LEAVING:
            return []
        if operation.phase is _Phase.HELD:
            del self._credits[operation.queue_name].line[ticket]
            operation.inline_bytes = 0  # it has used no credit
            return self._ended(ticket, ending, "it has not left this process")
        if operation.phase is _Phase.DELIVERED:
            del self._operations[ticket]
            return [SendWithdraw(ticket)]
        direct = operation.phase is _Phase.DIRECT
        operation.phase = _Phase.LEAVING
        operation.ending = ending
        return [SendOutcomeQuery(ticket) if direct else SendWithdraw(ticket)]

    def _ended(self, ticket: int, ending: Ending, detail: Any) -> list[ClientInstruction]:
        out: list[ClientInstruction] = []
        ends: list[ClientInstruction] = []
        self._end(ticket, ending, detail, out, ends)
        return out + ends

    def _end(
        self,
        ticket: int,
        ending: Ending,
        detail: Any,
        out: list[ClientInstruction],
        ends: list[ClientInstruction],
    ) -> None:
        """End an operation: what may leave now is added to `out`, its end to `ends`."""
        operation = self._operations.pop(ticket, None)
        if operation is None:
            return
        if not operation.is_over:
            ends.append(_ended((ticket, ending, detail)))
        credit = self._credits.get(operation.queue_name)
        if credit is not None:
            credit.used_bytes -= operation.inline_bytes
            if credit.line or not credit.used_bytes:
                self._let_go(operation.queue_name, out)

    def _may_go(self, operation: _Operation, credit: _Credit) -> bool:
        has_credit = not credit.used_bytes or credit.used_bytes + operation.inline_bytes <= self._credit_bytes
        return operation.is_ready and has_credit

    def _let_go(self, queue_name: QueueName, out: list[ClientInstruction]) -> None:
        """Let those leave that were held back and need not be any more."""
        credit = self._credits[queue_name]
        while credit.line:
            head = next(iter(credit.line.values()))
            if not self._may_go(head, credit):
                return
            credit.line.popitem(last=False)
            head.phase = _Phase.SENT
            credit.used_bytes += head.inline_bytes
            out.append(Send(head.ticket))
        if not credit.used_bytes:
            del self._credits[queue_name]
