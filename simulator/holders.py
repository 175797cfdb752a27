"""Processes that hold large items on their producers' nodes, around the real `HeldItemTable`; and who asks them.

Every node has one, which may die and is followed by another. Producers hand large items over before they put them, the
channel's server claims and releases them, consumers fetch them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from rlinf_scheduler.channel.node_holder import UNCLAIMED_S, HeldItemTable
from simulator.host import Host
from simulator.machines import Machines
from simulator.network import Network
from simulator.script import NUM_NODES
from simulator.world import Violation, World

HOLDER = "holder"


class At(NamedTuple):
    """Where an item is: its holder, and its number there."""

    holder: str
    number: int


class Hold(NamedTuple):
    """A producer hands over the item of a put."""

    ticket: int
    item: int


class Held(NamedTuple):
    """It has this number."""

    ticket: int
    number: int


class Drop(NamedTuple):
    """A put came to nothing."""

    number: int


class Keep(NamedTuple):
    """The server has these items, and does not need those."""

    claimed: tuple[int, ...]
    released: tuple[int, ...]


class Fetch(NamedTuple):
    """A consumer asks for items of a delivery."""

    ticket: int
    numbers: tuple[int, ...]


class Fetched(NamedTuple):
    """They are here, or some are `missing`."""

    ticket: int
    missing: bool


class HolderProcess:
    """One process that holds items.

    Attributes:
        host: the process.
        oracle: the machine under test.
        lost_peers: whom it holds for gone.
        given_up: what its producers took back, or left behind, before the server had claimed it.
    """

    def __init__(self, host: Host, server: str, oracle: HeldItemTable[int]) -> None:
        self.host = host
        self.oracle = oracle
        self.lost_peers: set[str] = set()
        self.given_up: set[int] = set()
        self._claimed: set[int] = set()
        self._server = server
        host.serve(HOLDER, self)

    def receive(self, sender: str, message: Any) -> None:
        """A message came."""
        self.host.world.note(self.host.name, "hears", sender, type(message).__name__, *message)
        match message:
            case Hold(ticket, item):
                number = self.oracle.hold(item, producer=sender, keeper=self._server)
                # So it hears of the server's end.
                self.host.send(self._server, HOLDER, None)
                if self._server in self.lost_peers:  # it is not reached this time either
                    self.host.later(1_000, self.lost, self._server)
                self.host.send(sender, HOLDER, Held(ticket, number))
            case Drop(number):
                self.oracle.drop(sender, number)
                self._give_up([number])
            case Keep(claimed, released):
                self.oracle.claim(sender, claimed)
                self._claimed.update(claimed)
                self.oracle.release(sender, released)
            case Fetch(ticket, numbers):
                missing = any(self.oracle.find(number) is None for number in numbers)
                self.host.send(sender, HOLDER, Fetched(ticket, missing))

    def lost(self, peer: str) -> None:
        """The session with `peer` has ended: nothing more comes from it, nothing more arrives there."""
        self.lost_peers.add(peer)
        unclaimed = self.oracle.lose(peer)
        if unclaimed:
            self.host.call_later(UNCLAIMED_S, partial(self._expire, unclaimed))

    def _expire(self, unclaimed: list[int]) -> None:
        self.oracle.expire(unclaimed)
        self._give_up(unclaimed)

    def _give_up(self, numbers: Iterable[int]) -> None:
        self.given_up.update(number for number in numbers if number not in self._claimed)


class Holders:
    """The holders of all nodes, those that are gone too.

    Args:
        world: the clock.
        network: between them and the others.
        machines: makes books.
        server: the name of the channel's process.
    """

    def __init__(self, world: World, network: Network, machines: Machines, server: str) -> None:
        self._make = (world, network, machines)
        self._server = server
        self.processes: dict[str, HolderProcess] = {}
        self._present: dict[int, HolderProcess] = {}

    def start(self, node: int) -> Host:
        """Start the holder of a node."""
        world, network, machines = self._make
        host = Host(world, network, f"{HOLDER}{node}.{len(self.processes)}", machines)
        self._present[node] = self.processes[host.name] = HolderProcess(host, self._server, machines.holder())
        return host

    def of(self, client: str) -> str | None:
        """The holder of a client's node, if it lives."""
        digits = client.removeprefix("client").partition(".")[0]
        present = self._present[int(digits) % NUM_NODES] if digits.isdecimal() else None
        return present.host.name if present is not None and present.host.alive else None

    def check_rest(self) -> None:
        """Check, when the world is at rest and nobody needs anything, that nothing is kept."""
        for name, process in self.processes.items():
            if process.host.alive and len(process.oracle):
                message = f"{name} keeps {len(process.oracle)} items that nobody needs"
                raise Violation(message, (name,))


class ServerSide:
    """What the server knows of items that others hold.

    Args:
        host: the server's process.
        holders: all of them.
    """

    def __init__(self, host: Host, holders: Holders) -> None:
        self._host = host
        self._holders = holders
        self._at: dict[int, At] = {}
        self._lost: set[str] = set()

    def put(self, item: int, at: At) -> bool:
        """A put came whose item is elsewhere; whether its holder is known to be gone."""
        self._at[item] = at
        self._host.send(at.holder, HOLDER, Keep((at.number,), ()))
        return at.holder in self._lost

    def places(self, items: Iterable[int]) -> dict[int, At]:
        """Where items are that are not here."""
        return {item: self._at[item] for item in items if item in self._at}

    def release(self, needed: Callable[[], set[int]]) -> None:
        """Let go of what is needed no more."""
        if not self._at:
            return
        kept = needed()
        for item in [item for item in self._at if item not in kept]:
            at = self._at.pop(item)
            self._host.send(at.holder, HOLDER, Keep((), (at.number,)))

    def lose(self, holder: str) -> set[int]:
        """A holder is gone; returns the items that it had."""
        self._lost.add(holder)
        gone = {item for item, at in self._at.items() if at.holder == holder}
        for item in gone:
            del self._at[item]
        return gone

    def bring(self, items: Iterable[int]) -> set[int]:
        """Items come here whose consumer cannot fetch them; returns those that are gone.

        Raises:
            Violation: a holder has forgotten one.
        """
        gone = set()
        for item, at in self.places(items).items():
            process = self._holders.processes[at.holder]
            if process.host.alive and process.oracle.find(at.number) == item:
                self._host.send(at.holder, HOLDER, Keep((), (at.number,)))
            else:
                gone.add(item)
                parted = at.holder in self._lost or self._host.name in process.lost_peers
                if process.host.alive and not parted and at.number not in process.given_up:
                    raise Violation(f"{at.holder} has forgotten item {item}", (item, at.holder))
            del self._at[item]
        return gone
