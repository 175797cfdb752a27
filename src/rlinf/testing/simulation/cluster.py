"""The processes of a simulated cluster, what breaks in it, and the parts that run there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from rlinf.testing.simulation.host import Host
from rlinf.testing.simulation.machines import Machines
from rlinf.testing.simulation.network import Network
from rlinf.testing.simulation.script import SERVER_NUMBER, Call, Fault, Script
from rlinf.testing.simulation.world import World


class Part(Protocol):
    """Something that runs in a cluster: a further one is a file of its own.

    Attributes:
        kinds: of the calls that are its.
    """

    kinds: tuple[str, ...]

    def start(self, host: Host, number: int) -> None:
        """A process has started."""

    def call(self, host: Host, step: Call) -> None:
        """A user calls in a process."""

    def died(self, host: Host) -> None:
        """A process has died."""

    def close(self) -> None:
        """What can be closed is closed."""

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""


class Cluster:
    """One server process and numbered others; who takes a dead one's place has its number and another name.

    Attributes:
        server: the process that holds what has one place.
        hosts: all processes there ever were, by name.
        current: the present process of each number.
    """

    def __init__(self, world: World, script: Script, machines: Machines) -> None:
        self.world = world
        self.script = script
        self.machines = machines
        self.network = Network(world)
        self.server = Host(world, self.network, "server", machines)
        self.hosts: dict[str, Host] = {"server": self.server}
        self.current: dict[int, Host] = {SERVER_NUMBER: self.server}
        self._parts: list[Part] = []

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
                self._pause(host if fault.kind == "pause" else self.server, fault.for_us)
            case "die":
                self._kill(host, fault)
            case "kill server":
                self._bury(self.server)
            case "close":
                for part in self._parts:
                    self.server.later(0, part.close)

    def _pause(self, host: Host, for_us: int) -> None:
        if host.alive:
            host.pause()
            self.world.schedule(self.world.now_us + for_us, None, host.resume)

    def _kill(self, host: Host, fault: Fault) -> None:
        if host.alive:
            self._bury(host)
            successor = (fault.client, f"client{fault.client}.{len(self.hosts)}")
            self.world.schedule(self.world.now_us + fault.for_us, None, self._start_again, successor)

    def _start_again(self, number: int, name: str) -> None:
        self.start(number, name)

    def _bury(self, host: Host) -> None:
        host.die()
        self.network.buried(host.name)
        for part in self._parts:
            part.died(host)
