"""Weights of the product: the server's process publishes them, and all others fetch them into arrays of their own.

Whoever fetches gets what was the newest when it asked, or what is newer, as a whole; each machine has it once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from rlinf_scheduler.comm.device import Devices
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.replication import Key
from rlinf_scheduler.errors import CommTimeout, PeerDied, PeerNotFound, WeightsError
from rlinf_scheduler.weights import Weights
from rlinf_scheduler.weights.records import Announce
from rlinf_scheduler.weights.versions import Packed
from simulator.cluster import Cluster, Part
from simulator.handle_users import HandleCall, HandleUsers
from simulator.host import Host
from simulator.processes import ProductProcess
from simulator.script import Call, Script
from simulator.world import Violation

NAME = "policy"
# Smaller versions have no replicas.
NUM_VALUES = (10, 20_000, 120_000)
# A fetch of what is there takes less, as long as nothing goes wrong.
ENOUGH_US = 900_000
NUM_WAVES, FETCHES_OF_A_WAVE, NUM_ROUNDS, NUM_AUDITORS = 6, 2, 2, 4
WAVE = 3_000_000
"""The first number of the fetches in waves."""


class StoryWeights(Weights):
    """Weights of a simulated process, whose user does not wait for its I/O thread."""

    def __init__(self, process: ProductProcess) -> None:
        devices = Devices(process.messenger, lambda: None)
        super().__init__(process.messenger, process.session.home, devices=devices)
        self.done: Promise[object] = Promise()

    def _put(self, new: Announce, payload: Packed) -> object:
        self.done = self._begin_to_put(new, payload)
        return None


class Publisher:
    """The process that has the weights; the newest version replaces the one before.

    Attributes:
        version: the newest that is published.
        begun: the newest that is published, or is about to be.
        published_us: when each was.
        weights: the product's.
    """

    def __init__(self, process: ProductProcess, num_values: int) -> None:
        self.host = process.host
        self.version = self.begun = -1
        self.published_us = {-1: 0}
        self.process = process
        self.weights = StoryWeights(process)
        self._num_values = num_values
        self.publish()

    @property
    def published(self) -> dict[Key, Any]:
        """What others may read."""
        return self.weights._versions._publisher._published

    @property
    def is_known(self) -> bool:
        """Whether it knows that the index has a version of its."""
        return self.version >= 0

    def publish(self) -> None:
        """Publish the next version."""
        self.begun += 1
        self.weights.publish(NAME, state_of(self.begun, self._num_values), self.begun)
        self.weights.done.add_done_callback(partial(self._published, self.begun))

    def _published(self, version: int, done: Promise[object]) -> None:
        if done.exception(0) is not None:  # the home is gone
            return
        self.version = version
        self.published_us[version] = self.host.world.now_us
        self.host.world.note(self.host.name, "publishes", version)


class WeightsReader(HandleUsers):
    """The users of weights in a process that reads them.

    Attributes:
        weights: the product's.
    """

    leaves_within_us = 60_000

    def __init__(
        self,
        process: ProductProcess,
        publisher: Publisher,
        num_values: int,
        is_calm: Callable[[], bool],
    ) -> None:
        super().__init__(process.host, "weights")
        self._is_calm = is_calm
        self.process = process
        self.weights = StoryWeights(process)
        self._publisher = publisher
        self._num_values = num_values
        self._newest_before: dict[int, int] = {}
        self._into: dict[int, dict[str, Any]] = {}
        # What would do, and what alone would.
        self._wanted: dict[int, int] = {}
        self._exact: dict[int, int] = {}

    def start(self, call: HandleCall) -> AsyncHandle[Any]:
        """Return the handle of what a user asks for."""
        step, newest = call.step, self._publisher.version
        self._newest_before[step.number] = self._wanted[step.number] = newest
        into = self._into[step.number] = state_of(-1, self._num_values)
        limit_s = None if step.timeout_us is None else step.timeout_us / 1e6
        fetch = partial(self.weights.fetch, NAME, into, timeout_s=limit_s)
        if limit_s is None or newest < 0:
            return fetch()
        match self._draw.randrange(6):
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
        if isinstance(error, PeerDied):
            return "lost"
        if isinstance(error, PeerNotFound):
            return "not found"
        if isinstance(error, CommTimeout):
            self._check_was_late(call)
            return "timed out"
        exact = self._exact.get(call.step.number)
        if isinstance(error, WeightsError) and exact is not None and exact < self._publisher.begun:
            return "over"
        raise Violation(f"fetch {call.step.number} fails with {error!r}", (call.step.number,))

    def _check_was_late(self, call: HandleCall) -> None:
        """Check that a fetch that ran into its deadline waited for what was not there."""
        number, limit_us = call.step.number, call.step.timeout_us or 0
        if limit_us >= ENOUGH_US and self._is_calm() and self._publisher.version >= self._wanted[number]:
            since_us = self._publisher.published_us[self._wanted[number]]
            if self.world.now_us - since_us > ENOUGH_US:
                raise Violation(f"fetch {number} times out; what it wants is there", (number,))

    def took(self, call: HandleCall, value: Any) -> list[int]:
        """Check what was fetched, and return its version."""
        number = call.step.number
        into, before = self._into.pop(number), self._newest_before[number]
        read = {int(each) for values in into.values() for each in (values.min(), values.max())}
        if read != {value}:
            raise Violation(f"{self.name} is given version {value}, and reads {sorted(read)}", (number,))
        if value < before or value > self._publisher.begun or value != self._exact.get(number, value):
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
    """A publisher in the server's process, readers in all others."""

    kinds: tuple[str, ...] = ("publish", "fetch")

    def __init__(self, cluster: Cluster, script: Script) -> None:
        del script
        self._cluster = cluster
        self._draw = draw = cluster.world.randomness("weights")
        self._num_values = draw.choice(NUM_VALUES)
        self._next_number = itertools.count(WAVE).__next__
        self._publisher = Publisher(cluster.processes.of(cluster.server), self._num_values)
        self._readers: dict[str, WeightsReader] = {}
        # As after a step of training: there is a version, and all fetch it; some die while they do.
        self._has_deaths = draw.random() < 0.3
        for _ in range(draw.choice((0, NUM_WAVES))):
            cluster.world.schedule(draw.randrange(2_000_000), None, self._wave)

    def _wave(self) -> None:
        draw, world = self._draw, self._cluster.world
        if draw.random() < 0.3:
            self._cluster.server.later(0, self._publisher.publish)
        for host in self._cluster.current.values():
            for _ in range(FETCHES_OF_A_WAVE if host.name in self._readers else 0):
                drop = draw.choice(("", "", "", "begun", "delivered", "later", "cancel"))
                host.later(draw.randrange(20_000), self._readers[host.name].call, self._fetch(drop))
        if self._has_deaths:
            world.schedule(world.now_us + draw.randrange(60_000), None, self._kill_replicas)

    def _fetch(self, drop: str) -> Call:
        return Call(0, self._next_number(), -1, "fetch", NAME, 0, 0, None, blocking=False, drop=drop)

    def _kill_replicas(self) -> None:
        names = self._cluster.processes.names.processes
        replicas = {
            names[process_id]
            for published in self._publisher.published.values()
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
                process, self._publisher, self._num_values, lambda: self._cluster.processes.is_calm
            )

    def call(self, host: Host, step: Call) -> None:
        """A user calls in a process."""
        if step.kind == "fetch":
            self._readers[host.name].call(step)
        else:
            self._cluster.server.later(0, self._publisher.publish)

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""
        publisher, live = self._publisher, [each for each in self._readers.values() if each.host.alive]
        # A name that its process has not lived to take is waited for, as long as the user says.
        for reader in live:
            reader.check_calls(for_ever=not publisher.is_known)
        if publisher.host.alive:
            self._check_publisher()
        for reader in live:
            self._check_kept(reader)
        for _ in range(NUM_ROUNDS if self._has_deaths and publisher.host.alive else 0):
            yield from self._come_and_go()

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
        cluster, number = self._cluster, self._next_number()
        name = f"auditor {number} of weights"
        host = cluster.hosts[name] = Host(cluster.world, cluster.network, name, cluster.machines)
        cluster.processes.start(host, f"machine of {name}")
        self.start(host, number)
        return self._readers[name]

    def _check_publisher(self) -> None:
        """Check that nobody waits, and that what was replaced is gone."""
        published, versions = self._publisher.published, self._publisher.weights._versions._versions[NAME]
        questions: list[Any] = [each.unserved for each in versions.values()]
        questions += [each.questions for each in published.values()]
        questions.append(self._cluster.processes.index._waiting)
        if any(questions) or set(published) != {Key(NAME, self._publisher.version)}:
            raise Violation(f"the publisher has {set(published)}, and {questions} are not answered")

    def _check_kept(self, reader: WeightsReader) -> None:
        """Check that a replica has what its publisher knows of, and that it is the only one of its machine."""
        publisher = self._publisher
        kept = reader.kept(publisher.process.id)
        if not publisher.host.alive:
            if kept:
                raise Violation(f"{reader.name} keeps {kept} of a publisher that is gone", (reader.name,))
            return
        if reader.name in publisher.process.given_up and publisher.host.name not in reader.process.given_up:
            return  # it has not heard of that
        published = publisher.published[Key(NAME, publisher.version)]
        ready = published.publication.ready()
        machines = [self._cluster.processes.machine_of_id(process_id) for process_id in ready]
        if len(set(machines)) < len(machines):
            raise Violation(f"{ready} keep the same version, two on one machine")
        if kept - ({published.key} if reader.process.id in ready else set()):
            raise Violation(f"{reader.name} keeps {kept}, of which nobody knows", (reader.name,))


def state_of(version: int, num_values: int) -> dict[str, Any]:
    """Return weights, each of which is the number of their version."""
    return {"weight": np.full(num_values, version, np.int64), "bias": np.full(3, version, np.int64)}
