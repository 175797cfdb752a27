"""What a process does on a channel, around the real `ClientState`: the I/O thread's side of its users' calls."""

from __future__ import annotations

from rlinf.scheduler.queueing import Deliver, Grant, Reason, Refuse
from rlinf.scheduler.queueing.client import (
    ClientInstruction,
    Confirm,
    End,
    Ending,
    Fill,
    Recall,
    Send,
    Withdraw,
)
from rlinf.testing.simulation import channel_server as wire
from rlinf.testing.simulation.host import Host
from rlinf.testing.simulation.ledger import Ledger
from rlinf.testing.simulation.machines import Machines
from rlinf.testing.simulation.shortcut_user import DirectUsers, ShortcutUser
from rlinf.testing.simulation.users import UserCall

# So soon, and so late, a process looks whether delivered items were taken.
LOOK_US = 2_000
MAX_LOOK_US = 1_000_000
# What begins anew has another ticket.
ANEW = 10_000_000


class ChannelClient(DirectUsers):
    """One process's side of a channel.

    Attributes:
        state: the machine under test.
        cut_off: the server is gone, or holds this process for dead.
    """

    def __init__(
        self,
        host: Host,
        ledger: Ledger,
        machines: Machines,
        credit_bytes: int,
        server: wire.ChannelServer,
    ) -> None:
        super().__init__(host)
        self.state = machines.client(credit_bytes)
        self.cut_off = False
        self._ledger = ledger
        self._delivered: dict[int, UserCall] = {}
        self._confirmed: list[int] = []
        self._outbox: list[wire.Operation] = []
        self._held: set[int] = set()
        self._num_sent = 0
        self._shortcuts = ShortcutUser(self, server)
        host.serve(wire.CHANNEL, self)

    # -- what the server says ----------------------------------------------------------------------

    def receive(self, _sender: str, message: wire.News) -> None:
        """News from the server."""
        accepted, answers = message
        self._shortcuts.note()
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
            self._shortcuts.lose()

    def _hear(self, answer: wire.Answer) -> list[ClientInstruction]:
        match answer:
            case Grant(_, ticket):
                return self.state.granted(ticket)
            case Deliver(_, ticket, items):
                return self.state.delivered(ticket, [item.payload for item in items])
            case Refuse(_, ticket, reason, _):
                return self.state.refused(ticket, reason.value, withdrawn=reason is Reason.CANCELLED)

    # -- what users do -----------------------------------------------------------------------------

    def start(self, call: UserCall) -> None:
        """See `Users`; a call that blocks may go by a shortcut."""
        if not self._shortcuts.take(call):
            super().start(call)

    def sent_before(self) -> int | None:
        """How many messages an operation by a shortcut stands behind; None if there is something to be sent yet."""
        if self.cut_off or self.is_busy or self._outbox or self._held:
            return None
        return self._num_sent

    def on_begin(self, call: UserCall) -> None:
        """See `Users`."""
        step = call.step
        if self.cut_off:
            self.tell(call, Ending.LOST, None)
        elif step.kind == "put":
            inline_bytes = 0 if wire.is_announced(step) else step.size_bytes
            instructions = self.state.put(call.ticket, step.queue, inline_bytes)
            if not instructions:
                self._held.add(call.ticket)
            self._carry_out(instructions)
        else:
            self._carry_out(self.state.get(call.ticket, step.queue))

    def on_drop(self, call: UserCall) -> None:
        """See `Users`."""
        self._delivered.pop(call.ticket, None)
        if self._shortcuts.knows(call):
            self.recall(call)
        else:
            self._carry_out(self.state.drop(call.ticket))

    def on_cancel(self, call: UserCall) -> None:
        """See `Users`."""
        if not self._shortcuts.break_off(call):
            self._carry_out(self.state.cancel(call.ticket))

    def recall(self, call: UserCall) -> None:
        """A user's thread has sent an operation and cannot wait for its answer, or has left it."""
        if self.cut_off:
            self.tell(call, Ending.LOST, None)
            return
        self._shortcuts.note()
        if call.outcome not in ("", "dropped"):
            return  # what it waited for came another way
        if not self.state.knows(call.ticket):
            self.state.direct(call.ticket, call.step.queue, is_get=call.step.kind != "put")
        if call.outcome:
            self._carry_out(self.state.drop(call.ticket))
        elif call.limit_us is not None and self.world.now_us >= call.began_us + call.limit_us:
            self.start_clock(call)
        else:
            self._carry_out(self.state.cancel(call.ticket))
            self.start_clock(call)

    def expect(self, call: UserCall) -> None:
        """The items of a call that went by a shortcut come the usual way."""
        if self.cut_off:
            self.tell(call, Ending.LOST, None)
            return
        self._shortcuts.note()
        self.start_clock(call)

    def know_direct(self, call: UserCall) -> None:
        """A user's thread has sent a get, or is about to: what it takes is to be confirmed."""
        self.state.direct(call.ticket, call.step.queue, is_get=True)
        self._delivered[call.ticket] = call

    def on_expire(self, call: UserCall) -> None:
        """See `Users`."""
        self._carry_out(self.state.expire(call.ticket))

    def on_give_up(self, call: UserCall) -> None:
        """See `Users`."""
        self._carry_out(self.state.give_up(call.ticket))

    def on_turn(self) -> None:
        """See `Users`."""
        self._shortcuts.note()
        self._look()
        self._flush()

    def told_begin(self, call: UserCall) -> None:
        """See `Users`."""
        step = call.step
        if step.kind == "put":
            self._ledger.put_begins(self.name, step.number, step.queue, step.size_bytes)

    def told_end(self, call: UserCall) -> None:
        """See `Users`."""
        self._shortcuts.ended(call)
        if call.step.kind == "put":
            self._ledger.put_ends(call.step.number, call.outcome)
        elif call.outcome == "taken" and call.items is not None:
            self._ledger.takes(self.name, call.items)

    # -- inside ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """See what users took, or left, of what was delivered."""
        for ticket, call in [(ticket, call) for ticket, call in self._delivered.items() if call.outcome]:
            del self._delivered[ticket]
            dropped = call.outcome == "dropped"
            self._carry_out(self.state.drop(ticket) if dropped else self.state.taken(ticket))

    def _look_later(self, call: UserCall, after_us: int) -> None:
        """Look by itself, ever more rarely; the first time, say what has arrived and was not taken."""
        self._look()
        if call.ticket in self._delivered:
            if after_us == LOOK_US:
                self._outbox.append(wire.Arrived(call.ticket))
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
                    else:
                        self._held.discard(ticket)
                        self._delivered.pop(ticket, None)
                    if ending is Ending.CANCELLED and self._shortcuts.knows(call):
                        self.begin_anew(call)
                    else:
                        self.tell(call, ending, detail)
                case Send(ticket):
                    self._held.discard(ticket)
                    self._outbox.append(wire.opening(self.calls[ticket]))
                case Fill(ticket):
                    self._outbox.append(wire.Fill(ticket, self.calls[ticket].step.number))
                case Withdraw(ticket):
                    self._outbox.append(wire.Withdraw(ticket))
                case Recall(ticket):
                    self._outbox.append(wire.Recall(ticket))
                case Confirm(ticket):
                    self._confirmed.append(ticket)

    def begin_anew(self, call: UserCall) -> None:
        """A call has put or taken nothing by a shortcut: it goes the usual way, as another operation."""
        self._shortcuts.forget(call)
        call.ticket += ANEW
        self.calls[call.ticket] = call
        if call.step.kind == "put":
            self._ledger.put_again(self.name, call.ticket, call.step.number)
        super().start(call)

    def goes_by_itself(self, call: UserCall) -> None:
        """For the checks: a call goes by a shortcut."""
        if call.step.kind == "put":
            self._ledger.put_goes_by_itself(call.step.number)

    def _flush(self) -> None:
        if self._outbox or self._confirmed:
            message = (self._confirmed, self._outbox)
            self._confirmed, self._outbox = [], []
            self._num_sent += 1
            self.host.send(wire.SERVER, wire.CHANNEL, message)
