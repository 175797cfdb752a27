"""A process that uses a channel, around the real `ClientState`: its users' threads, and the I/O thread that owns it.

A user's thread changes nothing that is shared: it hands requests over, and looks at what it is told. So it can be
interrupted, or drop a handle, at every step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from rlinf.scheduler.queueing import Accept, Deliver, Grant, Instruction, Reason
from rlinf.scheduler.queueing.client import (
    ClientInstruction,
    Confirm,
    End,
    Ending,
    Fill,
    Send,
    Withdraw,
)
from rlinf.testing.simulation import channel_server as wire
from rlinf.testing.simulation.ledger import Ledger
from rlinf.testing.simulation.machines import Machines
from rlinf.testing.simulation.network import Network
from rlinf.testing.simulation.script import NOWAIT, Call
from rlinf.testing.simulation.sessions import Sessions
from rlinf.testing.simulation.world import Process, World

INLINE_BYTES = 64 << 10
UNANSWERED_US = 1_000_000
"""An operation without waiting has ended by then."""


class UserCall:
    """One call, as its user sees it.

    Attributes:
        step: what was asked.
        outcome: how it ended; empty while it has not.
        items: what was delivered and not taken yet.
        given_up: its user has asked for its end; what comes now is not taken.
    """

    __slots__ = ("began_us", "ended_us", "given_up", "items", "outcome", "paused_us", "step")

    def __init__(self, step: Call) -> None:
        self.step = step
        self.outcome = ""
        self.items: list[int] | None = None
        self.given_up = False
        self.began_us = self.ended_us = self.paused_us = 0


class Client(Process):
    """One process.

    Attributes:
        state: the machine under test.
        calls: everything that its users asked, by ticket.
        cut_off: the server is gone, or holds this process for dead.
    """

    def __init__(
        self, world: World, network: Network, ledger: Ledger, name: str, machines: Machines, credit_bytes: int
    ) -> None:
        super().__init__(world, name)
        self.state = machines.client(credit_bytes)
        self.calls: dict[int, UserCall] = {}
        self.cut_off = False
        self.sessions = Sessions(self, network, machines.session)
        self._ledger = ledger
        self._draw = world.randomness("client", name)
        self._thread: deque[UserCall] = (
            deque()
        )  # what one thread does, one after the other; the first is under way
        self._handed: deque[tuple[Callable[..., list[ClientInstruction]], Any]] = deque()
        self._outbox: list[wire.Message] = []

    # -- users' threads --------------------------------------------------------------------------

    def call(self, step: Call) -> None:
        """A user calls; one that blocks when its thread is free."""
        call = UserCall(step)
        if not step.blocking:
            self._begin(call)
            return
        self._thread.append(call)
        if len(self._thread) == 1:
            self._begin(call)

    def _begin(self, call: UserCall) -> None:
        step = call.step
        call.began_us, call.paused_us = self.world.now_us, self.paused_us
        self.calls[step.number] = call
        self.world.note(self.name, "begins", step.kind, step.number, step.queue, step.timeout_us)
        if step.kind == "put":
            self._ledger.put_begins(self.name, step.number, step.queue, step.size_bytes)
        self._hand_over(self._io_begin, call)
        if step.abandon == "begun":
            self._abandon(call)
        elif step.abandon in ("later", "cancel"):
            action = self._abandon if step.abandon == "later" else self._cancel
            self.later(int(5_000 * self._draw.random()), action, call)

    def _abandon(self, call: UserCall) -> None:
        """The user is interrupted, or drops the handle."""
        if not call.outcome:
            self._hand_over(self.state.abandon, call.step.number)
            self._end(call, "abandoned")

    def _cancel(self, call: UserCall) -> None:
        """The user asks for the end and waits for it."""
        if not call.outcome:
            call.given_up = True
            self._hand_over(self.state.cancel, call.step.number)

    def _wake(self, call: UserCall) -> None:
        """The user finds items: from here on it alone decides whether they are taken."""
        if call.outcome or call.items is None:
            return
        if call.given_up:
            self._end(call, "cancelled")
        elif call.step.abandon == "delivered":
            self._abandon(call)
        else:
            self._ledger.takes(self.name, call.items)
            self._end(call, "taken", *call.items)
            self._hand_over(self.state.taken, call.step.number)

    def _end(self, call: UserCall, outcome: str, *items: int) -> None:
        call.outcome, call.ended_us = outcome, self.world.now_us
        self.world.note(self.name, "ends", call.step.kind, call.step.number, outcome, *items)
        if call.step.kind == "put":
            self._ledger.put_ends(call.step.number, outcome)
        if call.step.blocking:
            self._thread.popleft()
            if self._thread:
                self.later(self._draw.randrange(50), self._begin, self._thread[0])

    def _hand_over(self, action: Callable[..., list[ClientInstruction]], what: Any) -> None:
        if not self._handed:
            self.later(self._draw.randrange(60), self._turn)
        self._handed.append((action, what))

    # -- the I/O thread --------------------------------------------------------------------------

    def receive(self, _sender: str, message: list[Instruction]) -> None:
        """News from the server."""
        for part in message:
            self._carry_out(self._hear(part))
        self._flush()

    def lost(self, _peer: str) -> None:
        """The server has gone, or holds this process for dead."""
        self.world.note(self.name, "loses the server")
        self.cut_off = True
        self._carry_out(self.state.lose())

    def _hear(self, part: Instruction) -> list[ClientInstruction]:
        match part:
            case Accept(_, ticket):
                return self.state.accepted(ticket)
            case Grant(_, ticket):
                return self.state.granted(ticket)
            case Deliver(_, ticket, items):
                return self.state.delivered(ticket, [item.payload for item in items])
            case _:
                withdrawn = part.reason is Reason.CANCELLED
                return self.state.refused(part.ticket, part.reason.value, withdrawn=withdrawn)

    def _turn(self) -> None:
        while self._handed:
            action, what = self._handed.popleft()
            self._carry_out(action(what))
        self._flush()

    def _io_begin(self, call: UserCall) -> list[ClientInstruction]:
        step = call.step
        if self.cut_off:
            return [End(step.number, Ending.LOST)]
        if step.timeout_us is not None:
            limit = UNANSWERED_US if step.timeout_us == NOWAIT else step.timeout_us
            due = max(0, call.began_us + limit - self.world.now_us)
            self.later(due, self._on_time, self.state.expire, call)
            self.later(due + limit // 8, self._on_time, self.state.give_up, call)
        if step.kind == "put":
            return self.state.put(step.number, step.queue, 0 if _is_announced(step) else step.size_bytes)
        return self.state.get(step.number, step.queue)

    def _on_time(self, action: Callable[[int], list[ClientInstruction]], call: UserCall) -> None:
        # The end of an operation stops its clock.
        if not call.outcome and call.items is None:
            self._carry_out(action(call.step.number))
            self._flush()

    def _carry_out(self, instructions: list[ClientInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case End(ticket, ending, detail):
                    self._tell(self.calls[ticket], ending, detail)
                case Send(ticket):
                    self._outbox.append(_opening(self.calls[ticket].step))
                case Fill(ticket):
                    self._outbox.append(wire.Fill(ticket, ticket))
                case Withdraw(ticket):
                    self._outbox.append(wire.Withdraw(ticket))
                case Confirm(ticket):
                    self._outbox.append(wire.Confirm(ticket))

    def _tell(self, call: UserCall, ending: Ending, detail: Any) -> None:
        """Hand an end to the user, who finds it a little later."""
        if ending is Ending.DELIVERED:
            call.items = detail
            self._outbox.append(wire.Arrived(call.step.number))
            self.later(self._draw.randrange(100), self._wake, call)
        elif not call.outcome:
            self._end(call, detail if ending is Ending.REFUSED else ending.value)

    def _flush(self) -> None:
        if self._outbox:
            message, self._outbox = self._outbox, []
            self.sessions.send(wire.SERVER, message)


def _is_announced(step: Call) -> bool:
    return step.size_bytes > INLINE_BYTES


def _opening(step: Call) -> wire.Message:
    """Return the message that begins an operation."""
    wait = step.timeout_us != NOWAIT
    if step.kind == "put":
        item = None if _is_announced(step) else step.number
        return wire.Put(step.number, step.queue, item, step.weight, step.size_bytes, wait)
    return wire.Get(step.number, step.queue, step.weight if step.kind == "batch" else None, wait)
