"""The processes that hold large items on their producers' nodes: each node has one, which may die and is followed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlinf_scheduler.channel import node_holder
from rlinf_scheduler.channel.node_holder import HeldItemTable, NodeHolder
from rlinf_scheduler.channel.remote_items import RemoteItem
from rlinf_scheduler.channel.starting import Starter
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import CommError
from simulator.host import Host
from simulator.machines import Machines
from simulator.network import Network
from simulator.processes import Processes, node_of, replaced
from simulator.world import Violation, World

HOLDER = "holder"


class WatchedTable(HeldItemTable[Any]):
    """What a holder has, and what it has given up before a channel's server has claimed it."""

    def __init__(self) -> None:
        super().__init__()
        self.given_up: set[int] = set()
        self._was_claimed: set[int] = set()
        self._loses = False

    def claim(self, keeper: str, numbers: Iterable[int]) -> None:
        numbers = list(numbers)
        self._was_claimed.update(numbers)
        super().claim(keeper, numbers)

    def drop(self, producer: str, number: int) -> None:
        self._give_up([number])
        super().drop(producer, number)

    def lose(self, process: str) -> list[int]:
        self._loses = True  # what it leaves may be claimed for a while
        try:
            return super().lose(process)
        finally:
            self._loses = False

    def expire(self, numbers: Iterable[int]) -> None:
        numbers = list(numbers)
        self._give_up([] if self._loses else numbers)
        super().expire(numbers)

    def _give_up(self, numbers: Iterable[int]) -> None:
        self.given_up.update(number for number in numbers if number not in self._was_claimed)


class FoundHolders(Starter):
    """Finds the holder of a process's node."""

    def __init__(self, holders: Holders, host: Host) -> None:
        self._holders = holders
        self._host = host
        self._draw = host.world.randomness("finds holders", host.name)

    def find_holder(self, found: Promise[Endpoint]) -> None:
        """Find it, in a while."""
        self._host.later(self._draw.randrange(5_000), self._find, found)

    def _find(self, found: Promise[Endpoint]) -> None:
        endpoint = self._holders.of(self._host.name)
        if endpoint is None:
            found.set_exception(CommError("no process holds items of this node"))
        else:
            found.set_result(endpoint)


class Holders:
    """The holders of all nodes, those that are gone too.

    Args:
        world: the clock.
        network: between them and the others.
        machines: makes what they have.
        processes: where they run.
    """

    def __init__(self, world: World, network: Network, machines: Machines, processes: Processes) -> None:
        self._make = (world, network, machines)
        self._processes = processes
        self._present: dict[int, Host] = {}
        self.tables: dict[str, WatchedTable] = {}

    def start(self, node: int) -> Host:
        """Start the holder of a node."""
        world, network, machines = self._make
        host = Host(world, network, f"{HOLDER}{node}.{len(self.tables)}", machines)
        kind: Any = machines.holder
        table = WatchedTable if kind is HeldItemTable else type("Watched", (WatchedTable, kind), {})
        with replaced(node_holder, "HeldItemTable", table):
            self.tables[host.name] = NodeHolder(self._processes.of(host).session)._book  # type: ignore[assignment]
        self._present[node] = host
        return host

    def of(self, name: str) -> Endpoint | None:
        """How the holder of a process's node is reached, if it lives."""
        host = self._present[node_of(name)]
        return self._processes.of(host).messenger.endpoint if host.alive else None

    def check_lost(self, server: str, items: Iterable[RemoteItem]) -> None:
        """Check that items of which the server says so are lost."""
        here = self._processes.named(server)
        for item in items:
            name = self._processes.names.processes[item.at.holder.process_id]
            holder = self._processes.named(name)
            # Who waits for an answer hears that its process is gone before others do.
            parted = holder.id in here.messenger.peers.lost or server in holder.given_up
            if holder.host.alive and not parted and item.at.number not in self.tables[name].given_up:
                raise Violation(f"{name} has forgotten item {item.at.number} of its own", (name,))

    def check_rest(self) -> None:
        """Check, when the world is at rest and nobody needs anything, that nothing is kept."""
        for name, table in self.tables.items():
            if self._processes.named(name).host.alive and len(table):
                raise Violation(f"{name} keeps {len(table)} items that nobody needs", (name,))
