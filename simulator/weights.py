"""Weights of the product: a group of processes publishes them, each its shards, and all others fetch them.

The first rank is in the server's process, and is the only one in half of the stories. The others die, with replicas or
without, and have successors; a group may be launched anew. Whoever fetches gets what was the newest complete version
when it asked, or what is newer, as a whole and of one launch; each machine has it once.

In half of the stories a version changes few values of the one before: other machines make it of that. In some, what
has changed is damaged on its way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.replication import Key
from rlinf_scheduler.comm.replication.deltas import DELTA, NO_BASE, TOO_LONG, delta_of
from rlinf_scheduler.comm.replication.reading import NO_ROOM
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.devices import Devices
from rlinf_scheduler.errors import CommTimeout, PeerDied, PeerNotFound, WeightsError, WeightsReplaced
from rlinf_scheduler.weights import Weights
from rlinf_scheduler.weights.held import Slice
from rlinf_scheduler.weights.index import AHEAD
from rlinf_scheduler.weights.index import _keep as keep_of
from rlinf_scheduler.weights.records import Announce, PublishingRank
from rlinf_scheduler.weights.versions import DeltaChoice, Packed
from simulator.cluster import Cluster, Part
from simulator.handle_users import HandleCall, HandleUsers
from simulator.host import Host
from simulator.processes import ProductProcess
from simulator.script import Call, Script
from simulator.world import Violation, World

NAME = "policy"
# What fetches ask for that wait for the next version.
NEXT = "next"
# Smaller versions have no replicas.
NUM_VALUES = (10, 20_000, 120_000)
# A fetch of what is there takes less, as long as nothing goes wrong.
ENOUGH_US = 900_000
# A death is known everywhere after so long, where nothing is in the way.
SOON_US = 50_000
# No successor is started later than that.
LAST_US = 4_000_000
# A rank that is too far ahead looks again after so long, and then less and less often.
TURN_US, MAX_TURN_US = 5_000, 500_000
NUM_WAVES, FETCHES_OF_A_WAVE, NUM_ROUNDS, NUM_AUDITORS = 6, 2, 2, 4
WAVE = 3_000_000
"""The first number of the fetches in waves."""
# A version changes each value, or one of so many.
SPREADS = (1, 64)
# So much of what has changed is damaged, where any is.
DAMAGED_SHARE = 0.3
MAX_CHAIN = 2
# How versions may come where nothing is damaged: not as a whole because something does not fit.
SOUND = (DELTA, NO_BASE, TOO_LONG, NO_ROOM, "what has changed is gone", "the version before is gone")


class StoryWeights(Weights):
    """Weights of a simulated process, whose user does not wait for its I/O thread."""

    def __init__(self, process: ProductProcess, rank: PublishingRank | None = None) -> None:
        devices = Devices(process.messenger, lambda: None)
        super().__init__(process.messenger, process.session.home, devices=devices, rank=rank)
        self.done: Promise[object] = Promise()
        self.damages = 0.0
        # The versions of which what has changed was offered.
        self.offered: set[int] = set()
        self._draw = process.host.world.randomness(f"damage of {process.host.name}")
        self._apply, self._replicas.apply = self._replicas.apply, self._apply_some
        publisher = self._versions._publisher
        self._offer, publisher.offer_delta = publisher.offer_delta, self._note_offer  # type: ignore[method-assign]
        self._versions.max_chain = MAX_CHAIN

    def _note_offer(self, key: Key, new: Payload, payload: Payload | None, took_s: float) -> None:
        if payload is not None:
            self.offered.add(key.number)
        self._offer(key, new, payload, took_s)

    def _apply_some(self, delta: Sequence[Buffer], base: Sequence[Buffer], target: Sequence[Buffer]) -> None:
        """Apply what has changed, or something else."""
        frames = [bytearray(each) for each in delta]
        if self._draw.random() < self.damages:
            damaged = self._draw.choice([each for each in frames[1:] if each])
            damaged[self._draw.randrange(len(damaged))] ^= 1 << self._draw.randrange(8)
        if self._apply is not None:
            self._apply(frames, base, target)

    def _put(self, new: Announce, payload: Packed, delta: DeltaChoice) -> object:
        self.done = self._begin_to_put(new, payload, delta)
        return None


class Rank:
    """A process that publishes shards; each version replaces the one before when it is complete.

    Attributes:
        host: where it is.
        process: what runs of the product there.
        weights: the product's.
        begun: the newest version that it publishes,
        returned: the newest of which its user knows what became,
        acknowledged: and all of which the index has heard.
    """

    def __init__(self, group: Group, process: ProductProcess, number: int) -> None:
        self.host, self.process = process.host, process
        publisher = PublishingRank(
            process.messenger.endpoint, self.host.name, "actors", group.launch + 1, number, group.size
        )
        self.weights = StoryWeights(process, publisher)
        self.acknowledged: set[int] = set()
        self._group, self._launch, self.number = group, group.launch, number
        self.begun = self.returned = -1

    @property
    def published(self) -> dict[Key, Any]:
        """What others may read of its own."""
        published: dict[Key, Any] = self.weights._versions._publisher._published
        return {key: each for key, each in published.items() if key.name == NAME}

    def publish(self, version: int, turn_us: int = TURN_US) -> None:
        """Publish its shards of a version."""
        others = self._group.living() if self._launch == self._group.launch else ()
        if any((each.begun if each is self else each.returned) < version - 1 for each in others):
            # As a trainer that waits for the others' gradients, which they make when their `publish` has returned: the
            # index keeps two versions beyond the newest complete one, and of a rank that were further ahead none that
            # the others had not announced.
            self.host.later(turn_us, self.publish, version, min(2 * turn_us, MAX_TURN_US))
        elif version > self.begun:
            self.begun = version
            self._group.note_begun()
            state = self._group.shards(self.number, code_of(self._launch, version))
            self.weights.publish(NAME, state, version, delta=self._group.delta)
            self.weights.done.add_done_callback(partial(self._published, version))

    def check_deltas(self) -> None:
        """Check that what has changed was always of what a machine has, and that no chain is too long."""
        odd = [each for each in self.weights.copies(NAME) if each not in SOUND]
        if odd and not self._group.damages:
            raise Violation(f"of {self.host.name} versions come as a whole, for {odd}")
        chain = 0
        for version in sorted(self.acknowledged):
            chain = chain + 1 if version in self.weights.offered else 0
            if chain > MAX_CHAIN:
                raise Violation(f"{self.host.name} offers deltas of {chain} versions, one on the other")

    def _published(self, version: int, done: Promise[object]) -> None:
        error = done.exception(0)
        self.returned = max(self.returned, version)
        if error is None:
            self.acknowledged.add(version)
            self.host.world.note(self.host.name, "publishes", version)
            self._group.known_launch = max(self._group.known_launch, self._launch)
            self._group.note_complete()
            self._group.check_kept()
        elif isinstance(error, WeightsError) and self._launch == self._group.launch:
            raise Violation(f"{self.host.name} cannot publish version {version}: {error}")


class Group:
    """The ranks of a group, and which of their versions must be readable.

    Attributes:
        size: how many ranks it has.
        launch: how often it was launched anew,
        known_launch: and when the index last heard so.
        ranks: their processes.
        begun: the newest version of this launch that any rank publishes, or is about to publish,
        most: and of any launch.
        complete: the newest complete version of this launch; -1 if there is none.
        complete_us: when each was.
        changes: how many ranks have died, or were launched anew.
        spread: a version changes one of so many values.
        delta: whether machines make a version of the one before.
        damages: how much of what has changed is damaged.
        loss_us: when the last one died that alone had its shards,
        lost_shard: and which.
    """

    def __init__(self, size: int, num_shards: int, num_values: int, world: World) -> None:
        self.size, self._num_shards, self.num_values = size, num_shards, num_values
        self._world = world
        draw = world.randomness("what changes in weights")
        self.spread = draw.choice(SPREADS)
        self.delta: DeltaChoice = draw.choice((True, True, "auto"))
        self.damages = draw.choice((0.0, 0.0, DAMAGED_SHARE))
        self.launch = self.known_launch = self.changes = self.loss_us = self.lost_shard = 0
        self.ranks: dict[int, Rank] = {}
        self.begun = self.most = self.complete = -1
        self.complete_us = {-1: 0}

    def living(self) -> list[Rank]:
        """Return the ranks whose processes live."""
        return [rank for rank in self.ranks.values() if rank.host.alive]

    def start(self, process: ProductProcess, number: int) -> Rank:
        """Let a process be a rank."""
        rank = self.ranks[number] = Rank(self, process, number)
        return rank

    def launch_anew(self) -> None:
        """Begin another launch, which has no version yet."""
        self.launch, self.changes = self.launch + 1, self.changes + 1
        if self._world.now_us < self.loss_us + SOON_US:
            self.loss_us = 0  # who has heard of this launch may not have noticed what the one before has lost
        self.begun = self.complete = -1
        self.ranks = {}

    def next_version(self) -> int:
        """Return the version that is to be published."""
        self.begun += 1
        self.most = max(self.most, self.begun)
        return self.begun

    def note_complete(self) -> None:
        """Find the newest version of which all shards are there; the last one that was may have lost some."""
        there = self.ranks.items()
        complete = [
            version
            for version in range(self.begun + 1)
            if {
                number % self._num_shards
                for number, rank in there
                if rank.host.alive and version in rank.acknowledged
            }
            == set(range(self._num_shards))
        ]
        self.complete = max(complete, default=-1)
        self.complete_us.setdefault(self.complete, self._world.now_us)

    def lose(self, host: Host) -> None:
        """Note that the process of a rank has died."""
        lost = next((rank for rank in self.ranks.values() if rank.host is host), None)
        if lost is not None:
            self.changes += 1
            self.note_complete()
            shard = lost.number % self._num_shards
            if lost.acknowledged and self._begun_by_shard(self.living())[shard] < 0:
                self.loss_us, self.lost_shard = self._world.now_us, shard

    def note_begun(self) -> None:
        """Forget a loss that nobody can have noticed before there was a successor."""
        is_soon = self._world.now_us < self.loss_us + SOON_US
        if is_soon and self._begun_by_shard(self.living())[self.lost_shard] >= 0:
            self.loss_us = 0

    def check_kept(self) -> None:
        """Check that each rank has the newest complete version, as long as no newer one can be complete."""
        if self.complete < 0 or min(self._begun_by_shard(self.ranks.values())) > self.complete:
            return
        for rank in self.living():
            if self.complete in rank.acknowledged and Key(NAME, self.complete) not in rank.published:
                raise Violation(
                    f"{rank.host.name} has dropped version {self.complete}, and no other is there"
                )

    def _begun_by_shard(self, ranks: Iterable[Rank]) -> list[int]:
        begun = [-1] * self._num_shards
        for rank in ranks:
            shard = rank.number % self._num_shards
            begun[shard] = max(begun[shard], rank.begun)
        return begun

    def shards(self, number: int, code: int) -> dict[str, Any]:
        """Return what a rank has of weights, each value of which is a number."""
        whole = state_of(code, self.num_values, self.spread)
        if self._num_shards == 1:
            return {**whole}
        size = -(-self.num_values // self._num_shards)
        start = number % self._num_shards * size
        part = Slice(whole["weight"][start : start + size], (start,), (self.num_values,))
        return {"weight": part, "bias": whole["bias"]}


class WeightsReader(HandleUsers):
    """The users of weights in a process that reads them.

    Attributes:
        weights: the product's.
    """

    leaves_within_us = 60_000

    def __init__(
        self,
        process: ProductProcess,
        group: Group,
        is_calm: Callable[[], bool],
        is_connected: Callable[[], bool],
    ) -> None:
        super().__init__(process.host, "weights")
        self._is_calm, self._is_connected = is_calm, is_connected
        self.process = process
        self.weights = StoryWeights(process)
        self.weights.damages = group.damages
        self._group = group
        # What was complete when it asked, of which launch, and how much had changed.
        self._before: dict[int, tuple[int, int, int]] = {}
        self._into: dict[int, dict[str, Any]] = {}
        # What would do, and what alone would.
        self._wanted: dict[int, int] = {}
        self._exact: dict[int, int] = {}

    def start(self, call: HandleCall) -> AsyncHandle[Any]:
        """Return the handle of what a user asks for."""
        step, group = call.step, self._group
        newest = self._wanted[step.number] = group.complete
        self._before[step.number] = newest, group.known_launch, group.changes
        into = self._into[step.number] = {
            "weight": np.full(group.num_values, -1),
            "bias": np.full(3, -1),
        }
        limit_s = None if step.timeout_us is None else step.timeout_us / 1e6
        fetch = partial(self.weights.fetch, NAME, into, timeout_s=limit_s)
        if step.queue != NEXT and (limit_s is None or newest < 0):
            return fetch()
        match 0 if step.queue == NEXT else self._draw.randrange(6):
            case 0 | 1:
                self._wanted[step.number] = newest + 1
                return fetch(min_version=newest + 1)
            case 2:
                self._exact[step.number] = self._wanted[step.number] = version = (
                    newest + self._draw.randrange(2)
                )
                return fetch(version=version)
            case _:
                return fetch()

    def submit_cancel(self, call: HandleCall, cancel: Any) -> None:
        """Give an operation up on the I/O thread."""
        del call
        self.process.messenger.submit(cancel)

    def outcome(self, call: HandleCall, error: BaseException) -> str:
        """Return how a call ended that failed."""
        number = call.step.number
        if isinstance(error, PeerDied):
            if self._is_calm():
                raise Violation(f"fetch {number} is lost, and nobody is: {error}", (number,))
            return "lost"
        if isinstance(error, PeerNotFound | CommTimeout):
            self._check_was_late(call)
            return "not found" if isinstance(error, PeerNotFound) else "timed out"
        exact = self._exact.get(number)
        names_one = exact is not None or self._wanted[number] > self._before[number][0]
        if isinstance(error, WeightsReplaced) and names_one and self._group.launch:
            return "replaced"
        if isinstance(error, WeightsError) and exact is not None and exact < self._group.most:
            return "over"
        raise Violation(f"fetch {number} fails with {error!r}", (number,))

    def _check_was_late(self, call: HandleCall) -> None:
        """Check that a fetch that ran into its deadline waited for what was not there."""
        number, limit_us = call.step.number, call.step.timeout_us or 0
        group, wanted = self._group, self._wanted[call.step.number]
        if call.began_us + SOON_US < group.loss_us < self.world.now_us - SOON_US and self._is_connected():
            raise Violation(f"fetch {number} times out; the loss of a rank should have ended it", (number,))
        if limit_us < ENOUGH_US or group.changes or not self._is_calm() or not 0 <= wanted <= group.complete:
            return
        if self.world.now_us - group.complete_us[wanted] > ENOUGH_US:
            raise Violation(f"fetch {number} times out; what it wants is there", (number,))

    def took(self, call: HandleCall, value: Any) -> list[int]:
        """Check what was fetched, and return its version."""
        number, group = call.step.number, self._group
        into, (before, launch, changes) = self._into.pop(number), self._before[number]
        codes = {code_of(each, value) for each in range(launch, group.launch + 1)}
        states = [state_of(each, group.num_values, group.spread) for each in codes]
        if not any(all(np.array_equal(into[key], state[key]) for key in into) for state in states):
            read = sorted({int(each) for values in into.values() for each in values})
            raise Violation(
                f"{self.name} is given version {value}, and reads {read[:3]} to {read[-3:]}", (number,)
            )
        is_old = changes == group.changes and value < before
        if is_old or value > group.most or value != self._exact.get(number, value):
            message = f"{self.name} reads version {value}; {before} was there when it asked"
            raise Violation(message, (number,))
        return [value]

    def ended(self, call: HandleCall) -> None:
        """For the checks: a user's call has ended."""
        self._into.pop(call.step.number, None)

    def kept(self, publisher_id: str) -> set[Key]:
        """Return what this process keeps of a publisher's for its machine."""
        return {key for owner_id, key in self.weights._replicas._pieces.held if owner_id == publisher_id}


