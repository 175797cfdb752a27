"""What a process does on a channel, around the real `ClientState`: the I/O thread's side of its users' calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rlinf_scheduler.queueing import Deliver, Grant, OnLease, Reason, Refuse
from rlinf_scheduler.queueing.client import (
    ClientInstruction,
    Confirm,
    End,
    Ending,
    Send,
    SendItem,
    SendWithdraw,
)
from rlinf_scheduler.queueing.instructions import Part
from simulator import channel_wire as wire
from simulator.durable import SimulatedReconnectingTransport
from simulator.host import Host
from simulator.lease_user import LeaseUser
from simulator.ledger import Ledger
from simulator.machines import Machines
from simulator.users import UserCall, Users

# So soon, and so late, a process looks whether delivered items were taken.
LOOK_US = 2_000
MAX_LOOK_US = 1_000_000


class Trainer(Protocol):
    """What asks for the parts of a shard.

    Attributes:
        done_step: it has done with it.
    """

    done_step: int

    def ended(self, call: UserCall) -> None:
        """A call of it has ended."""


class ChannelClient(Users):
    """One process's side of a channel.

    Attributes:
        state: the machine under test.
        ranks: who asks here for parts, by shard.
        cut_off: the server is gone, or holds this process for dead.
    """

    def __init__(
        self,
        host: Host,
        ledger: Ledger,
        machines: Machines,
        credit_bytes: int,
        reconnecting: Callable[[ChannelClient], SimulatedReconnectingTransport] | None = None,
    ) -> None:
        super().__init__(host)
        self.state = machines.client(credit_bytes)
        self.cut_off = False
        self._ledger = ledger
        self._delivered: dict[int, UserCall] = {}
        self._confirmed: list[int] = []
        self._outbox: list[wire.Operation] = []
        self._held: set[int] = set()
        self._asked: set[int] = set()
        self.ranks: dict[int, Trainer] = {}
        # Who waits until certain puts are over before it asks the server, and for which.
        self._after_puts: list[tuple[UserCall, list[UserCall]]] = []
        self._leases = LeaseUser(host, self._say, self._leave_lease, self._forget_lease)
        self._reconnecting = reconnecting(self) if reconnecting is not None else None
        if self._reconnecting is None:
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

    def look(self) -> None:
        """Another process holds the channel."""
        if self._reconnecting is not None:
            self._reconnecting.look()

    def lost(self, peer: str) -> None:
        """The server has gone, or holds this process for dead."""
        if peer == wire.SERVER:
            self.world.note(self.name, "loses the server")
            self.cut_off = True
            self._carry_out(self.state.lose())
            for ticket in sorted(self._asked):
                self.tell(self.calls[ticket], Ending.LOST, None)

    def _hear(self, answer: wire.Answer) -> list[ClientInstruction]:
        match answer:
            case Grant(_, ticket):
                return self.state.granted(ticket)
            case Deliver(_, ticket, items):
                if isinstance(answer.grant, Part):
                    self.calls[ticket].part_step = answer.grant.step
                if isinstance(answer.grant, OnLease):
                    self._leases.note(ticket, answer.grant)
                return self.state.delivered(ticket, [item.payload for item in items])
            case Refuse(_, ticket, reason, _):
                return self.state.refused(ticket, reason.value, withdrawn=reason is Reason.CANCELLED)
            case wire.Done(ticket, problem):
                self._asked.discard(ticket)
                self.tell(self.calls[ticket], Ending.REFUSED if problem else Ending.ACCEPTED, problem)
                return []

    # -- what users do -----------------------------------------------------------------------------

    def on_begin(self, call: UserCall) -> None:
        """A call begins."""
        step = call.step
        if self.cut_off:
            self.tell(call, Ending.LOST, None)
        elif step.kind == "put":
            inline_bytes = 0 if wire.is_announced(step) else step.size_bytes
            instructions = self.state.put(call.ticket, step.queue, inline_bytes)
            if not instructions:
                self._held.add(call.ticket)
            self._carry_out(instructions)
        elif step.kind in wire.REQUESTS:
            self._asked.add(call.ticket)
            puts = [each for each in self.calls.values() if each.step.kind == "put" and not each.outcome]
            self._after_puts.append((call, puts if wire.is_after_puts(step) else []))
        else:
            self._carry_out(self.state.get(call.ticket, step.queue))

    def on_drop(self, call: UserCall) -> None:
        """A user has left a call."""
        self._delivered.pop(call.ticket, None)
        self._leases.ended(call.ticket)
        if call.step.kind in wire.REQUESTS:
            # Whoever is interrupted on the way in or out leaves as one who failed.
            number = call.step.turn or call.ticket
            if call.step.kind in ("join", "leave"):
                self._outbox.append(wire.Leave(call.ticket, number, failed=True))
            elif call.step.kind in ("subscribe", "unsubscribe"):
                self._outbox.append(wire.Unsubscribe(call.ticket, number, failed=True))
            return
        self._carry_out(self.state.drop(call.ticket))

    def on_cancel(self, call: UserCall) -> None:
        """A user asks for the end of a call."""
        self._carry_out(self.state.cancel(call.ticket))

    def on_expire(self, call: UserCall) -> None:
        """A deadline has passed."""
        self._carry_out(self.state.expire(call.ticket))

    def on_give_up(self, call: UserCall) -> None:
        """A deadline has passed a while ago, and nothing has come of it."""
        self._carry_out(self.state.give_up(call.ticket))

    def on_turn(self) -> None:
        """Everything that was handed over has been done."""
        self._look()
        self._look_at_puts()
        self._flush()

    def told_begin(self, call: UserCall) -> None:
        """For the checks: a user begins."""
        step = call.step
        if step.kind == "step":
            call.done_step = self.ranks[step.weight].done_step
        if step.kind == "put":
            self._ledger.put_begins(
                self.name, step.number, step.queue, step.size_bytes, step.weight, step.priority, step.group
            )

    def told_end(self, call: UserCall) -> None:
        """For the checks: a user's call has ended."""
        if call.step.kind == "put":
            self._ledger.put_ends(call.step.number, call.outcome)
        elif call.step.kind == "step":
            index, items = call.step.weight, call.items
            if call.outcome == "taken" and items is not None:
                self._ledger.trains(self.name, call.step.queue, index, call.part_step, items)
            self.ranks[index].ended(call)
        elif call.outcome == "taken" and call.step.kind == "lease":
            self._leases.taken(call)
        elif call.outcome == "taken" and call.items is not None:
            self._ledger.takes(self.name, call.items, call.step.queue)

    # -- leases ------------------------------------------------------------------------------------

    def _say(self, message: wire.Operation) -> None:
        if not self.cut_off:
            self._outbox.append(message)
            self._flush()

    def acknowledge_part(self, index: int, step: int) -> None:
        """A rank is done with its part, and says so before it asks for the next one."""
        self._say(wire.DonePart(index, step))

    def _leave_lease(self, call: UserCall) -> None:
        self._carry_out(self.state.drop(call.ticket))
        self._flush()

    def _forget_lease(self, ticket: int) -> None:
        self.state.settled(ticket)

    # -- inside ------------------------------------------------------------------------------------

    def _look_at_puts(self) -> None:
        """Ask what was to be asked after certain puts that are over now."""
        waiting, self._after_puts = self._after_puts, []
        for call, puts in waiting:
            left = [put for put in puts if not put.outcome]
            if left:
                self._after_puts.append((call, left))
            elif not self.cut_off and not call.outcome:
                self._outbox.append(wire.request(call, self.name))

    def _look(self) -> None:
        """See what users took, or left, of what was delivered."""
        for ticket, call in [(ticket, call) for ticket, call in self._delivered.items() if call.outcome]:
            del self._delivered[ticket]
            dropped = call.outcome == "dropped"
            if call.step.kind == "lease" and not dropped:
                continue  # until it is settled
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
                        self._leases.came(call)
                        self.host.later(LOOK_US, self._look_later, call, LOOK_US)
                    else:
                        self._held.discard(ticket)
                        self._delivered.pop(ticket, None)
                        self._leases.ended(ticket)
                    self.tell(call, ending, detail)
                case Send(ticket):
                    self._held.discard(ticket)
                    self._outbox.append(wire.opening(self.calls[ticket]))
                case SendItem(ticket):
                    self._outbox.append(wire.Fill(ticket, self.calls[ticket].step.number))
                case SendWithdraw(ticket):
                    self._outbox.append(wire.Withdraw(ticket))
                case Confirm(ticket):
                    self._confirmed.append(ticket)

    def _flush(self) -> None:
        if self._outbox or self._confirmed:
            message = (self._confirmed, self._outbox)
            self._confirmed, self._outbox = [], []
            if self._reconnecting is not None:
                self._reconnecting.send(message)
            else:
                self.host.send(wire.SERVER, wire.CHANNEL, message)
