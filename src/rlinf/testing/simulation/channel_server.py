"""The process that holds a channel, around the real `ChannelState`."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlinf.scheduler.queueing import Accept, Deliver, Grant, Instruction, Refuse, Ripen
from rlinf.testing.simulation.host import Host
from rlinf.testing.simulation.ledger import Ledger
from rlinf.testing.simulation.machines import Machines
from rlinf.testing.simulation.world import Violation

SERVER = "server"
CHANNEL = "channel"


class Put(NamedTuple):
    """An item, or (`item` None) its announcement."""

    ticket: int
    queue: str
    item: int | None
    weight: int
    size_bytes: int
    wait: bool


class Fill(NamedTuple):
    """The bytes of an announced item."""

    ticket: int
    item: int


class Get(NamedTuple):
    """A get, or a batch that reaches a weight."""

    ticket: int
    queue: str
    batch_weight: int | None
    wait: bool


class Withdraw(NamedTuple):
    """Nobody wants an operation any more."""

    ticket: int


class Arrived(NamedTuple):
    """Items are in the client's process; nobody has taken them."""

    ticket: int


Operation = Put | Fill | Get | Withdraw | Arrived
Operations = tuple[list[int], list[Operation]]
"""What a client sends: tickets whose items were taken, and operations in order."""
Answer = Grant | Deliver | Refuse
News = tuple[list[int], list[Answer]]
"""What the server sends: tickets of accepted puts, and other answers in order."""


class ChannelServer:
    """Hears clients one after the other, and answers each with what has gathered.

    Attributes:
        state: the machine under test.
    """

    def __init__(self, host: Host, ledger: Ledger, machines: Machines, maxsize: int) -> None:
        self.host = host
        self.name = host.name
        self.world = host.world
        self.state = machines.server(maxsize)
        self._ledger = ledger
        self._gone: set[str] = set()
        self._news: dict[str, News] = {}
        host.serve(CHANNEL, self)

    def receive(self, sender: str, message: Operations) -> None:
        """Handle what a client sent, one after the other."""
        if sender in self._gone:
            return
        confirmed, operations = message
        for ticket in confirmed:
            self.world.note(self.name, "hears", sender, "Confirm", ticket)
            self._ledger.confirmed(sender, ticket)
            self._carry_out(self.state.confirm(sender, ticket))
        for operation in operations:
            self.world.note(self.name, "hears", sender, type(operation).__name__, *operation)
            self._carry_out(self._handle(sender, operation))

    def lost(self, peer: str) -> None:
        """A client has gone, or is held for dead."""
        if peer not in self._gone:
            self.world.note(self.name, "loses", peer)
            self._gone.add(peer)
            self._news.pop(peer, None)
            taken = {
                ticket
                for ticket, items in self.state.deliveries(peer)
                if self._ledger.is_marked(peer, [item.payload for item in items])
            }
            for ticket in taken:
                self._ledger.confirmed(peer, ticket)
            self._ledger.loses(peer)
            self._carry_out(self.state.lose(peer, taken))

    def close(self) -> None:
        """Close the channel."""
        self.world.note(self.name, "closes")
        self._carry_out(self.state.close())

    def _handle(self, client: str, operation: Operation) -> list[Instruction]:
        state, ledger = self.state, self._ledger
        match operation:
            case Put(ticket, queue, None, weight, size_bytes, wait):
                return state.reserve(client, ticket, queue, weight, size_bytes, wait=wait)
            case Put(ticket, queue, item, weight, size_bytes, wait):
                ledger.bytes_arrive(client, ticket)
                return state.put(client, ticket, queue, item, weight, size_bytes, wait=wait)
            case Fill(ticket, item):
                return state.fill(client, ticket, item)
            case Get(ticket, queue, batch_weight, wait):
                ledger.get_arrives(client, ticket, queue)
                if batch_weight is None:
                    return state.get(client, ticket, queue, wait=wait)
                return state.get_batch(client, ticket, queue, batch_weight, wait=wait)
            case Withdraw(ticket):
                return state.withdraw(client, ticket)
            case Arrived(ticket):
                return state.arrive(client, ticket)

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            client = instruction.client
            self.world.note(self.name, "says", *_in_words(instruction))
            if client in self._gone:
                message = f"the server answers {client}, which has gone"
                raise Violation(message, (client,))
            if not self._news:
                self.host.later(10, self._flush)
            accepted, answers = self._news.setdefault(client, ([], []))
            if isinstance(instruction, Accept):
                accepted.append(instruction.ticket)
            elif not isinstance(instruction, Ripen):  # nobody here asks for a batch that waits for more
                answers.append(instruction)
        self._ledger.follow(instructions, self.state)

    def _flush(self) -> None:
        news, self._news = self._news, {}
        for client, its_news in news.items():
            self.host.send(client, CHANNEL, its_news)


def _in_words(instruction: Instruction) -> tuple[Any, ...]:
    words = (type(instruction).__name__, instruction.client, instruction.ticket)
    if isinstance(instruction, Deliver):
        return *words, *(item.payload for item in instruction.items)
    if isinstance(instruction, Refuse):
        return *words, instruction.reason.value
    return words
