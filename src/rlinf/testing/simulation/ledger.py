"""What a channel promises, checked after every step of its server and of its users."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rlinf.scheduler.queueing import Accept, ChannelState, Deliver, Grant, Instruction, QueueName, Refuse
from rlinf.testing.simulation.world import Violation

Ticket = tuple[str, int]

# Of a larger item its server sees that it was taken, even if the taker dies before it says so.
MARKED_BYTES = 64 << 10

# How a put may have ended, for its user, whose item was accepted; empty: its process died.
_MAY_BE_ACCEPTED = frozenset(("accepted", "unanswered", "dropped", "lost", ""))


@dataclass(slots=True)
class _Item:
    """What is known of one item; its number is that of the call that put it."""

    number: int
    producer: str
    queue: QueueName
    size_bytes: int
    begun: int  # its place among all puts
    behind: float  # the puts of its producer from here on are to enter its queue after it
    order: int = -1  # its place among all that its queue accepted
    put_outcome: str = ""
    marked_by: str = ""
    taken_by: list[str] = field(default_factory=list)


class _Queue:
    """What the server must hold of one queue, by what it has said."""

    __slots__ = ("available", "getters", "granted", "last_put", "last_taken", "num_accepted", "num_returned")

    def __init__(self) -> None:
        self.available: list[tuple[int, int]] = []  # (order, item), ascending
        self.getters: dict[Ticket, None] = {}
        self.granted: dict[Ticket, None] = {}
        self.last_put: dict[str, int] = {}  # by producer
        self.last_taken = -1
        self.num_accepted = 0
        self.num_returned = 0


class Ledger:
    """Follows every item from its producer to its consumer.

    Args:
        sole_consumers: queues that one client empties one by one.
        maxsize: items per queue, 0 unbounded.
        max_bytes: bytes per queue, unless it is a single larger item; 0 unbounded.
        credit_bytes: what a client may send to a queue unasked, unless it is a single larger item.
    """

    def __init__(
        self, sole_consumers: Iterable[QueueName], *, maxsize: int = 0, max_bytes: int = 0, credit_bytes: int
    ) -> None:
        self._maxsize = maxsize
        self._max_bytes = max_bytes
        self._credit_bytes = credit_bytes
        self._sole = set(sole_consumers)
        self._gone: set[str] = set()
        self._items: dict[int, _Item] = {}
        self._queues: dict[QueueName, _Queue] = {}
        self._puts: dict[Ticket, _Item] = {}
        self._gets: dict[Ticket, QueueName] = {}
        self._deliveries: dict[Ticket, list[int]] = {}
        self._inline: dict[Ticket, bool] = {}
        self._unaccepted_bytes: dict[tuple[str, QueueName], int] = {}

    # -- what users see --------------------------------------------------------------------------

    def put_begins(self, client: str, item: int, queue: QueueName, size_bytes: int) -> None:
        """A user puts an item; its ticket is its number."""
        begun = len(self._items)
        self._items[item] = self._puts[client, item] = _Item(
            item, client, queue, size_bytes, begun, begun + 1
        )
        self._queue(queue)

    def put_goes_by_itself(self, item: int) -> None:
        """A put goes by a shortcut: only what its producer puts when it has ended stands behind it."""
        self._items[item].behind = math.inf

    def put_again(self, client: str, ticket: int, item: int) -> None:
        """A put that has put nothing begins anew, with another ticket."""
        self._puts[client, ticket] = self._items[item]

    def put_ends(self, item: int, outcome: str) -> None:
        """A user is told how a put ended, or has left it."""
        known = self._items[item]
        known.put_outcome = outcome
        if known.behind == math.inf:
            known.behind = len(self._items)

    def takes(self, client: str, items: Sequence[int]) -> None:
        """Items become a user's; a large one is marked."""
        for item in items:
            known = self._items[item]
            if known.size_bytes > MARKED_BYTES:
                known.marked_by = client
            known.taken_by.append(client)
            live = [taker for taker in known.taken_by if taker not in self._gone]
            if len(live) > 1:
                raise Violation(f"item {item} is taken by {' and '.join(live)}", (item,))
            queue = self._queues[known.queue]
            if known.queue in self._sole:
                if known.order < queue.last_taken and client not in self._gone:
                    raise Violation(f"{client} gets item {item} of {known.queue} out of order", (item,))
                queue.last_taken = known.order

    def is_marked(self, client: str, items: Sequence[int]) -> bool:
        """Return whether the server sees that a client has taken these items."""
        return any(self._items[item].marked_by == client for item in items)

    def dies(self, client: str) -> None:
        """A client is dead: what it has taken may come to another."""
        self._gone.add(client)

    # -- what the server says --------------------------------------------------------------------

    def get_arrives(self, client: str, ticket: int, queue: QueueName) -> None:
        """The server is asked for items."""
        self._gets[client, ticket] = queue
        self._queue(queue).getters[client, ticket] = None

    def bytes_arrive(self, client: str, ticket: int) -> None:
        """The server is sent an item that it has not asked for."""
        item = self._puts[client, ticket]
        self._inline[client, ticket] = True
        key = (client, item.queue)
        self._unaccepted_bytes[key] = held = self._unaccepted_bytes.get(key, 0) + item.size_bytes
        if held > max(self._credit_bytes, item.size_bytes):
            raise Violation(
                f"the server holds {held} bytes for {client} that it did not admit", (item.number,)
            )

    def confirmed(self, client: str, ticket: int) -> None:
        """The server is told that items were taken."""
        self._deliveries.pop((client, ticket), None)

    def loses(self, client: str) -> None:
        """The server is told that a client has gone; if it lives, it is as good as dead."""
        self._gone.add(client)
        for ticket in [ticket for ticket in self._deliveries if ticket[0] == client]:
            self._give_back(ticket)
        for queue in self._queues.values():
            for line in (queue.getters, queue.granted):
                for ticket in [ticket for ticket in line if ticket[0] == client]:
                    del line[ticket]

    def follow(self, instructions: Sequence[Instruction], state: ChannelState) -> None:
        """Check what the server says after an event, and what it holds then."""
        for instruction in instructions:
            ticket = (instruction.client, instruction.ticket)
            if isinstance(instruction, Accept):
                self._accept(ticket)
            elif isinstance(instruction, Grant):
                self._grant(ticket)
            elif isinstance(instruction, Deliver):
                self._deliver(ticket, [item.payload for item in instruction.items])
            elif isinstance(instruction, Refuse):
                self._refuse(ticket)
        self._check_content(state)

    def _accept(self, ticket: Ticket) -> None:
        item = self._puts[ticket]
        queue = self._queues[item.queue]
        if item.order >= 0:
            raise Violation(f"item {item.number} is accepted twice", (item.number,))
        last_put = queue.last_put.get(item.producer, -1)
        if last_put >= item.behind:
            raise Violation(f"item {item.number} of {item.producer} enters after a later one", (item.number,))
        queue.last_put[item.producer] = max(last_put, item.begun)
        item.order = queue.num_accepted
        queue.num_accepted += 1
        queue.available.append((item.order, item.number))
        queue.granted.pop(ticket, None)
        self._settle_bytes(ticket)
        self._check_bound(queue, item)

    def _grant(self, ticket: Ticket) -> None:
        item = self._puts[ticket]
        queue = self._queues[item.queue]
        queue.granted[ticket] = None
        self._check_bound(queue, item)

    def _check_bound(self, queue: _Queue, item: _Item) -> None:
        held = len(queue.available) + len(queue.granted)
        if 0 < self._maxsize < held - queue.num_returned:
            raise Violation(f"{item.queue} holds {held} items of {self._maxsize}", (item.number,))
        if self._max_bytes and held > 1 and not queue.num_returned:
            items = [self._items[number] for _, number in queue.available]
            items += [self._puts[ticket] for ticket in queue.granted]
            held_bytes = sum(each.size_bytes for each in items)
            if held_bytes > self._max_bytes:
                message = f"{item.queue} holds {held_bytes} bytes of {self._max_bytes}"
                raise Violation(message, (item.number,))

    def _deliver(self, ticket: Ticket, items: list[int]) -> None:
        queue = self._queues[self._gets[ticket]]
        if next(iter(queue.getters), None) != ticket:
            raise Violation(f"{ticket} is served before {next(iter(queue.getters), None)}", items)
        head = [item for _, item in queue.available[: len(items)]]
        if items != head:
            raise Violation(
                f"items {items} are delivered to {ticket}; the head of the queue is {head}", items
            )
        del queue.getters[ticket]
        del queue.available[: len(items)]
        self._deliveries[ticket] = items

    def _refuse(self, ticket: Ticket) -> None:
        if ticket in self._puts:
            self._queues[self._puts[ticket].queue].granted.pop(ticket, None)
            self._settle_bytes(ticket)
            return
        if ticket in self._gets:  # one that was recalled may never have gone
            self._queues[self._gets[ticket]].getters.pop(ticket, None)
            self._give_back(ticket)

    def _settle_bytes(self, ticket: Ticket) -> None:
        item = self._puts[ticket]
        if self._inline.pop(ticket, None):
            self._unaccepted_bytes[ticket[0], item.queue] -= item.size_bytes

    def _give_back(self, ticket: Ticket) -> None:
        if ticket[0] in self._gone:
            self._sole.discard(self._gets[ticket])  # its successor may have got later items before
        for item in self._deliveries.pop(ticket, ()):
            known = self._items[item]
            queue = self._queues[known.queue]
            insort(queue.available, (known.order, item))
            queue.num_returned += 1

    def _check_content(self, state: ChannelState) -> None:
        held = {depth.name: depth for depth in state.depths()}
        for name, queue in self._queues.items():
            depth = held.get(name)
            there = depth.num_items if depth is not None else 0
            if there != len(queue.available):
                expected = [item for _, item in queue.available]
                raise Violation(f"{name} holds {there} items; it should hold {expected}", expected)

    # -- at the end ------------------------------------------------------------------------------

    def check_end(self, *, drained: bool) -> None:
        """Check that every item is accounted for.

        Args:
            drained: everything that was accepted has been asked for since.
        """
        for item in self._items.values():
            if item.put_outcome == "accepted" and item.order < 0:
                raise Violation(f"item {item.number} was never accepted; its put says so", (item.number,))
            if item.order < 0:
                continue
            if item.put_outcome not in _MAY_BE_ACCEPTED:
                message = f"item {item.number} is in the queue; its put ended as {item.put_outcome!r}"
                raise Violation(message, (item.number,))
            if drained and not item.taken_by:
                raise Violation(f"item {item.number} was accepted and is lost", (item.number,))

    def _queue(self, name: QueueName) -> _Queue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _Queue()
        return queue
