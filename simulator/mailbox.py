"""Mailboxes in a simulated cluster: the queues of what comes to a process are in that process; a send is a put to one.

Around the real `ChannelState` (with a bound in bytes) of the receiver and the real `ClientState` of the sender.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from rlinf_scheduler.queueing import (
    Accept,
    ChannelState,
    Deliver,
    Grant,
    Instruction,
    Item,
    QueueName,
    messages,
)
from rlinf_scheduler.queueing.client import ClientInstruction, ClientState, End, Ending, Send, SendItem
from simulator.cluster import Cluster, Part
from simulator.host import Host
from simulator.ledger import Ledger
from simulator.queue_oracle import Asked
from simulator.script import Call, Script
from simulator.users import UserCall, Users
from simulator.world import Violation

MAILBOX = "mailbox"
OWN = "own"
INLINE_BYTES = 64 << 10
MAX_BYTES = 400_000
SWEEP_US = 1_000_000
AUDITOR = 2_000_000
"""The first number of the calls that empty the mailboxes at the end."""


class Put(NamedTuple):
    """An item for the receiver's queue, or (`item` None) its announcement."""

    ticket: int
    queue: QueueName
    item: int | None
    size_bytes: int


class Read(NamedTuple):
    """There is room for an announced item."""

    ticket: int


class Bytes(NamedTuple):
    """An announced item."""

    ticket: int
    item: int


class Withdraw(NamedTuple):
    """The sender gives an item up."""

    ticket: int


class Outcome(NamedTuple):
    """What became of an item: the queue holds it, or it was withdrawn."""

    ticket: int
    held: bool