class WeightsPart(Part):
    """A group that publishes, the first rank of it in the server's process, and readers in all others."""

    kinds: tuple[str, ...] = ("publish", "fetch")

    def __init__(self, cluster: Cluster, script: Script) -> None:
        del script
        self._cluster = cluster
        self._draw = draw = cluster.world.randomness("weights")
        num_values = draw.choice(NUM_VALUES)
        self._next_number = itertools.count(WAVE).__next__
        self._draw_ranks = shapes = cluster.world.randomness("ranks of weights")
        size, num_shards = shapes.choice(((1, 1), (1, 1), (2, 2), (3, 2), (4, 2)))
        self._group = Group(size, num_shards, num_values, cluster.world)
        self._first = self._group.start(cluster.processes.of(cluster.server), 0)
        for number in range(1, size):
            self._start_rank(number)
        self._publish()
        self._readers: dict[str, WeightsReader] = {}
        # As after a step of training: there is a version, and all fetch it; some die while they do.
        self._has_deaths = draw.random() < 0.3
        for _ in range(draw.choice((0, NUM_WAVES))):
            cluster.world.schedule(draw.randrange(2_000_000), None, self._wave)
        if size > 1:
            self._draw_losses()

    # -- the group -------------------------------------------------------------------------------

    def _draw_losses(self) -> None:
        draw, world = self._draw_ranks, self._cluster.world
        for _ in range(draw.choice((0, 2, 5, 10))):
            number, at_us = draw.randrange(1, self._group.size), draw.randrange(300_000, 2_000_000)
            world.schedule(at_us - 300_000, None, self._await_next)
            world.schedule(at_us, None, self._lose_rank, (number,))
        if draw.random() < 0.2:
            world.schedule(draw.randrange(2_000_000), None, self._launch_anew)

    def _start_rank(self, number: int) -> Rank:
        name = f"rank {number} of weights.{self._next_number()}"
        host = self._start_host(name, self._draw_ranks.choice(("machine", f"machine of {name}")))
        return self._group.start(self._cluster.processes.of(host), number)

    def _lose_rank(self, number: int) -> None:
        rank = self._group.ranks[number]
        if rank.host.alive:
            self._cluster.bury(rank.host)
            after_us = self._cluster.world.now_us + self._draw_ranks.choice((1_000, 300_000))
            self._cluster.world.schedule(after_us, None, self._replace, (number, self._group.launch))

    def _replace(self, number: int, launch: int) -> None:
        """Let a successor publish the shards of a dead rank again, once the home holds that one for dead."""
        dead, processes = self._group.ranks[number].host, self._cluster.processes
        if launch != self._group.launch or dead.alive or not processes.home.alive:
            return
        if dead.name not in processes.of(processes.home).given_up:
            after_us = self._cluster.world.now_us + SOON_US
            if after_us < LAST_US:
                self._cluster.world.schedule(after_us, None, self._replace, (number, launch))
        else:
            rank = self._start_rank(number)
            rank.begun = rank.returned = self._group.begun - 1
            rank.host.later(0, rank.publish, self._group.begun)

    def _launch_anew(self) -> None:
        """Launch the group again; the first rank of the launch before does not know of it."""
        for number, rank in self._group.ranks.items():
            if number and rank.host.alive:
                self._cluster.bury(rank.host)
        self._group.launch_anew()
        for number in range(self._group.size):
            self._start_rank(number)
        self._first.host.later(self._draw_ranks.randrange(50_000), self._first.publish, 1_000)
        self._publish()

    def _publish(self) -> None:
        """Let all ranks publish the next version, each when it comes to it."""
        version, draw = self._group.next_version(), self._draw_ranks
        for rank in self._group.ranks.values():
            if rank.host.alive:
                rank.host.later(
                    draw.choice((0, 0, 20_000)) if self._group.size > 1 else 0, rank.publish, version
                )

    # -- readers ---------------------------------------------------------------------------------

    def _wave(self) -> None:
        draw, world = self._draw, self._cluster.world
        if draw.random() < 0.3:
            self._publish()
        for host in self._cluster.current.values():
            for _ in range(FETCHES_OF_A_WAVE if host.name in self._readers else 0):
                drop = draw.choice(("", "", "", "begun", "delivered", "later", "cancel"))
                host.later(draw.randrange(20_000), self._readers[host.name].call, self._fetch(drop))
        if self._has_deaths:
            world.schedule(world.now_us + draw.randrange(60_000), None, self._kill_replicas)

    def _fetch(self, drop: str = "", queue: str = NAME, timeout_us: int | None = None) -> Call:
        return Call(0, self._next_number(), -1, "fetch", queue, 0, 0, timeout_us, blocking=False, drop=drop)

    def _await_next(self) -> None:
        """Let all wait for a version that is not there yet."""
        for host in self._cluster.current.values():
            if host.name in self._readers:
                host.later(0, self._readers[host.name].call, self._fetch("", NEXT, 1_000_000))

    def _kill_replicas(self) -> None:
        names = self._cluster.processes.names.processes
        replicas = {
            names[process_id]
            for published in self._first.published.values()
            for process_id in published.publication._machines
        }
        for number, host in list(self._cluster.current.items()):
            if host.name in replicas and self._draw.random() < 0.7:
                self._cluster.kill(number, self._draw.choice((1_000, 100_000)))

    def start(self, host: Host, number: int) -> None:
        """A process has started."""
        if number >= 0:
            process = self._cluster.processes.of(host)
            self._readers[host.name] = WeightsReader(
                process,
                self._group,
                lambda: self._cluster.processes.is_calm,
                lambda: self._cluster.processes.is_connected,
            )

    def died(self, host: Host) -> None:
        """A process has died."""
        self._group.lose(host)

    def call(self, host: Host, step: Call) -> None:
        """A user calls in a process."""
        if step.kind == "fetch":
            self._readers[host.name].call(step)
        else:
            self._publish()

    # -- the end ---------------------------------------------------------------------------------

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""
        group, live = self._group, [each for each in self._readers.values() if each.host.alive]
        # A version that is not complete is waited for, as long as the user says.
        for reader in live:
            reader.check_calls(for_ever=group.complete < 0)
        is_home_alive = self._cluster.processes.home.alive
        for weights in self._cluster.processes.index._index._names.values() if is_home_alive else ():
            names = self._cluster.processes.names.processes
            givers = weights.givers(weights.complete, ()) if weights.complete >= 0 else {}
            sources = [names[endpoint.process_id] for endpoint in givers.values()]
            if dead := [name for name in sources if not self._cluster.hosts[name].alive]:
                raise Violation(f"the index sends readers to {dead}, which are gone")
        for rank in group.ranks.values():
            rank.check_deltas()
            if rank.host.alive and group.complete >= 0 and is_home_alive:
                self._check_rank(rank)
            for reader in live:
                self._check_kept(reader, rank)
        for _ in range(NUM_ROUNDS if self._has_deaths and self._first.host.alive and group.size == 1 else 0):
            yield from self._come_and_go()
        if group.size > 1 and self._first.host.alive and is_home_alive:
            yield from self._complete_the_last()

    def _complete_the_last(self) -> Iterator[None]:
        """Let the dead have successors, and all publish once more: that is what an auditor reads."""
        group = self._group
        for number, rank in list(group.ranks.items()):
            if not rank.host.alive:
                successor = self._start_rank(number)
                successor.begun = successor.returned = group.begun
        self._publish()
        yield
        reader = self._start_auditor()
        reader.host.later(0, reader.call, self._fetch(""))
        yield
        (call,) = reader.calls.values()
        if call.outcome != "taken" or call.items != [group.begun]:
            raise Violation(f"{reader.name} is to read version {group.begun}: {call.outcome} {call.items}")
        for rank in group.ranks.values():
            self._check_rank(rank)
        (state,) = self._cluster.processes.index._index.contents()
        names = {rank.host.name for rank in group.ranks.values()}
        if state.version != group.begun or set(state.sources) != names or state.lacks:
            raise Violation(f"the index knows {state}; version {group.begun} is of {names}")
        if group.launch and any(self._first.weights._versions._versions.values()):
            raise Violation(f"{self._first.host.name} keeps what nobody reads any more")

    def _come_and_go(self) -> Iterator[None]:
        """Let machines come, one of which goes while others copy from it, and go."""
        draw = self._draw
        first, *others = auditors = [self._start_auditor() for _ in range(NUM_AUDITORS)]
        has_it = draw.random() < 0.5
        for reader in auditors:
            reader.host.later(draw.randrange(1_000), reader.call, self._fetch(""))
            if reader is first and has_it:
                yield
        first.host.later(draw.randrange(draw.choice((2_000, 20_000))), self._cluster.bury, first.host)
        yield
        for reader in others:
            if any(call.outcome != "taken" for call in reader.calls.values()):
                raise Violation(f"{reader.name} cannot fetch, and nothing is in its way", (reader.name,))
            self._cluster.bury(reader.host)

    def _start_auditor(self) -> WeightsReader:
        """Start a process on a machine of its own, which no other part knows."""
        number = self._next_number()
        name = f"auditor {number} of weights"
        self.start(self._start_host(name, f"machine of {name}"), number)
        return self._readers[name]

    def _start_host(self, name: str, machine: str) -> Host:
        cluster = self._cluster
        host = cluster.hosts[name] = Host(cluster.world, cluster.network, name, cluster.machines)
        cluster.processes.start(host, machine)
        return host

    def _check_rank(self, rank: Rank) -> None:
        """Check that nobody waits, and that what was replaced is gone."""
        versions = rank.weights._versions._versions[NAME]
        questions: list[Any] = [each.unserved for each in versions.values()]
        deltas = [each.delta for each in rank.published.values() if each.delta is not None]
        questions += [each.questions for each in rank.published.values()] + [each.waiting for each in deltas]
        questions.append(self._cluster.processes.index._waiting)
        complete = self._group.complete
        kept = {each for each in rank.acknowledged if each >= complete}
        ahead = set(sorted(kept - {complete})[-AHEAD:]) | (kept & {complete})
        if any(questions) or set(rank.published) != {Key(NAME, version) for version in ahead}:
            raise Violation(f"{rank.host.name} has {set(rank.published)}, and {questions} are not answered")
        self._check_held(rank)

    def _check_held(self, rank: Rank) -> None:
        """Check that it holds the shards that the index says, and no others."""
        index = self._cluster.processes.index._index
        versions, publisher = rank.weights._versions, rank.weights._versions._publisher
        number = index._names[NAME].rank_of(rank.process.id)
        if number is None:
            return
        keep = keep_of(NAME, index._names[NAME], number)
        wanted = {Key(f"{NAME} of {each.process_id}", keep.held) for each in keep.holds}
        held = {each.key: each.payload for each in versions._held.values()}
        given = {key for key in publisher._published if key.name.startswith(f"{NAME} of ")}
        if set(held) != wanted or given != {key for key, payload in held.items() if payload is not None}:
            raise Violation(f"{rank.host.name} is to hold {wanted}; it holds {set(held)}, and gives {given}")

    def _check_kept(self, reader: WeightsReader, rank: Rank) -> None:
        """Check that a replica has what its publisher knows of, and that it is the only one of its machine."""
        kept = reader.kept(rank.process.id)
        if not rank.host.alive:
            if kept:
                raise Violation(f"{reader.name} keeps {kept} of a publisher that is gone", (reader.name,))
            return
        if reader.name in rank.process.given_up and rank.host.name not in reader.process.given_up:
            return  # it has not heard of that
        known: set[Key] = set()
        for key, published in rank.weights._versions._publisher._published.items():
            ready = published.publication.ready()
            machines = [self._cluster.processes.machine_of_id(process_id) for process_id in ready]
            if len(set(machines)) < len(machines):
                raise Violation(f"{ready} keep the same version, two on one machine")
            known |= {key} if reader.process.id in ready else set()
            delta = published.delta
            if delta is not None:
                known |= {delta_of(key)}
                known |= {delta.base for at in delta.holders.values() if at.process_id == reader.process.id}
        if kept - known:
            raise Violation(f"{reader.name} keeps {kept}, of which nobody knows", (reader.name,))


def code_of(launch: int, version: int) -> int:
    """Return the number that all values of a version have."""
    return launch * 1_000_000 + version


@lru_cache(8)
def state_of(code: int, num_values: int, spread: int) -> dict[str, Any]:
    """Return weights, each of which is a number: of the last version that has changed it, one of `spread`."""
    weight, bias = np.empty(num_values, np.int64), np.full(3, code, np.int64)
    for first in range(spread):
        weight[first::spread] = code - (code - first) % spread
    for each in (weight, bias):
        each.flags.writeable = False  # whoever asks has the same
    return {"weight": weight, "bias": bias}
