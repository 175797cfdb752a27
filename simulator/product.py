"""A channel of the product: its server and its clients, in processes on a simulated kernel."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rlinf_scheduler.channel import control_wire, operation, server, spec
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.connections import ChannelConnections
from rlinf_scheduler.channel.features import FEATURES, successors
from rlinf_scheduler.channel.spec import HOLDS_CHANNEL, HOLDS_NODE, ChannelRef, ChannelSpec
from rlinf_scheduler.channel.starting import Starter
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.queueing.dead_letters import MoveDead
from rlinf_scheduler.queueing.messages import Reason
from rlinf_scheduler.queueing.producers import GroupProducers, Producers
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from rlinf_scheduler.session.membership import Draining
from simulator.checkpoints import Checkpoints
from simulator.cluster import Cluster, Part
from simulator.groups import GROUP, ResizedGroup
from simulator.holders import FoundHolders
from simulator.host import Host
from simulator.ledger import Ledger
from simulator.processes import ProductProcess, replaced
from simulator.producer_oracle import GroupProducerOracle, ProducerOracle
from simulator.product_users import ChannelUsers
from simulator.ranks import Rank
from simulator.script import BATCHES, SHARDS, TAP, Call, Fault, Script
from simulator.threads import running
from simulator.watched import WatchedGroupProducers, WatchedProducers, WatchedState
from simulator.world import Violation

AUDITOR = 1_000_000
"""The first number of the calls that empty the queues at the end."""
RANKS = 2_000_000
"""The first number of the calls of ranks."""


class StorySpec(ChannelSpec, frozen=True):
    """A channel with the credit that its story says.

    Attributes:
        story_credit_bytes: what a client may send to a queue unasked.
    """

    story_credit_bytes: int = 0

    @property
    def credit_bytes(self) -> int:
        """How much of a client's may lie at the server before it was accepted, for each queue; 0 is unbounded."""
        return self.story_credit_bytes

    @property
    def inline_bytes(self) -> int | None:
        """Items that are larger, and travel as bytes, are announced; None if none is."""
        return 64 << 10