class Mailbox(Users):
    """One process's mailbox: what it sends, and the queues of what comes to it.

    Attributes:
        number: what others send to, whichever process has it.
        ledger: follows what comes here.
        state: the queues, each of a sender's number and a topic.
    """

    def __init__(self, host: Host, number: int, cluster: Cluster, ordered: set[QueueName]) -> None:
        super().__init__(host)
        self.number = number
        self.ledger = Ledger(ordered, max_bytes=MAX_BYTES, credit_bytes=cluster.script.credit_bytes)
        self.state: ChannelState = cluster.machines.receiver(MAX_BYTES)
        self.streams: dict[str, ClientState] = {}
        self._cluster = cluster
        self._to: dict[int, str] = {}  # where sends go, and from where recvs hope for something
        self._delivered: dict[int, UserCall] = {}
        self._to_do: deque[Instruction] = deque()
        self._gone: set[str] = set()
        self._is_following = False
        self._is_looking = False
        host.serve(MAILBOX, self)

    # -- messages ----------------------------------------------------------------------------------

    def receive(self, sender: str, message: Any) -> None:
        """A message came."""
        if sender in self._gone:
            return
        self.world.note(self.name, "hears", sender, type(message).__name__, *message)
        match message:
            case Put(ticket, queue, None, size_bytes):
                self.ledger.put_arrives(sender, ticket)
                self._follow(
                    self.state.apply(
                        messages.Put(ticket, queue, size_bytes=size_bytes),
                        sender,
                        Item(None, size_bytes=size_bytes),
                    )
                )
            case Put(ticket, queue, item, size_bytes):
                self.ledger.put_arrives(sender, ticket)
                self.ledger.bytes_arrive(sender, ticket)
                self._follow(
                    self.state.apply(messages.Put(ticket, queue), sender, Item(item, size_bytes=size_bytes))
                )
            case Bytes(ticket, item):
                self._follow(self.state.apply(messages.Fill(ticket), sender, item))
            case Withdraw(ticket):
                self._follow(self.state.apply(messages.Withdraw(ticket), sender))
            case Read(ticket):
                self._carry_out(sender, self.streams[sender].granted(ticket))
            case Outcome(ticket, True):
                self._carry_out(sender, self.streams[sender].accepted(ticket))
            case Outcome(ticket, _):
                self._carry_out(sender, self.streams[sender].refused(ticket, "withdrawn", withdrawn=True))

    def lost(self, peer: str) -> None:
        """A process has gone, or holds this one for dead: what it had put stays."""
        self.world.note(self.name, "loses", peer)
        self._gone.add(peer)
        self.ledger.loses(peer)
        self._follow(self.state.apply(messages.Lose(), peer))
        if peer in self.streams:
            self._carry_out(peer, self.streams[peer].lose())
        for ticket, call in list(self.calls.items()):
            if call.step.kind == "recv" and self._to.get(ticket) == peer:
                self._end_recv(call, Ending.LOST)

    # -- what users do -----------------------------------------------------------------------------

    def on_begin(self, call: UserCall) -> None:
        """A call begins."""
        step = call.step
        peer = self._to[step.number]
        if call.outcome:
            return
        if step.kind == "recv":
            queue = (step.peer, step.queue)
            self.ledger.get_arrives(OWN, step.number, queue, Asked())
            self._follow(self.state.apply(messages.Get(step.number, queue), OWN))
            if peer in self._gone:
                self._end_recv(call, Ending.LOST)
        elif peer in self._gone or not self._cluster.hosts[peer].alive:
            self.tell(call, Ending.LOST, None)
        else:
            stream = self.streams.get(peer)
            if stream is None:
                stream = self.streams[peer] = self._cluster.machines.client(self._cluster.script.credit_bytes)
            inline_bytes = 0 if _is_announced(step) else step.size_bytes
            self._carry_out(peer, stream.put(step.number, step.queue, inline_bytes))

    def on_drop(self, call: UserCall) -> None:
        """A user has left a call."""
        ticket = call.step.number
        if call.step.kind == "recv":
            self._delivered.pop(ticket, None)
            self._follow(self.state.apply(messages.Withdraw(ticket), OWN))
        else:
            self._leave(call, "drop")

    def on_cancel(self, call: UserCall) -> None:
        """A user asks for the end of a call."""
        if call.step.kind == "recv":
            self._end_recv(call, Ending.CANCELLED)
        else:
            self._leave(call, "cancel")

    def on_expire(self, call: UserCall) -> None:
        """A deadline has passed."""
        if call.step.kind == "recv":
            self._end_recv(call, Ending.TIMED_OUT)
        else:
            self._leave(call, "expire")

    def on_give_up(self, call: UserCall) -> None:
        """A deadline has passed a while ago, and nothing has come of it."""
        if call.step.kind == "send":
            self._leave(call, "give_up")

    def on_turn(self) -> None:
        """Everything that was handed over has been done."""

    def told_begin(self, call: UserCall) -> None:
        """For the checks: a user begins. The name of a peer leads to the process that has it now."""
        step = call.step
        peer = self._cluster.current[step.peer].name
        self._to[step.number] = peer
        if step.kind == "send":
            queue = (self.number, step.queue)
            self._ledger_of(peer).put_begins(self.name, step.number, queue, step.size_bytes)

    def told_end(self, call: UserCall) -> None:
        """For the checks: a user's call has ended."""
        step = call.step
        if step.kind == "send":
            self._ledger_of(self._to[step.number]).put_ends(step.number, call.outcome)
        elif call.outcome == "taken" and call.items is not None:
            self.ledger.takes(self.name, call.items)

    # -- inside ------------------------------------------------------------------------------------

    def _ledger_of(self, peer: str) -> Ledger:
        ledger: Ledger = self._cluster.hosts[peer].service(MAILBOX).ledger
        return ledger

    def _leave(self, call: UserCall, way: str) -> None:
        peer = self._to[call.step.number]
        stream = self.streams.get(peer)
        if stream is not None:
            self._carry_out(peer, getattr(stream, way)(call.step.number))

    def _end_recv(self, call: UserCall, ending: Ending) -> None:
        """End a recv that waits; what was delivered is its user's to take or to leave."""
        if not call.outcome and call.items is None:
            self.tell(call, ending, None)
            self._follow(self.state.apply(messages.Withdraw(call.step.number), OWN))

    def _carry_out(self, peer: str, instructions: list[ClientInstruction]) -> None:
        for instruction in instructions:
            ticket = instruction.ticket
            match instruction:
                case End(_, ending, detail):
                    self.tell(self.calls[ticket], ending, detail)
                case Send():
                    step = self.calls[ticket].step
                    item = None if _is_announced(step) else ticket
                    put = Put(ticket, (self.number, step.queue), item, step.size_bytes)
                    self.host.send(peer, MAILBOX, put)
                case SendItem():
                    self.host.send(peer, MAILBOX, Bytes(ticket, ticket))
                case _:
                    self.host.send(peer, MAILBOX, Withdraw(ticket))

    def _follow(self, instructions: list[Instruction]) -> None:
        """Do what the queues ask for, in order, however much follows from it."""
        self.ledger.follow(instructions, self.state)
        self._to_do.extend(instructions)
        if self._is_following:
            return
        self._is_following = True
        while self._to_do:
            self._follow_one(self._to_do.popleft())
        self._is_following = False

    def _follow_one(self, instruction: Instruction) -> None:
        client, ticket = instruction.client, instruction.ticket
        self.world.note(self.name, "says", type(instruction).__name__, client, ticket)
        if isinstance(instruction, Deliver):
            self._deliver(self.calls[ticket], [item.payload for item in instruction.items])
        elif client == OWN:
            return
        elif isinstance(instruction, Grant):
            self.host.send(client, MAILBOX, Read(ticket))
        else:
            self.host.send(client, MAILBOX, Outcome(ticket, isinstance(instruction, Accept)))

    def _deliver(self, call: UserCall, items: list[int]) -> None:
        if call.outcome:
            self._follow(self.state.apply(messages.Withdraw(call.step.number), OWN))
            return
        self._delivered[call.step.number] = call
        self.tell(call, Ending.DELIVERED, items)
        self._look_later()

    def _look_later(self) -> None:
        if self._delivered and not self._is_looking:
            self._is_looking = True
            self.host.later(SWEEP_US, self._look)

    def _look(self) -> None:
        """See what users took of what was delivered."""
        self._is_looking = False
        for ticket, call in list(self._delivered.items()):
            if call.outcome == "taken":
                del self._delivered[ticket]
                self.ledger.confirmed(OWN, ticket)
                self._follow(self.state.confirm(OWN, (ticket,)))
        self._look_later()


