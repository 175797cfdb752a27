"""A channel as a part of a simulated cluster, and what must hold when all is over."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.testing.simulation.channel_client import ChannelClient
from rlinf.testing.simulation.channel_server import ChannelServer
from rlinf.testing.simulation.cluster import Cluster
from rlinf.testing.simulation.host import Host
from rlinf.testing.simulation.ledger import Ledger
from rlinf.testing.simulation.script import Call, Script
from rlinf.testing.simulation.world import Violation

AUDITOR = 1_000_000
"""The first number of the calls that empty the queues at the end."""


class ChannelPart:
    """One channel: its server in the process of its own, and a client in every other."""

    kinds: tuple[str, ...] = ("put", "get", "batch")

    def __init__(self, cluster: Cluster, script: Script) -> None:
        self._cluster = cluster
        self._script = script
        self._ledger = Ledger(script.sole_consumers, maxsize=script.maxsize, credit_bytes=script.credit_bytes)
        self._server = ChannelServer(cluster.server, self._ledger, cluster.machines, script.maxsize)
        self._clients: dict[str, ChannelClient] = {}

    def start(self, host: Host, number: int) -> None:
        """See `Part`."""
        del number
        client = ChannelClient(
            host, self._ledger, self._cluster.machines, self._script.credit_bytes, self._server
        )
        self._clients[host.name] = client

    def call(self, host: Host, step: Call) -> None:
        """See `Part`."""
        self._clients[host.name].call(step)

    def died(self, host: Host) -> None:
        """See `Part`."""
        self._ledger.dies(host.name)
        self._server.died(host.name)

    def close(self) -> None:
        """See `Part`."""
        self._server.close()

    def finish(self) -> Iterator[None]:
        """See `Part`."""
        server_lives = self._cluster.server.alive
        if server_lives:
            self._check_nobody_waits_in_vain()
            self._server.close()
            yield
            yield from self._drain()
        for client in self._clients.values():
            if client.host.alive:
                client.check_calls()
                if client.state.num_open:
                    message = f"{client.name} still knows of {client.state.num_open} operations"
                    raise Violation(message, (client.name,))
        self._ledger.check_end(drained=server_lives)
        if server_lives:
            self._check_nothing_is_left()

    def _drain(self) -> Iterator[None]:
        """Let a process that nothing has happened to take what is left."""
        auditor = self._clients[self._cluster.start(-1, "auditor").name]
        number = AUDITOR
        for queue in {step.queue: None for step in self._script.calls if step.kind in self.kinds}:
            outcome = "taken"
            while outcome == "taken":
                auditor.call(Call(0, number, -1, "get", queue, 0, 0, None, blocking=False, drop=""))
                yield
                outcome = auditor.calls[number].outcome
                number += 1

    def _check_nobody_waits_in_vain(self) -> None:
        state = self._server.state
        for depth in state.depths():
            if depth.num_delivering and not state.closed:
                message = f"{depth.name} has a delivery that nobody settles"
                raise Violation(message, (depth.name,))
            if depth.num_putters and not state.is_full(depth.name):
                message = f"{depth.name} has room, and {depth.num_putters} puts wait"
                raise Violation(message, (depth.name,))

    def _check_nothing_is_left(self) -> None:
        for name in self._clients:
            self._server.lost(name)
        left = self._server.state.depths()
        if left:
            message = f"the server keeps {left} when everybody has gone"
            raise Violation(message)