class ProductPart(Part):
    """One channel of the product: its server in the process of its own, and a client in every other.

    Attributes:
        names: what the books call processes and calls.
        ledger: the books.
    """

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
        self.cluster = cluster
        self.script = script
        self.names = cluster.processes.names
        self._tickets = itertools.count(1)
        operation._next_ticket = self._next_ticket
        self.ledger = Ledger(
            script.sole_consumers,
            maxsize=script.maxsize,
            total_bytes=script.total_bytes,
            credit_bytes=script.credit_bytes,
            max_attempts=script.max_attempts,
            max_leased=script.max_leased,
            priority_wait_us=script.priority_wait_us,
        )
        self.places = (
            GroupProducerOracle(GROUP, script.successor_us)
            if script.group_produces
            else ProducerOracle(script.producers, script.successor_us)
        )
        self._num_steps = itertools.count(RANKS)
        self._num_shards = script.plan.num_shards if script.plan is not None else 0
        self._group = ResizedGroup(cluster, self._num_shards) if script.is_resized else None
        if script.plan is not None:
            self.ledger.divide(SHARDS, script.plan, self._ranks)
        self._users: dict[str, ChannelUsers] = {}
        self.state: ChannelState | None = None
        self._spec = self._make_spec()
        self._start_server()
        self._checkpoints = Checkpoints(cluster, script, self.ledger, self._spec, self._users)

    def _next_ticket(self) -> int:
        ticket, thread = next(self._tickets), running()
        if thread is not None and thread.number >= 0:  # what it puts or gets anew has another one
            thread.ticket = ticket
            self.names.calls[thread.process.name, ticket] = thread.number
        return ticket

    # -- processes -----------------------------------------------------------------------------------

    def _make_spec(self, **options: Any) -> StorySpec:
        wait_us = self.script.priority_wait_us
        return StorySpec(
            "channel",
            maxsize=self.script.maxsize,
            max_bytes=self.script.total_bytes,
            max_attempts=self.script.max_attempts,
            max_leased=self.script.max_leased,
            channel_id="c",
            producers=self.script.producers,
            producer_group=GROUP if self.script.group_produces else "",
            successor_s=self.script.successor_us / 1e6,
            priority_wait_s=None if wait_us is None else wait_us / 1e6,
            story_credit_bytes=self.script.credit_bytes,
            holds=HOLDS_NODE if self.script.has_holders else HOLDS_CHANNEL,
            **options,
        )

    def _start_server(self) -> None:
        with self.watched():
            server.ChannelServer(self._server_process.messenger, self._spec, FEATURES)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within, a server that is made tells the books of every event."""
        with (
            replaced(spec, "ChannelState", self._make_state),
            replaced(successors, "Producers", self._make_producers),
            replaced(successors, "GroupProducers", self._make_group_producers),
        ):
            yield

    @property
    def _server_process(self) -> ProductProcess:
        """The process that holds the channel."""
        return self.cluster.processes.of(self.cluster.channel_host)

    @property
    def _own(self) -> ChannelConnection:
        """The connection of a process that nothing happens to but to the channel."""
        return self._connection(self._server_process)

    def _told(self) -> tuple[Any, Any, Any, Any]:
        """What hears of every event: world, ledger, places and names."""
        return self.cluster.world, self.ledger, self.places, self.names

    def _make_state(self, *args: Any, **bounds: Any) -> ChannelState:
        broken: Any = self.cluster.machines.server
        kind = WatchedState if broken is ChannelState else type("Watched", (WatchedState, broken), {})
        about = (*self._told(), self.cluster.holders, self.script.successor_us)
        self.state = kind(*about, *args, **bounds)
        return self.state

    def _make_producers(self, num_places: int) -> Producers:
        broken: Any = self.cluster.machines.producers
        kind = WatchedProducers if broken is Producers else type("Watched", (WatchedProducers, broken), {})
        world, _, places, names = self._told()
        made: Producers = kind(world, places, names, num_places)
        return made

    def _make_group_producers(self, group: str) -> GroupProducers:
        broken: Any = self.cluster.machines.group_producers
        watched = WatchedGroupProducers
        kind = watched if broken is GroupProducers else type("Watched", (watched, broken), {})
        world, _, places, names = self._told()
        made: GroupProducers = kind(world, places, names, group)
        return made

    def _connection(self, process: ProductProcess) -> ChannelConnection:
        ref = ChannelRef(self._spec, self._server_process.messenger.endpoint)
        session = process.session
        # Made by the I/O thread where it is asked for; here it is there before that begins.
        holders = self.cluster.holders
        if holders is not None and session.fact(Starter) is None:
            session.provide(Starter, FoundHolders(holders, process.host))
        return session.service(ChannelConnections).to(ref)

    def start(self, host: Host, number: int) -> None:
        """A process has started."""
        process = self.cluster.processes.of(host)
        self._users[host.name] = ChannelUsers(
            host,
            process.messenger,
            self._connection(process),
            self.ledger,
            self.names,
            self.script,
            partial(self._hindered_us, host),
        )
        if number in self._ranks:
            self._start_rank(host, number)

    @property
    def _ranks(self) -> Sequence[int]:
        """The numbers of those who divide the queue of the ranks."""
        return range(self._num_shards) if self._group is None else self._group.members.ranks

    def _start_rank(self, host: Host, number: int, *, calm: bool = False) -> None:
        members = None if self._group is None else self._group.members
        Rank(self._users[host.name], number, self._next_number, members, calm=calm)

    def resize(self, fault: Fault) -> None:
        """The rank of a process leaves the group, and its process ends after a while; or it comes."""
        host, number = self.cluster.current[fault.client], fault.client
        before = self._users[host.name].ranks.get(number)
        if self._group is None or (number not in self._ranks and before is not None and not before.over):
            return  # a number is not used again before its process has gone
        was_rank = number in self._ranks
        if self._group.resize(number) and not was_rank and host.alive:
            self._start_rank(host, number)
        elif number not in self._ranks:
            world = self.cluster.world
            host.later(0, self._drain_process, self.cluster.processes.of(host))
            world.schedule(world.now_us + fault.for_us, None, self._end_drain, (host, number))

    @staticmethod
    def _drain_process(process: ProductProcess) -> None:
        """A process is to take no more work: its leases end, those that wait, too."""
        began = process.session.service(Draining).began
        if not began.done():
            began.set_result("its rank leaves")

    def _end_drain(self, host: Host, number: int) -> None:
        if self.cluster.current[number] is host:
            self.cluster.kill(number, 1_000)

    def _next_number(self) -> int:
        return next(self._num_steps)

    def call(self, host: Host, step: Call) -> None:
        """A user calls in a process."""
        self._users[host.name].call(step)

    def died(self, host: Host) -> None:
        """A process has died."""
        self.ledger.dies(host.name)
        if host.name in self._users:
            self._users[host.name].end()

    def close(self) -> None:
        """What can be closed is closed."""
        self._own.requests.begin(control_wire.Close(), control_wire.Done, 5.0)

    @property
    def _now_us(self) -> int:
        """The time of the channel."""
        return self.cluster.world.now_us

    def _hindered_us(self, host: Host) -> int:
        """How long a process and the server could not do or say anything, all in all."""
        pair = frozenset((host.name, self.cluster.server.name))
        paused_us = host.paused_us + self.cluster.server.paused_us
        return paused_us + self.cluster.network.unreachable_us.get(pair, 0)

    # -- checks --------------------------------------------------------------------------------------

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""
        server_lives = self._server_process.host.alive
        self.cluster.processes.check_rest()
        for users in self._users.values():
            users.check_nothing_is_open()
        if server_lives:
            self._check_nobody_waits_in_vain()
            if self._group is not None:  # who was out of reach may not have heard of it
                self._group.tell()
                yield
            auditor = self._start_auditor()
            if self.ledger.has_subscription:
                auditor.call(Call(0, AUDITOR - 1, -1, "subscribe", TAP, 0, 0, None, blocking=False, drop=""))
                yield
            self._move_dead(again=True)
            yield
            self.close()
            self._own.requests.begin(control_wire.EndQueue(SHARDS), control_wire.Done, 5.0)
            yield
            yield from self._drain(auditor)
            self._move_dead(again=False)
            yield
        for users in self._users.values():
            if users.host.alive:
                users.check_calls()
        self.ledger.check_end(drained=server_lives)
        self._checkpoints.check_files()
        yield from self._check_holders()
        if server_lives:
            for host in self.cluster.hosts.values():
                if host.alive and host.name in self._users:
                    self.cluster.bury(host)
            yield
            self._check_nothing_is_left()
            yield from self._check_holders()

    def _check_holders(self) -> Iterator[None]:
        """Check that no holder has anything, when what left the queues was released."""
        if self.cluster.holders is not None:
            world = self.cluster.world
            world.schedule(world.now_us + 2_000_000, None, world.note, ("world", "looks at holders"))
            yield
            self.cluster.holders.check_rest()

    def _start_auditor(self) -> ChannelUsers:
        """Start a process that nothing happens to, and that no other part knows."""
        cluster, name = self.cluster, "auditor of the product"
        host = cluster.hosts[name] = Host(cluster.world, cluster.network, name, cluster.machines)
        self.start(host, -1)
        return self._users[name]

    def _move_dead(self, *, again: bool) -> None:
        """Put all dead letters back, or drop them."""

        def move(listed: Promise[Any]) -> None:
            for letter in listed.result(0).head.letters:
                self._own.requests.begin(MoveDead(letter.number, again), control_wire.Done, 5.0)

        asked = self._own.requests.begin(control_wire.ListDead(None), control_wire.DeadNotes, 5.0)
        asked.add_done_callback(move)

    def _drain(self, auditor: ChannelUsers) -> Iterator[None]:
        """Let a process that nothing has happened to take what is left."""
        number = AUDITOR
        for index in self._ranks:
            # Who has no rank any more is succeeded once more.
            self._start_rank(auditor.host, index, calm=True)
            yield
        kinds = ("put", "get", "group", "peek", "lease", *BATCHES)
        queues = dict.fromkeys(step.queue for step in self.script.calls if step.kind in kinds)
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
        for depth in depths_of(self._known_state.queues):
            if depth.num_delivering and not self._known_state.queues.closed:
                message = f"{depth.name} has a delivery that nobody settles"
                raise Violation(message, (depth.name,))
        self.ledger.check_no_batch_ripens_for_ever()
        self.ledger.check_no_bytes_are_awaited()
        self.ledger.leases.check_rest()
        now_us, ended = self._now_us, self._known_state.queues.has_ended("a queue of nobody")
        self.places.check_rest(now_us, ended=ended)

    def _check_nothing_is_left(self) -> None:
        left = depths_of(self._known_state.queues)
        if left:
            message = f"the server keeps {left} when everybody has gone"
            raise Violation(message)

    @property
    def _known_state(self) -> ChannelState:
        if self.state is None:
            message = "the server has no state"
            raise Violation(message)
        return self.state
