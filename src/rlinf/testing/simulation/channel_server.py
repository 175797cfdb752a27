"""The process that holds a channel, around the real `ChannelState`."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlinf.scheduler.queueing import Accept, Deliver, DirectOperations, Grant, Instruction, Refuse, Ripen
from rlinf.testing.simulation.host import Host
from rlinf.testing.simulation.ledger import Ledger
from rlinf.testing.simulation.machines import Machines
from rlinf.testing.simulation.script import NOWAIT, Call
from rlinf.testing.simulation.shortcut import Way
from rlinf.testing.simulation.users import UserCall
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


class Recall(NamedTuple):
    """Nobody wants an operation any more that went by a shortcut."""

    ticket: int


class Direct(NamedTuple):
    """By a shortcut: an operation, before which so many messages stand."""

    after: int
    operation: Put | Get


class Elsewhere(NamedTuple):
    """By a shortcut: the items of a get come the usual way."""

    ticket: int


class Again(NamedTuple):
    """By a shortcut: the item of a put cannot be read; it is to come the usual way."""

    ticket: int


class Arrived(NamedTuple):
    """Items are in the client's process; nobody has taken them."""

    ticket: int


# Of a delivery, so many bytes go by a shortcut.
DIRECT_BYTES = 64 << 10
INLINE_BYTES = 64 << 10
# So many puts lie in shared memory that the server cannot read.
UNREADABLE_SHARE = 0.03

Operation = Put | Fill | Get | Withdraw | Recall | Arrived
Operations = tuple[list[int], list[Operation]]
"""What a client sends: tickets whose items were taken, and operations in order."""
Answer = Grant | Deliver | Refuse
News = tuple[list[int], list[Answer]]
"""What the server sends: tickets of accepted puts, and other answers in order."""


def is_announced(step: Call) -> bool:
    """Whether the bytes of a put follow when there is room for them."""
    return step.size_bytes > INLINE_BYTES


def opening(call: UserCall) -> Put | Get:
    """Return the message that begins an operation."""
    step = call.step
    wait = step.timeout_us != NOWAIT
    if step.kind == "put":
        item = None if is_announced(step) else step.number
        return Put(call.ticket, step.queue, item, step.weight, step.size_bytes, wait)
    return Get(call.ticket, step.queue, step.weight if step.kind == "batch" else None, wait)


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
        self._make_direct = machines.direct
        self._direct: dict[str, DirectOperations[Way, Put | Get]] = {}
        self._ways: dict[str, list[Way]] = {}
        self._draw = host.world.randomness("channel server")
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
        for _, direct in self._direct_of(sender).read():
            self._run_direct(sender, direct)

    # -- shortcuts ---------------------------------------------------------------------------------

    def connect(self, client: Host) -> Way | None:
        """A shortcut for a thread of a client; None if that cannot be."""
        if not self.host.alive or client.name in self._gone:
            return None
        way = Way(client, self.host, self._on_calls)
        self._ways.setdefault(client.name, []).append(way)
        return way

    def died(self, name: str) -> None:
        """A process has died: its ends are closed by the kernel."""
        for client, ways in self._ways.items():
            for way in ways:
                if client == name:
                    way.leave()
                elif name == self.name:
                    way.break_off()

    def _on_calls(self, way: Way) -> None:
        if way.calls:
            self._read_call(way)
        if way.left and not way.calls:
            self.close_way(way)
            self._direct_of(way.client).leave(way)

    def close_way(self, way: Way) -> None:
        """Close this end of a shortcut."""
        ways = self._ways.get(way.client, [])
        if way in ways:
            ways.remove(way)
            way.break_off()

    def _read_call(self, way: Way) -> None:
        direct: Direct = way.calls.popleft()
        operation = direct.operation
        self.world.note(self.name, "hears", way.client, "Direct", direct.after, *operation)
        if self._direct_of(way.client).arrive(way, operation.ticket, operation, direct.after):
            self._run_direct(way.client, operation)

    def _read_all(self, client: str) -> None:
        for way in list(self._ways.get(client, ())):
            while way.calls:
                self._read_call(way)

    def _run_direct(self, client: str, operation: Put | Get) -> None:
        if type(operation) is Put and self._draw.random() < UNREADABLE_SHARE:
            way = self._direct_of(client).end(operation.ticket)
            if way is not None:
                way.answer(Again(operation.ticket))
            return
        self._carry_out(self._handle(client, operation, is_direct=True))

    def _recall(self, client: str, ticket: int) -> list[Instruction]:
        out = self._direct_of(client).recall(client, ticket, self.state, self._read_all)
        if out == [Accept(client, ticket)]:
            # It is only said again.
            self._to_client(client)[0].append(ticket)
            return []
        return out

    def _direct_of(self, client: str) -> DirectOperations[Way, Put | Get]:
        direct = self._direct.get(client)
        if direct is None:
            direct = self._direct[client] = self._make_direct()
        return direct

    # -- ends --------------------------------------------------------------------------------------

    def lost(self, peer: str) -> None:
        """A client has gone, or is held for dead."""
        if peer not in self._gone:
            self.world.note(self.name, "loses", peer)
            self._gone.add(peer)
            self._news.pop(peer, None)
            for way in list(self._ways.get(peer, ())):
                self.close_way(way)
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

    def _handle(self, client: str, operation: Operation, *, is_direct: bool = False) -> list[Instruction]:
        state, ledger = self.state, self._ledger
        match operation:
            case Put(ticket, queue, None, weight, size_bytes, wait):
                return state.reserve(client, ticket, queue, weight, size_bytes, wait=wait)
            case Put(ticket, queue, item, weight, size_bytes, wait):
                if not is_direct:  # of these each thread has one at most
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
            case Recall(ticket):
                return self._recall(client, ticket)
            case Arrived(ticket):
                return state.arrive(client, ticket)

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            client = instruction.client
            self.world.note(self.name, "says", *_in_words(instruction))
            if client in self._gone:
                message = f"the server answers {client}, which has gone"
                raise Violation(message, (client,))
            if self._is_said_directly(instruction):
                continue
            accepted, answers = self._to_client(client)
            if isinstance(instruction, Accept):
                accepted.append(instruction.ticket)
            elif not isinstance(instruction, Ripen):  # nobody here asks for a batch that waits for more
                answers.append(instruction)
        self._ledger.follow(instructions, self.state)

    def _is_said_directly(self, instruction: Instruction) -> bool:
        direct = self._direct_of(instruction.client)
        is_accept = isinstance(instruction, Accept)
        way = (direct.accept if is_accept else direct.end)(instruction.ticket)
        if way is None:
            return False
        if isinstance(instruction, Deliver) and sum(i.size_bytes for i in instruction.items) > DIRECT_BYTES:
            way.answer(Elsewhere(instruction.ticket))
            return False
        return way.answer(instruction)

    def _to_client(self, client: str) -> News:
        if not self._news:
            self.host.later(10, self._flush)
        return self._news.setdefault(client, ([], []))

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
