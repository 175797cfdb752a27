"""Weights on a device in a simulated cluster: the server fills buckets, all other processes read them there.

In the end everything is idle, and goes when it is given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rlinf_scheduler.devices.open_buckets import BucketKey
from simulator.buckets import MAX_COPY_US, MIB, Block, BucketOwner, BucketReader, Retire
from simulator.cluster import Cluster, Part
from simulator.host import Host
from simulator.script import Call, Script
from simulator.world import Violation

DEVICE = "device"
EVERY = 4
"""Of so many stories one is about a device: what is said there shifts all else."""
NUM_VERSIONS, NUM_FETCHES = 12, 4
TELLING_US = 3_000_000
MAX_KEEP_US = 600_000


class Ask(NamedTuple):
    """A reader wants the newest version."""

    ticket: int


class Here(NamedTuple):
    """Where it is: its block, and its bucket."""

    ticket: int
    version: int
    block: int
    generation: int
    number: int
    key: BucketKey


class Taken(NamedTuple):
    """The reader holds it."""

    ticket: int


class Publisher:
    """The process that publishes; the newest version stays in its bucket."""

    def __init__(self, host: Host, cluster: Cluster) -> None:
        self.host = host
        self.owner = BucketOwner(host, DEVICE, cluster.machines)
        self._draw = host.world.randomness(DEVICE)
        self._version = 0
        self._newest: tuple[int, Block] | None = None
        self._given: dict[tuple[str, int], Block] = {}
        host.serve(DEVICE, self)

    def publish(self) -> None:
        """Fill a bucket with the next version; without one, it goes through host memory."""
        number = self.owner.take(self._draw.choice((2, 4, 7, 10)) * MIB)
        if number is not None:
            self.host.later(self._draw.randrange(MAX_COPY_US), self._filled, number)

    def _filled(self, number: int) -> None:
        self._version += 1
        if self._draw.random() < 0.1:  # whoever published it was interrupted
            self.owner.give_back(number)
            return
        before, self._newest = self._newest, (number, self.owner.filled(number, self._version))
        if before is not None:
            self.owner.drop(before[1])

    def receive(self, sender: str, message: Any) -> None:
        """A message came."""
        match message:
            case Ask(ticket) if self._newest is not None:
                number, block = self._newest
                memory = self.owner.memory[number]
                memory.told.add(sender)
                block.uses += 1
                self._given[sender, ticket] = block
                key = self.owner.key(number)
                here = Here(ticket, memory.content, block.index, block.generation, number, key)
                self.host.send(sender, DEVICE, here)
            case Taken(ticket):
                self.owner.drop(self._given.pop((sender, ticket)))

    def lost(self, peer: str) -> None:
        """The session with `peer` has ended: nothing more comes from it, nothing more arrives there."""
        self.owner.lost_peers.add(peer)
        for given in [each for each in self._given if each[0] == peer]:
            self.owner.drop(self._given.pop(given))

    def end(self) -> None:
        """Nobody publishes any more."""
        if self._newest is not None:
            self.owner.drop(self._newest[1])


class DeviceReader:
    """A process that reads what the server has on the device."""

    def __init__(self, host: Host, slot: int, publisher: Publisher, cluster: Cluster) -> None:
        self.host = host
        self._publisher = publisher
        self.reader = BucketReader(host, slot, {publisher.host.name: publisher.owner}, cluster.machines)
        self._draw = host.world.randomness(DEVICE, host.name)
        host.serve(DEVICE, self)
        for ticket in range(NUM_FETCHES):
            host.later(self._draw.randrange(TELLING_US), self._ask, ticket)

    def _ask(self, ticket: int) -> None:
        self.host.send(self._publisher.host.name, DEVICE, Ask(ticket))

    def receive(self, sender: str, message: Any) -> None:
        """A message came."""
        match message:
            case Here(ticket, version, block, generation, number, key):
                if not self.reader.hold(sender, block, generation) and self._is_known():
                    raise Violation(
                        f"{self.host.name} is given block {block}, which is gone", (self.host.name,)
                    )
                self.host.send(sender, DEVICE, Taken(ticket))
                self.reader.open(key, number)
                self.reader.buckets.begin(key)
                keeps_us = self._draw.choice((1_000, MAX_COPY_US, MAX_KEEP_US))
                self.host.later(self._draw.randrange(keeps_us), self._begin, version, block, key)
            case Retire(key):
                self.reader.retire(key)

    def lost(self, peer: str) -> None:
        """The session with `peer` has ended: nothing more comes from it, nothing more arrives there."""
        self.reader.lose(peer)

    def _is_known(self) -> bool:
        return self.host.name not in self._publisher.owner.lost_peers

    def _begin(self, version: int, block: int, key: BucketKey) -> None:
        self.reader.begin(version, key)
        self.host.later(self._draw.randrange(MAX_COPY_US), self._end, version, block, key)

    def _end(self, version: int, block: int, key: BucketKey) -> None:
        self.reader.end(version, key)
        self.reader.release(key.owner_id, block)


class DevicePart(Part):
    """The server has a device, and every other process has the same one."""

    def __init__(self, cluster: Cluster, script: Script) -> None:
        del script
        self._cluster = cluster
        self._readers: dict[str, DeviceReader] = {}
        draw = cluster.world.randomness("devices")
        self._publisher: Publisher | None = None
        if cluster.world.seed % EVERY == EVERY - 1:
            self._publisher = Publisher(cluster.server, cluster)
            for _ in range(NUM_VERSIONS):
                cluster.server.later(draw.randrange(TELLING_US), self._publisher.publish)

    def start(self, host: Host, number: int) -> None:
        """A process has started."""
        del number
        publisher = self._publisher
        if publisher is not None and publisher.host is not host:
            self._readers[host.name] = DeviceReader(host, len(self._readers), publisher, self._cluster)

    def call(self, host: Host, step: Call) -> None:
        """A user calls in a process."""

    def died(self, host: Host) -> None:
        """A process has died."""
        if host.name in self._readers:
            self._readers[host.name].reader.died()

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""
        for each in self._readers.values():
            each.reader.check_closed()
        publisher = self._publisher
        if publisher is None or not publisher.host.alive:
            return
        publisher.end()
        yield
        publisher.owner.retire_all()
        yield
        publisher.owner.check_empty()
