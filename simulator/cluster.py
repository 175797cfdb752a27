"""The processes of a simulated cluster, what breaks in it, and the parts that run there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from simulator.holders import Holders
from simulator.host import Host
from simulator.machines import Machines
from simulator.network import Network
from simulator.processes import Processes
from simulator.script import FIRST_HOLDER, NUM_NODES, SERVER_NUMBER, Call, Fault, Script
from simulator.world import World


class Part:
    """Something that runs in a cluster: a further one is a file of its own, and does what it has to of all this.

    Attributes:
        kinds: of the calls that are its.
    """

    kinds: tuple[str, ...] = ()

    def start(self, host: Host, number: int) -> None:
        """A process has started."""

    def call(self, host: Host, step: Call) -> None:
        """A user calls in a process."""

    def died(self, host: Host) -> None:
        """A process has died."""

    def restarted(self) -> None:
        """Another process holds now what the one that died has held, if that is durable."""

    def resize(self, fault: Fault) -> None:
        """The group that divides a queue is to have other ranks."""

    def close(self) -> None:
        """What can be closed is closed."""

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""
        yield from ()


class Cluster:
    """One server process and numbered others; who takes a dead one's place has its number and another name.

    Attributes:
        server: the process that holds what has one place.
        channel_host: the process that holds the channel: the server, or, of a durable one, its successor.
        processes: what runs of the product in each.
        hosts: all processes there ever were, by name.
        current: the present process of each number.
        holders: the processes that hold items of nodes; None in a story without.
    """

    def __init__(self, world: World, script: Script, machines: Machines) -> None:
        self.world = world
        self.script = script
        self.machines = machines
        self.network = Network(world)
        self.server = Host(world, self.network, "server", machines)
        self.channel_host = self.server
        self.hosts: dict[str, Host] = {"server": self.server}
        home = self.server
        if script.durable:  # who finds the successors of a process is another one
            home = self.hosts["home"] = Host(world, self.network, "home", machines)
        self.processes = Processes(world, self.network, machines, home, on_nodes=script.has_holders)
        self.current: dict[int, Host] = {SERVER_NUMBER: self.server}
        self._parts: list[Part] = []
        self.holders: Holders | None = None
        if script.has_holders:
            self.holders = Holders(world, self.network, machines, self.processes)
            for node in range(NUM_NODES):
                self._start_holder(node)

    def run(self, make_parts: tuple[Callable[[Cluster, Script], Part], ...]) -> None:
        """Tell the story.

        Raises:
            Violation: a promise was broken.
        """
        self._parts = [make(self, self.script) for make in make_parts]
        for number in range(self.script.num_clients):
            self.start(number, f"client{number}")
        for step in self.script.steps:
            act = self._call if isinstance(step, Call) else self._break
            self.world.schedule(step.at_us, None, act, (step,))
        self.world.run()
        self._come_to_rest()
        for part in self._parts:
            for _ in part.finish():
                self.world.run()

    def start(self, number: int, name: str) -> Host:
        """Start a process."""
        host = Host(self.world, self.network, name, self.machines)
        self.hosts[name] = self.current[number] = host
        for part in self._parts:
            part.start(host, number)
        return host

    def _start_holder(self, node: int) -> None:
        if self.holders is not None:
            host = self.holders.start(node)
            self.hosts[host.name] = self.current[FIRST_HOLDER - node] = host

    def _come_to_rest(self) -> None:
        for host in self.hosts.values():
            host.resume()
        self.world.run()
        for host in self.hosts.values():
            if host.alive:
                host.sessions.check_rest()

    def _call(self, step: Call) -> None:
        host = self.current[step.client]
        for part in self._parts:
            if step.kind in part.kinds and host.alive:
                host.later(0, part.call, host, step)

    def _break(self, fault: Fault) -> None:
        host, other = self.current[fault.client], self.current[fault.other]
        match fault.kind:
            case "cut" if host is not other:
                self.network.cut(host.name, other.name, fault.for_us)
            case "stall" if host is not other:
                self.network.stall(host.name, other.name, fault.for_us)
            case "pause" | "pause server":
                self._pause(host if fault.kind == "pause" else self.channel_host, fault.for_us)
            case "die":
                self.kill(fault.client, fault.for_us)
            case "lose node" if host.alive:
                self.bury(host)
                node = FIRST_HOLDER - fault.client
                self.world.schedule(self.world.now_us + fault.for_us, None, self._start_holder, (node,))
            case "kill server":
                self._kill_server(fault)
            case "resize" | "close":
                for part in self._parts:
                    part.resize(fault) if fault.kind == "resize" else self.channel_host.later(0, part.close)

    def _pause(self, host: Host, for_us: int) -> None:
        if host.alive:
            host.pause()
            self.world.schedule(self.world.now_us + for_us, None, host.resume)

    def _kill_server(self, fault: Fault) -> None:
        if not self.script.durable:
            self.bury(self.server)
        elif self.channel_host.alive:
            self.processes.of(self.channel_host)  # no part may have asked for what runs there
            self.processes.kernel.disks[self.channel_host.name].doom(
                partial(self.fail_over, self.channel_host, fault.for_us),
                with_machine=self.script.survives == "machine",
            )

    def fail_over(self, host: Host, after_us: int) -> None:
        """Let the process of a durable channel die, and another one hold it after a while."""
        if host.alive:
            self.bury(host)
            self.world.schedule(self.world.now_us + after_us, None, self._start_server_again)

    def _start_server_again(self) -> None:
        name = f"server.{len(self.hosts)}"
        host = Host(self.world, self.network, name, self.machines)
        self.channel_host = self.hosts[name] = self.current[SERVER_NUMBER] = host
        for part in self._parts:
            part.restarted()

    def kill(self, number: int, for_us: int) -> None:
        """Let a process die, and another one take its place after a while."""
        host = self.current[number]
        if host.alive:
            self.bury(host)
            successor = (number, f"client{number}.{len(self.hosts)}")
            self.world.schedule(self.world.now_us + for_us, None, self._start_again, successor)

    def _start_again(self, number: int, name: str) -> None:
        self.start(number, name)

    def bury(self, host: Host) -> None:
        """Let a process die."""
        host.die()
        self.network.buried(host.name)
        for part in self._parts:
            part.died(host)
