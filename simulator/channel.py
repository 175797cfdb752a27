"""A channel as a part of a simulated cluster, and what must hold when all is over."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from rlinf_scheduler.queueing import Reason
from simulator.channel_client import ChannelClient
from simulator.channel_server import ChannelServer
from simulator.checkpoints import Checkpoints
from simulator.cluster import Cluster, Part
from simulator.durable import JournaledHost, SimulatedJournal, SimulatedReconnectingTransport
from simulator.host import Host
from simulator.ledger import Ledger
from simulator.ranks import Rank
from simulator.script import BATCHES, SHARDS, TAP, Call, Script
from simulator.world import Violation

AUDITOR = 1_000_000
"""The first number of the calls that empty the queues at the end."""
RANKS = 2_000_000
"""The first number of the calls of ranks."""


class _Quiet:
    """What checks nothing."""

    def __getattr__(self, _name: str) -> Any:
        return self

    def __call__(self, *_args: Any, **_options: Any) -> Any:
        return None


class ChannelPart(Part):
    """One channel: its server in the process of its own, and a client in every other."""

    kinds: tuple[str, ...] = (
        "put",
        "get",
        "group",
        "peek",
        *BATCHES,
        "end",
        "flush",
        "join",
        "leave",
        "lease",
        "subscribe",
        "unsubscribe",
    )

    def __init__(self, cluster: Cluster, script: Script) -> None:
        self._cluster = cluster
        self._script = script
        self._ledger = Ledger(
            script.sole_consumers,
            maxsize=script.maxsize,
            total_bytes=script.total_bytes,
            credit_bytes=script.credit_bytes,
            max_attempts=script.max_attempts,
            max_leased=script.max_leased,
            priority_wait_us=script.priority_wait_us,
            marks=not script.durable,
        )
        self._journal = (cluster.machines.journal or SimulatedJournal)()
        self._server = self._make_server()
        Checkpoints(self._server, self._ledger, cluster.machines, script)
        self._clients: dict[str, ChannelClient] = {}
        self._auditor: ChannelClient | None = None
        self._num_steps = itertools.count(RANKS)
        self._num_shards = script.plan.num_shards if script.plan is not None else 0
        if script.plan is not None:
            self._ledger.divide(SHARDS, script.plan)

    def start(self, host: Host, number: int) -> None:
        """A process has started."""
        client = ChannelClient(
            host,
            self._ledger,
            self._cluster.machines,
            self._script.credit_bytes,
            partial(self._reconnecting, host) if self._script.durable else None,
        )
        self._clients[host.name] = client
        if 0 <= number < self._num_shards:
            Rank(client, number, self._next_number)

    def _next_number(self) -> int:
        return next(self._num_steps)

    def call(self, host: Host, step: Call) -> None:
        """A user calls in a process."""
        self._clients[host.name].call(step)

    def died(self, host: Host) -> None:
        """A process has died."""
        self._ledger.dies(host.name)

    def restarted(self) -> None:
        """Another process holds now what the one that died has held, if that is durable."""
        believed = self._server.believe(None, None)
        self._server = self._make_server()
        # What it is told again was checked when it was told first.
        quiet: Any = _Quiet()
        self._server.believe(quiet, quiet)
        self._outside.recover(partial(self._server.believe, *believed))
        self._server.believe(*believed)
        self._server.check_state()
        self._outside.go_live()
        draw = self._cluster.world.randomness("restart", self._cluster.channel_host.name)
        for client in self._clients.values():
            client.host.later(draw.randrange(20_000), client.look)

    def _make_server(self) -> ChannelServer:
        cluster, host = self._cluster, self._cluster.channel_host
        if not self._script.durable:
            return ChannelServer(host, self._ledger, cluster.machines, self._script)
        self._outside = JournaledHost(host, self._journal, cluster.machines)
        if host is cluster.server:
            self._outside.go_live()
        return ChannelServer(self._outside, self._ledger, cluster.machines, self._script)

    def _reconnecting(self, host: Host, client: ChannelClient) -> SimulatedReconnectingTransport:
        return SimulatedReconnectingTransport(
            host, client, lambda: self._cluster.channel_host, self._cluster.machines
        )

    def close(self) -> None:
        """What can be closed is closed."""
        self._do("close")

    def _do(self, what: str, *args: Any) -> None:
        """Have the server do something that no client has asked for."""
        if self._script.durable:
            self._outside.note("does", what, *args)
        else:
            getattr(self._server, what)(*args)

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""
        server_lives = self._cluster.channel_host.alive
        if server_lives:
            self._check_nobody_waits_in_vain()
            if self._ledger.has_subscription:
                self._auditor = self._start_auditor()
                step = Call(0, AUDITOR - 1, -1, "subscribe", TAP, 0, 0, None, blocking=False, drop="")
                self._auditor.call(step)
                yield
            self._do("empty_dead_letters", True)
            self._do("close")
            self._do("end", SHARDS)
            yield
            yield from self._drain()
            self._do("empty_dead_letters", False)
            yield
        for client in self._clients.values():
            if client.host.alive:
                client.check_calls()
                if client.state.num_open:
                    message = f"{client.name} still knows of {client.state.num_open} operations"
                    raise Violation(message, (client.name,))
        self._ledger.check_end(drained=server_lives)
        if server_lives:
            self._check_nothing_is_left()

    def _start_auditor(self) -> ChannelClient:
        return self._clients[self._cluster.start(-1, "auditor").name]

    def _drain(self) -> Iterator[None]:
        """Let a process that nothing has happened to take what is left."""
        auditor = self._auditor or self._start_auditor()
        number = AUDITOR
        for index in range(self._num_shards):
            # Who has no rank any more is succeeded once more.
            Rank(auditor, index, self._next_number, calm=True)
            yield
        kinds = ("put", "get", "group", "peek", "lease", *BATCHES)
        queues = dict.fromkeys(step.queue for step in self._script.calls if step.kind in kinds)
        for queue in {**queues, TAP: None}:
            if queue == SHARDS:
                continue
            outcome = "taken"
            while outcome in ("taken", Reason.LOST.value):
                auditor.call(Call(0, number, -1, "get", queue, 0, 0, None, blocking=False, drop=""))
                yield
                outcome = auditor.calls[number].outcome
                number += 1

    def _check_nobody_waits_in_vain(self) -> None:
        state = self._server.state
        for depth in state.queues.depths():
            if depth.num_delivering and not state.queues.closed:
                message = f"{depth.name} has a delivery that nobody settles"
                raise Violation(message, (depth.name,))
        self._ledger.check_no_batch_ripens_for_ever()
        self._server.check_rest()

    def _check_nothing_is_left(self) -> None:
        for name in self._clients:
            self._server.lost(name)
        self._server.give_up_subscription()
        left = self._server.state.queues.depths()
        if left:
            message = f"the server keeps {left} when everybody has gone"
            raise Violation(message)
