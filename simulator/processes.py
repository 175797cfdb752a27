"""Processes that run the product: its messenger on a simulated kernel, and a session on that."""

from __future__ import annotations

import itertools
import logging
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from rlinf_scheduler.channel import operation, shortcut, slot
from rlinf_scheduler.channel.connections import ChannelConnections
from rlinf_scheduler.channel.features import shortcuts
from rlinf_scheduler.comm.directory import DirectoryClient, DirectoryServer
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.transport import identity
from rlinf_scheduler.comm.transport.peer_session import CONNECT_TIMEOUT_S, GRACE_S, OVERDUE_S, State
from rlinf_scheduler.durable import opening
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import Draining, MembersNotices
from rlinf_scheduler.weights.index_service import IndexService
from simulator.host import Host
from simulator.kernel import Kernel, OwnedDatagrams, SimulatedKey
from simulator.machines import Machines
from simulator.network import Network
from simulator.script import NUM_NODES
from simulator.threads import end_all, running
from simulator.watched import Names
from simulator.world import Violation, World

# A process need not find that it was stopped for less than this.
NOT_LONG_S = CONNECT_TIMEOUT_S + OVERDUE_S


class SimulatedSession(Session):
    """The session of a simulated process: it has a messenger, a directory and services, and knows of no job."""

    def __init__(self, messenger: Messenger, home: Endpoint) -> None:
        self.messenger = messenger
        self.name = messenger.name
        self.home = home
        self.directory = DirectoryClient(messenger, home)
        self.failure = ""
        self._closed = False
        self._closers = deque()
        self._first_closers = deque()
        self._fork_callbacks = deque()
        self._services = {Draining: Draining(self)}
        self.members = MembersNotices(messenger, home)


class ProductProcess:
    """What runs of the product in one process.

    Attributes:
        session: its session.
        messenger: its messenger.
        given_up: the names of processes that it holds for dead.
    """

    def __init__(self, processes: Processes, host: Host, messenger: Messenger, home: Endpoint) -> None:
        self.host = host
        self.messenger = messenger
        self.session = SimulatedSession(messenger, home)
        self.given_up: dict[str, int] = {}
        self._processes = processes
        self.messenger.on_peer_lost(self._on_lost)

    @property
    def id(self) -> str:
        """Its process id."""
        return self.messenger.endpoint.process_id

    def _on_lost(self, process_id: str) -> None:
        name = self._processes.names.processes[process_id]
        self.host.world.note(self.host.name, "gives up", name)
        self.given_up[name] = self.host.world.now_us
        self._processes.check_given_up(self, name)


class Processes:
    """What runs of the product in the processes of a cluster: one messenger each, whatever uses it.

    Args:
        world: where they are.
        network: what lies between machines.
        machines: the machines under test.
        home: the process that keeps the directory.
        on_nodes: whether each process is of one of the nodes, whose processes share memory.

    Attributes:
        kernel: the kernels of all machines.
        names: what the books call processes and calls.
        home: the process that keeps the directory,
        index: and that of weights.
    """

    index: IndexService

    def __init__(
        self, world: World, network: Network, machines: Machines, home: Host, *, on_nodes: bool = False
    ) -> None:
        self.kernel = Kernel(world, network, machines.session)
        self.names = Names()
        self._world = world
        self._network = network
        self.home = home
        self._draw = world.randomness("machines")
        self._share_of_home = self._draw.choice((0.2, 0.5, 1.0))
        self._on_nodes = on_nodes
        self._has_memory = on_nodes or self._draw.random() < 0.5
        self._processes: dict[str, ProductProcess] = {}

    def of(self, host: Host) -> ProductProcess:
        """Return what runs in a process, which has begun when it is first asked for."""
        return self._processes.get(host.name) or self.start(host, self._draw_machine(host))

    def named(self, name: str) -> ProductProcess:
        """Return what runs in the process of a name, which has begun."""
        return self._processes[name]

    def start(self, host: Host, machine: str) -> ProductProcess:
        """Start what runs in a process of a machine."""
        messenger = self.kernel.start(host, machine, has_memory=self._has_memory)
        home = messenger.endpoint if host is self.home else self.of(self.home).messenger.endpoint
        process = self._processes[host.name] = ProductProcess(self, host, messenger, home)
        self.names.processes[process.id] = host.name
        # Made by the I/O thread where it is asked for; here it is there before that begins.
        process.session.provide(ChannelConnections, ChannelConnections(process.session))
        if host is self.home:
            DirectoryServer(messenger)
            self.index = IndexService(messenger)
        return process

    @property
    def is_calm(self) -> bool:
        """Nothing was paused, cut or held up yet, and nobody has died."""
        return self.is_connected and all(process.host.alive for process in self._processes.values())

    @property
    def is_connected(self) -> bool:
        """Nothing was paused, cut or held up yet."""
        paused_us = [process.host.paused_us for process in self._processes.values()]
        return not self._network.unreachable_us and not any(paused_us)

    def _draw_machine(self, host: Host) -> str:
        # Some share a machine with the server, some with each other, and some are alone.
        if self._on_nodes and (host is not self.home or self._draw.random() < 0.5):
            return f"node {node_of(host.name)}"
        if host is self.home or self._draw.random() < self._share_of_home:
            return "machine"
        return self._draw.choice(("machine 0", "machine 1", *2 * [f"machine of {host.name}"]))

    def machine_of_id(self, process_id: str) -> str:
        """Return the machine on which a process runs."""
        return self.kernel.machine_of(self.names.processes[process_id])

    # -- checks --------------------------------------------------------------------------------------

    def check_given_up(self, process: ProductProcess, name: str) -> None:
        """Check that a process that is given up has ended, was out of reach for too long, or has given this one up.

        Time in which this one was stopped for long does not count.
        """
        own, other = process.host, self._processes[name]
        pair = frozenset((own.name, name))
        if not other.host.alive or own.name in other.given_up:
            return
        apart = self.kernel.machine_of(own.name) != self.kernel.machine_of(name)
        unreachable_us = self._network.unreachable_us.get(pair, 0) if apart else 0
        own_us = min(own.paused_us, int(NOT_LONG_S * 1e6))
        if unreachable_us + own_us + other.host.paused_us < GRACE_S * 1e6:
            self._world.note(own.name, "could reach", name)
            raise Violation(f"{own.name} gives {name} up, which could be reached", (own.name, name))

    def check_rest(self) -> None:
        """Check that nothing is under way when the world rests."""
        for name, process in self._processes.items():
            for transport in process.messenger.peers.transports() if process.host.alive else ():
                session, peer = transport.session, self.names.processes[transport.endpoint.process_id]
                if session.state is not State.DEAD and (
                    session.state is not State.CONNECTED or session.num_unacknowledged
                ):
                    rest = f"{session.num_unacknowledged} messages for {peer}, {session.state.value}"
                    raise Violation(f"{name} rests with {rest}", (name, peer))


