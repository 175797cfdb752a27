"""What a process does on a channel, around the real `ClientState`: the I/O thread's side of its users' calls."""

from __future__ import annotations

from rlinf.scheduler.queueing import Deliver, Grant, Reason, Refuse
from rlinf.scheduler.queueing.client import ClientInstruction, Confirm, End, Ending, Fill, Send, Withdraw
from rlinf.testing.simulation import channel_server as wire
from rlinf.testing.simulation.host import Host
from rlinf.testing.simulation.ledger import Ledger
from rlinf.testing.simulation.machines import Machines
from rlinf.testing.simulation.script import NOWAIT, Call
from rlinf.testing.simulation.users import UserCall, Users

INLINE_BYTES = 64 << 10
# So soon, and so late, a process looks whether delivered items were taken.
LOOK_US = 2_000
MAX_LOOK_US = 1_000_000


class ChannelClient(Users):
    """One process's side of a channel.

    Attributes:
        state: the machine under test.
        cut_off: the server is gone, or holds this process for dead.
    """

    def __init__(self, host: Host, ledger: Ledger, machines: Machines, credit_bytes: int) -> None:
        super().__init__(host)
        self.state = machines.client(credit_bytes)
        self.cut_off = False
        self._ledger = ledger
        self._delivered: dict[int, UserCall] = {}
        self._confirmed: list[int] = []
        self._outbox: list[wire.Operation] = []
        host.serve(wire.CHANNEL, self)

    # -- what the server says ----------------------------------------------------------------------

    def receive(self, _sender: str, message: wire.News) -> None:
        """News from the server."""
        accepted, answers = message
        for ticket in accepted:
            self._carry_out(self.state.accepted(ticket))
        for answer in answers:
            self._carry_out(self._hear(answer))
        self.on_turn()

    def lost(self, peer: str) -> None:
        """The server has gone, or holds this process for dead."""
        if peer == wire.SERVER:
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

    # -- what users do -----------------------------------------------------------------------------

    def on_begin(self, call: UserCall) -> None:
        """See `Users`."""
        step = call.step
        if self.cut_off:
            self.tell(call, Ending.LOST, None)
        elif step.kind == "put":
            inline_bytes = 0 if _is_announced(step) else step.size_bytes
            self._carry_out(self.state.put(step.number, step.queue, inline_bytes))
        else:
            self._carry_out(self.state.get(step.number, step.queue))

    def on_drop(self, call: UserCall) -> None:
        """See `Users`."""
        self._delivered.pop(call.step.number, None)
        self._carry_out(self.state.drop(call.step.number))

    def on_cancel(self, call: UserCall) -> None:
        """See `Users`."""
        self._carry_out(self.state.cancel(call.step.number))

    def on_expire(self, call: UserCall) -> None:
        """See `Users`."""
        self._carry_out(self.state.expire(call.step.number))

    def on_give_up(self, call: UserCall) -> None:
        """See `Users`."""
        self._carry_out(self.state.give_up(call.step.number))

    def on_turn(self) -> None:
        """See `Users`."""
        self._look()
        self._flush()

    def told_begin(self, call: UserCall) -> None:
        """See `Users`."""
        step = call.step
        if step.kind == "put":
            self._ledger.put_begins(self.name, step.number, step.queue, step.size_bytes)

    def told_end(self, call: UserCall) -> None:
        """See `Users`."""
        if call.step.kind == "put":
            self._ledger.put_ends(call.step.number, call.outcome)
        elif call.outcome == "taken" and call.items is not None:
            self._ledger.takes(self.name, call.items)

    # -- inside ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """See what users took, or left, of what was delivered."""
        for ticket, call in [(ticket, call) for ticket, call in self._delivered.items() if call.outcome]:
            del self._delivered[ticket]
            self._carry_out(self.state.taken(ticket) if call.outcome == "taken" else self.state.drop(ticket))

    def _look_later(self, call: UserCall, after_us: int) -> None:
        """Look by itself, ever more rarely; the first time, say what has arrived and was not taken."""
        self._look()
        if call.step.number in self._delivered:
            if after_us == LOOK_US:
                self._outbox.append(wire.Arrived(call.step.number))
            self.host.later(after_us, self._look_later, call, min(2 * after_us, MAX_LOOK_US))
        self._flush()

    def _carry_out(self, instructions: list[ClientInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case End(ticket, ending, detail):
                    call = self.calls[ticket]
                    if ending is Ending.DELIVERED:
                        self._delivered[ticket] = call
                        self.host.later(LOOK_US, self._look_later, call, LOOK_US)
                    self.tell(call, ending, detail)
                case Send(ticket):
                    self._outbox.append(_opening(self.calls[ticket].step))
                case Fill(ticket):
                    self._outbox.append(wire.Fill(ticket, ticket))
                case Withdraw(ticket):
                    self._outbox.append(wire.Withdraw(ticket))
                case Confirm(ticket):
                    self._confirmed.append(ticket)

    def _flush(self) -> None:
        if self._outbox or self._confirmed:
            message = (self._confirmed, self._outbox)
            self._confirmed, self._outbox = [], []
            self.host.send(wire.SERVER, wire.CHANNEL, message)


def _is_announced(step: Call) -> bool:
    return step.size_bytes > INLINE_BYTES


def _opening(step: Call) -> wire.Operation:
    """Return the message that begins an operation."""
    wait = step.timeout_us != NOWAIT
    if step.kind == "put":
        item = None if _is_announced(step) else step.number
        return wire.Put(step.number, step.queue, item, step.weight, step.size_bytes, wait)
    return wire.Get(step.number, step.queue, step.weight if step.kind == "batch" else None, wait)
