"""A channel as a part of a simulated world: who uses it, what breaks, and what must hold when all is over."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.testing.simulation.channel_client import UNANSWERED_US, Client, UserCall
from rlinf.testing.simulation.channel_server import SERVER, Server
from rlinf.testing.simulation.ledger import Ledger
from rlinf.testing.simulation.machines import Machines
from rlinf.testing.simulation.network import Network
from rlinf.testing.simulation.script import NOWAIT, Call, Fault, Script
from rlinf.testing.simulation.world import Violation, World

# How much later than its deadline a call may end: an eighth of it, and the turn of a thread.
LATE_SHARE = 8
LATE_US = 1_000
AUDITOR = 1_000_000
"""The first number of the calls that empty the queues at the end."""


class ChannelPart:
    """One channel, its server and its clients."""

    def __init__(self, world: World, network: Network, script: Script, machines: Machines) -> None:
        self._world = world
        self._network = network
        self._script = script
        self._machines = machines
        self._ledger = Ledger(script.maxsize, script.credit_bytes, script.sole_consumers)
        self._server = Server(world, network, self._ledger, machines, script.maxsize)
        self._clients: list[Client] = []  # all there ever were
        self._current: dict[int, Client] = {}
        for number in range(script.num_clients):
            self._start(number, f"client{number}")
        for step in script.steps:
            world.schedule(step.at_us, None, self._act if isinstance(step, Call) else self._break, (step,))

    def finish(self) -> Iterator[None]:
        """End the story; the world comes to rest before the first step, and after each."""
        self._server.resume()
        for client in self._clients:
            client.resume()
        yield
        processes: tuple[Server | Client, ...] = (self._server, *self._clients)
        for process in processes:
            if process.alive:
                process.sessions.check_rest()
        if self._server.alive:
            self._check_nobody_waits_in_vain()
            self._server.close()
            yield
            yield from self._drain()
        self._check_calls()
        self._ledger.check_end(drained=self._server.alive)
        if self._server.alive:
            self._check_nothing_is_left()

    # -- the story -------------------------------------------------------------------------------

    def _start(self, number: int, name: str) -> None:
        client = Client(
            self._world, self._network, self._ledger, name, self._machines, self._script.credit_bytes
        )
        self._current[number] = client
        self._clients.append(client)

    def _act(self, step: Call) -> None:
        client = self._current[step.client]
        if client.alive:
            client.later(0, client.call, step)

    def _break(self, fault: Fault) -> None:
        client = self._current[fault.client]
        match fault.kind:
            case "cut":
                self._network.cut(client.name, SERVER, fault.for_us)
            case "stall":
                self._network.stall(client.name, SERVER, fault.for_us)
            case "pause" | "pause server":
                self._pause(client if fault.kind == "pause" else self._server, fault.for_us)
            case "die":
                self._kill(client, fault)
            case "kill server":
                self._server.die()
                self._network.buried(SERVER)
            case _:
                self._server.later(0, self._server.close)

    def _pause(self, process: Client | Server, for_us: int) -> None:
        if process.alive:
            process.pause()
            self._world.schedule(self._world.now_us + for_us, None, process.resume)

    def _kill(self, client: Client, fault: Fault) -> None:
        if client.alive:
            client.die()
            self._ledger.dies(client.name)
            self._network.buried(client.name)
            # Its successor is another process, with another name.
            name = f"client{fault.client}.{len(self._clients)}"
            self._world.schedule(self._world.now_us + fault.for_us, None, self._start, (fault.client, name))

    # -- the end ---------------------------------------------------------------------------------

    def _drain(self) -> Iterator[None]:
        """Let a process that nothing has happened to take what is left."""
        self._start(-1, "auditor")
        auditor = self._current[-1]
        queues = {step.queue: None for step in self._script.steps if isinstance(step, Call)}
        number = AUDITOR
        for queue in queues:
            while True:
                auditor.call(Call(0, number, -1, "get", queue, 0, 0, None, blocking=False, abandon=""))
                yield
                if auditor.calls[number].outcome != "taken":
                    break
                number += 1
            number += 1

    def _check_nobody_waits_in_vain(self) -> None:
        for depth in self._server.state.depths():
            if depth.num_delivering and not self._server.state.closed:
                message = f"{depth.name} has a delivery that nobody settles"
                raise Violation(message, (depth.name,))
            if depth.num_putters and not self._server.state.is_full(depth.name):
                message = f"{depth.name} has room, and {depth.num_putters} puts wait"
                raise Violation(message, (depth.name,))

    def _check_calls(self) -> None:
        for client in self._clients:
            if not client.alive:
                continue
            for number, call in client.calls.items():
                if not call.outcome:
                    message = f"{call.step.kind} {number} of {client.name} never ends"
                    raise Violation(message, (number,))
                _check_deadline(client, call)
            if client.state.num_open:
                message = f"{client.name} still knows of {client.state.num_open} operations"
                raise Violation(message, (client.name,))

    def _check_nothing_is_left(self) -> None:
        for client in self._clients:
            self._server.lost(client.name)
        left = self._server.state.depths()
        if left:
            message = f"the server keeps {left} when everybody has gone"
            raise Violation(message)


def _check_deadline(client: Client, call: UserCall) -> None:
    timeout_us = call.step.timeout_us
    if timeout_us is None:
        return
    limit_us = UNANSWERED_US if timeout_us == NOWAIT else timeout_us
    paused_us = client.paused_us - call.paused_us
    took_us = call.ended_us - call.began_us
    if took_us > limit_us + limit_us // LATE_SHARE + LATE_US + paused_us:
        message = f"{call.step.kind} {call.step.number} took {took_us} µs of {limit_us}"
        raise Violation(message, (call.step.number,))