class MailboxPart(Part):
    """A mailbox in every process but the server's; whoever took something from a dead process's was in it."""

    kinds: tuple[str, ...] = ("send", "recv")

    def __init__(self, cluster: Cluster, script: Script) -> None:
        self._cluster = cluster
        self._mailboxes: dict[str, Mailbox] = {}
        by_receiver: dict[int, dict[QueueName, bool]] = {}
        for step in script.calls:
            if step.kind == "recv":
                ordered = by_receiver.setdefault(step.client, {})
                ordered[step.peer, step.queue] = ordered.get((step.peer, step.queue), True) and step.blocking
        self._ordered = {
            number: {queue for queue, is_ordered in queues.items() if is_ordered}
            for number, queues in by_receiver.items()
        }

    def start(self, host: Host, number: int) -> None:
        """A process has started."""
        ordered = self._ordered.get(number, set())
        self._mailboxes[host.name] = Mailbox(host, number, self._cluster, set(ordered))

    def call(self, host: Host, step: Call) -> None:
        """A user calls in a process."""
        if step.peer in self._cluster.current:
            self._mailboxes[host.name].call(step)

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""
        live = [mailbox for mailbox in self._mailboxes.values() if mailbox.host.alive]
        number = AUDITOR
        for mailbox in live:
            for depth in mailbox.state.queues.depths():
                name: Any = depth.name
                peer, topic = name
                for _ in range(depth.num_items + depth.num_putters):
                    mailbox.call(Call(0, number, mailbox.number, "recv", topic, 0, 0, 2_000, False, "", peer))
                    number += 1
                    yield
        for mailbox in live:
            mailbox.check_calls()
            mailbox.ledger.check_end(drained=True)
            self._check_nothing_is_left(mailbox)

    def _check_nothing_is_left(self, mailbox: Mailbox) -> None:
        left = mailbox.state.queues.depths()
        num_open = sum(stream.num_open for stream in mailbox.streams.values())
        if left or num_open:
            message = f"the mailbox of {mailbox.name} keeps {left}, and {num_open} sends"
            raise Violation(message, (mailbox.name,))


def _is_announced(step: Call) -> bool:
    return step.size_bytes > INLINE_BYTES
