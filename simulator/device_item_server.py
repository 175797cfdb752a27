"""The process that holds a channel with items on devices, in a simulated cluster; it has no device itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlinf_scheduler.queueing import messages
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import Accept, Deliver, Instruction, Reason, Refuse
from rlinf_scheduler.queueing.operations import Putter
from simulator.buckets import BucketReader
from simulator.cluster import Cluster
from simulator.device_item_wire import (
    DEVICE_ITEMS,
    PUTS_FROM,
    Confirm,
    Get,
    GetOver,
    Here,
    ItemAt,
    Put,
    PutOver,
    Resend,
    Withdraw,
)
from simulator.host import Host
from simulator.world import Violation

QUEUE = "default"


@dataclass
class ItemBook:
    """What became of each item.

    Attributes:
        accepted: the channel has had them.
        marked: taken, as their blocks say, by whom.
        named: lost, and somebody was told.
        settled: taken by those who had not said so when they were given up.
        given_up: the processes that the channel's holds for gone.
    """

    accepted: set[int] = field(default_factory=set)
    marked: dict[int, str] = field(default_factory=dict)
    named: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)

    def take(self, item: int, by: str) -> None:
        """Somebody takes an item.

        Raises:
            Violation: somebody else has it.
        """
        if by in self.given_up:
            return
        before = self.marked.get(item)
        if item in self.settled or not (before is None or before in self.given_up):
            raise Violation(f"{by} takes item {item}, which {before} has", (item, by, before))
        self.marked[item] = by

    def name(self, items: set[int]) -> None:
        """Somebody is told that items are lost.

        Raises:
            Violation: somebody was told before.
        """
        if items & self.named:
            raise Violation(f"items {sorted(items & self.named)} are lost twice", items)
        self.named |= items

    def check_end(self) -> None:
        """Check, when all was taken, that no item went without a word."""
        left = self.accepted - self.marked.keys() - self.named
        if left:
            raise Violation(f"items {sorted(left)} of devices are lost, and nobody was told", left)


class ItemServer:
    """The process that holds the channel; it has no device."""

    def __init__(self, host: Host, reader: BucketReader, cluster: Cluster, book: ItemBook) -> None:
        self.host = host
        self.reader = reader
        self.state = cluster.machines.server(0, 0, 0)
        self._owners = cluster.hosts
        self._book = book
        self._held: dict[int, ItemAt] = {}
        host.serve(DEVICE_ITEMS, self)

    def receive(self, sender: str, message: Any) -> None:
        """A message came."""
        state = self.state
        self.host.world.note(self.host.name, "hears", sender, type(message).__name__, message[0])
        match message:
            case Put(item):
                is_there = self._hold(item)
                self._carry_out(
                    state.apply(messages.Put(item.number, QUEUE), sender, Item(item)) if is_there else []
                )
            case Get(ticket):
                self._carry_out(state.apply(messages.Get(ticket, QUEUE), sender))
            case Confirm(ticket):
                self._carry_out(state.confirm(sender, (ticket,)))
            case Withdraw(ticket):
                self._carry_out(state.apply(messages.Withdraw(ticket), sender))
            case Resend(ticket):
                self._carry_out(state.apply(messages.Resend(ticket), sender))

    def lost(self, peer: str) -> None:
        """The session with `peer` has ended: nothing more comes from it, nothing more arrives there."""
        self._book.given_up.add(peer)
        there = {ticket: items[0].payload.number for ticket, items in self.state.queues.deliveries(peer)}
        taken = {ticket for ticket, number in there.items() if self._book.marked.get(number) == peer}
        self._book.settled.update(there[ticket] for ticket in taken)
        self._carry_out(self.state.apply(messages.Lose(taken), peer))
        self._carry_out(self.state.lose_items(lambda item: str(item.number) if item.producer == peer else ""))

    def close(self) -> None:
        """Close the channel."""
        self._carry_out(self.state.apply(messages.Close()))

    def drain(self) -> None:
        """Take all that is left."""
        ticket, outcome = 0, ""
        while outcome not in ("empty", "closed"):
            ticket += 1
            out = self.state.apply(messages.Get(ticket, QUEUE, wait=False), self.host.name)
            for each in out:
                if isinstance(each, Deliver):
                    self._book.take(each.items[0].payload.number, self.host.name)
                    self._carry_out(self.state.confirm(self.host.name, (ticket,)))
                elif isinstance(each, Refuse):
                    outcome = each.reason.value
            self._carry_out(out)

    def _hold(self, item: ItemAt) -> bool:
        """Hold the block of an item; whether it is there: one of who is gone, or holds us for gone, is not."""
        self._held[item.number] = item
        is_there = self.reader.hold(item.producer, item.block, item.generation)
        owner = self._owners[item.producer]
        may_be_gone = item.producer in self._book.given_up or owner.sessions.has_given_up(self.host.name)
        if not is_there and owner.alive and not may_be_gone:
            raise Violation(f"item {item.number} is put, and its block is gone", (item.number,))
        return is_there

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, Refuse) and each.reason is Reason.LOST:
                # How an item was lost is said by its number here; each stands alone, after how many there are of it.
                lost = {int(told.split()[-1]) for told in each.state.split("; ") if "its item" not in told}
                self._book.name(lost)
            self._tell(each)
        self._let_go()

    def _tell(self, each: Instruction) -> None:
        is_put = not isinstance(each, Deliver) and each.ticket >= PUTS_FROM
        match each:
            case Accept(client, number):
                self._book.accepted.add(number)
                self.host.send(client, DEVICE_ITEMS, PutOver(number))
            case Deliver(client, ticket, items) if client != self.host.name:
                self.host.send(client, DEVICE_ITEMS, Here(ticket, items[0].payload))
            case Refuse(client, ticket) if client != self.host.name:
                self.host.send(client, DEVICE_ITEMS, PutOver(ticket) if is_put else GetOver(ticket))

    def _let_go(self) -> None:
        """Release what is not needed any more."""
        state, needed = self.state, set[int]()
        for queue in state.queues.all():
            needed.update(item.payload.number for item in queue.items())
        for client in state.queues.clients.values():
            for operation in client.operations.values():
                items = [operation.item] if isinstance(operation, Putter) else operation.items or []
                needed.update(item.payload.number for item in items)
        for number in self._held.keys() - needed:
            item = self._held.pop(number)
            self.reader.release(item.producer, item.block)
