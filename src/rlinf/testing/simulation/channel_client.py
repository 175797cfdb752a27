"""A process that uses a channel, around the real `ClientState`: its users' threads, and the I/O thread that owns it.

A user's thread changes nothing that is shared: it hands requests over, and looks at what it is told. So it can be
interrupted, or drop a handle, at every step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from rlinf.scheduler.queueing import Deliver, Grant, Reason, Refuse
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
# So soon, and so late, a process looks whether delivered items were taken.
LOOK_US = 2_000
MAX_LOOK_US = 1_000_000
UNANSWERED_US = 1_000_000
"""An operation without waiting has ended by then."""


class UserCall:
    """One call, as its user sees it.

    Attributes:
        step: what was asked.
        outcome: how it ended; empty while it has not.
        items: what was delivered.
        ended_us: when its operation was over, whether its user has looked or not.
    """

    __slots__ = ("began_us", "ended_us", "items", "outcome", "paused_us", "step")

    def __init__(self, step: Call) -> None:
        self.step = step
        self.outcome = ""
        self.items: list[int] | None = None
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
        self._delivered: dict[int, UserCall] = {}
        self._confirmed: list[int] = []
        self._outbox: list[wire.Operation] = []

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
            self._hand_over(self._io_abandon, call)
            self._end(call, "abandoned")

    def _cancel(self, call: UserCall) -> None:
        """The user asks for the end and waits for it."""
        if not call.outcome:
            self._hand_over(self._io_cancel, call)

    def _wake(self, call: UserCall) -> None:
        """The user finds items: from here on it alone decides whether they are taken."""
        if call.outcome or call.items is None:
            return
        if call.step.abandon == "delivered":
            self._abandon(call)
            return
        # One store; the I/O thread sees it when it looks the next time.
        self._ledger.takes(self.name, call.items)
        self._end(call, "taken", *call.items)
        if not call.step.blocking:
            self._hand_over(self._io_nothing, call)

    def _end(self, call: UserCall, outcome: str, *items: int) -> None:
        call.outcome = outcome
        if call.items is None:
            call.ended_us = self.world.now_us
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

    def receive(self, _sender: str, message: wire.News) -> None:
        """News from the server."""
        accepted, answers = message
        for ticket in accepted:
            self._carry_out(self.state.accepted(ticket))
        for answer in answers:
            self._carry_out(self._hear(answer))
        self._look()
        self._flush()

    def lost(self, _peer: str) -> None:
        """The server has gone, or holds this process for dead."""
        self.world.note(self.name, "loses the server")
        self.cut_off = True
        self._carry_out(self.state.lose())

    def _hear(self, answer: wire.Answer) -> list[ClientInstruction]:
        match answer:
            case Grant(_, ticket):
                return self.state.granted(ticket)
            case Deliver(_, ticket, items):
                return self.state.delivered(ticket, [item.payload for item in items])
            case Refuse(_, ticket, reason, _):
                return self.state.refused(ticket, reason.value, withdrawn=reason is Reason.CANCELLED)

    def _turn(self) -> None:
        while self._handed:
            action, what = self._handed.popleft()
            self._carry_out(action(what))
        self._look()
        self._flush()

    def _look(self) -> None:
        """See what users took, or left, of what was delivered."""
        for ticket, call in [(ticket, call) for ticket, call in self._delivered.items() if call.outcome]:
            del self._delivered[ticket]
            self._carry_out(
                self.state.taken(ticket) if call.outcome == "taken" else self.state.abandon(ticket)
            )

    def _look_later(self, call: UserCall, after_us: int) -> None:
        """Look by itself, ever more rarely; the first time, say what has arrived and was not taken."""
        self._look()
        if call.step.number in self._delivered:
            if after_us == LOOK_US:
                self._outbox.append(wire.Arrived(call.step.number))
            self.later(after_us, self._look_later, call, min(2 * after_us, MAX_LOOK_US))
        self._flush()

    def _io_nothing(self, _call: UserCall) -> list[ClientInstruction]:
        return []

    def _io_abandon(self, call: UserCall) -> list[ClientInstruction]:
        self._delivered.pop(call.step.number, None)
        return self.state.abandon(call.step.number)

    def _io_cancel(self, call: UserCall) -> list[ClientInstruction]:
        # What was delivered is over: its user may be taking it.
        return self.state.cancel(call.step.number) if call.items is None else []

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
                    self._confirmed.append(ticket)

    def _tell(self, call: UserCall, ending: Ending, detail: Any) -> None:
        """Hand an end to the user, who finds it a little later."""
        if ending is Ending.DELIVERED:
            call.items, call.ended_us = detail, self.world.now_us
            self._delivered[call.step.number] = call
            self.later(LOOK_US, self._look_later, call, LOOK_US)
            # Most users wait for it; some look at their handles some time.
            soon = call.step.blocking or self._draw.random() < 0.7
            self.later(self._draw.randrange(100 if soon else 3_000_000), self._wake, call)
        elif not call.outcome:
            self._end(call, detail if ending is Ending.REFUSED else ending.value)

    def _flush(self) -> None:
        if self._outbox or self._confirmed:
            message = (self._confirmed, self._outbox)
            self._confirmed, self._outbox = [], []
            self.sessions.send(wire.SERVER, message)


def _is_announced(step: Call) -> bool:
    return step.size_bytes > INLINE_BYTES


def _opening(step: Call) -> wire.Operation:
    """Return the message that begins an operation."""
    wait = step.timeout_us != NOWAIT
    if step.kind == "put":
        item = None if _is_announced(step) else step.number
        return wire.Put(step.number, step.queue, item, step.weight, step.size_bytes, wait)
    return wire.Get(step.number, step.queue, step.weight if step.kind == "batch" else None, wait)