def node_of(name: str) -> int:
    """Return the node of a process, by its name."""
    digits = name.strip("abcdefghijklmnopqrstuvwxyz ").partition(".")[0]
    return int(digits) % NUM_NODES if digits.isdecimal() else 0


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Within, a module has something else under a name."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


class _Keys:
    """Keys that no other one is like, the same in each telling."""

    def __init__(self) -> None:
        self._number = itertools.count(1 << 40)

    def randbits(self, _num_bits: int) -> int:
        """Return the next one."""
        return next(self._number)


class _Errors(logging.Handler):
    """What the product logs as an error breaks the story that this thread tells; other threads tell none."""

    def __init__(self) -> None:
        super().__init__()
        self._teller = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if threading.get_ident() != self._teller:
            return
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, Violation):
            raise error
        about = ""
        if error is not None:
            where = traceback.extract_tb(error.__traceback__)[-1]
            about = f": {where.name} raises {error!r} in line {where.lineno} of {where.filename}"
        raise Violation(f"the product logs an error: {record.getMessage()}{about}")


@contextmanager
def errors_are_found() -> Iterator[None]:
    """Within, the product logs to nobody; what it logs as an error breaks the story, and so do waits and threads."""
    logger, handler = logging.getLogger("rlinf_scheduler"), _Errors()
    before = logger.level, logger.propagate
    wait, start, teller = Promise.wait, threading.Thread.start, threading.get_ident()

    def refuse_to_wait(promise: Promise[Any], timeout_s: float | None = None) -> bool:
        thread = running()
        if thread is not None:
            return thread.wait(promise, timeout_s)
        if timeout_s == 0 or promise.done() or threading.get_ident() != teller:
            return wait(promise, timeout_s)
        raise Violation("something waits that is to be an event of its own")

    def refuse_to_start(thread: threading.Thread) -> None:
        if threading.get_ident() != teller:
            return start(thread)
        raise Violation(f"a simulated process starts the thread '{thread.name}'")

    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        with (
            replaced(Promise, "wait", refuse_to_wait),
            replaced(threading.Thread, "start", refuse_to_start),
            replaced(shortcut, "MIN_OPERATIONS", 1),
            replaced(slot, "secrets", _Keys()),
            replaced(opening, "trim_heap", lambda: None),
            # One telling is as the other, also in how many bytes a ticket takes.
            replaced(operation, "_next_ticket", itertools.count(1).__next__),
            replaced(shortcuts, "_next_number", itertools.count(1).__next__),
            replaced(identity, "Ed25519PublicKey", SimpleNamespace(from_public_bytes=SimulatedKey)),
            replaced(shortcut, "OwnedSocket", OwnedDatagrams),
            # All users' threads are this one, which would keep what is its own, and the world around that, for ever.
            replaced(shortcut, "threading", SimpleNamespace(local=SimpleNamespace)),
            replaced(shortcuts, "OwnedSocket", OwnedDatagrams),
        ):
            yield
    finally:
        end_all()
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
