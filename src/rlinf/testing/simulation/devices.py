"""Weights on a device in a simulated cluster: the server fills buckets, all other processes read them there.

Around the real `BucketPool`, `OpenBuckets` and `HolderTable`. Nothing is filled or freed that somebody reads; in the
end everything is idle, and goes when it is given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rlinf.scheduler.comm.device.open_buckets import BucketKey
from rlinf.scheduler.comm.shm.holders import HolderTable, table_bytes
from rlinf.testing.simulation.cluster import Cluster, Part
from rlinf.testing.simulation.host import Host
from rlinf.testing.simulation.script import Call, Script
from rlinf.testing.simulation.world import Violation

DEVICE = "device"
EVERY = 4
"""Of so many stories one is about a device: what is said there shifts all else."""
NUM_BLOCKS = 4096
MIB = 1 << 20
LIMIT_BYTES, FREE_BYTES = 24 * MIB, 64 * MIB
NUM_VERSIONS, NUM_FETCHES = 12, 4
TELLING_US = 3_000_000
MAX_COPY_US, MAX_KEEP_US = 20_000, 600_000


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


class Retire(NamedTuple):
    """A bucket is given up."""

    key: BucketKey


@dataclass(eq=False)
class Block:
    """A block of the server's arena: in use there, lent, or free."""

    index: int
    generation: int
    uses: int = 1


@dataclass(eq=False)
class Memory:
    """A bucket, and who has it open; which version it holds, -1 while it is filled."""

    block: Block
    version: int = -1
    is_freed: bool = False
    told: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    reading: list[str] = field(default_factory=list)


class Owner:
    """The process that fills buckets."""

    def __init__(self, host: Host, cluster: Cluster) -> None:
        self.host = host
        self.table = HolderTable(np.zeros(table_bytes(NUM_BLOCKS), np.uint8), NUM_BLOCKS)
        self.pool = cluster.machines.bucket_pool(LIMIT_BYTES)
        self.memory: dict[int, Memory] = {}
        self.lost_peers: set[str] = set()
        self._draw = host.world.randomness(DEVICE)
        self._version = 0
        self._newest: tuple[int, Block] | None = None
        self._num_blocks = 0
        # What is to be done when nobody uses a block any more.
        self._busy: dict[Block, tuple[str, int]] = {}
        self._given: dict[tuple[str, int], Block] = {}
        host.serve(DEVICE, self)

    def publish(self) -> None:
        """Fill a bucket with the next version; without one, it goes through host memory."""
        self.look()
        size_bytes = self._draw.choice((2, 4, 7, 10)) * MIB
        number = self.pool.take(size_bytes)
        if number is None:
            for retired in self.pool.retire(size_bytes):
                self._retire(retired)
            if not self.pool.may_grow(size_bytes, FREE_BYTES):
                return
            number = self.pool.add(size_bytes)
            self.memory[number] = Memory(self._block())
        if self.pool.size_bytes > LIMIT_BYTES:
            raise Violation(f"buckets of {self.pool.size_bytes} bytes, of {LIMIT_BYTES} at most")
        self._change(number, "filled")
        self.host.later(self._draw.randrange(MAX_COPY_US), self._filled, number)

    def _filled(self, number: int) -> None:
        self._change(number, "filled")
        self._version += 1
        if self._draw.random() < 0.1:  # whoever published it was interrupted
            self.pool.give_back(number)
            return
        self.memory[number].version = self._version
        before, block = self._newest, self._block()
        self._newest, self._busy[block] = (number, block), ("give back", number)
        self.host.world.note(self.host.name, "stages", self._version, number)
        if before is not None:
            self.drop(before[1])

    def receive(self, sender: str, message: Any) -> None:
        """See `Service`."""
        match message:
            case Ask(ticket) if self._newest is not None:
                number, block = self._newest
                memory, at = self.memory[number], self.memory[number].block
                memory.told.add(sender)
                block.uses += 1
                self._given[sender, ticket] = block
                key = BucketKey(self.host.name, at.index, at.generation)
                here = Here(ticket, memory.version, block.index, block.generation, number, key)
                self.host.send(sender, DEVICE, here)
            case Taken(ticket):
                self.drop(self._given.pop((sender, ticket)))

    def lost(self, peer: str) -> None:
        """See `Service`."""
        self.lost_peers.add(peer)
        for given in [each for each in self._given if each[0] == peer]:
            self.drop(self._given.pop(given))

    def end(self) -> None:
        """Nobody publishes any more."""
        if self._newest is not None:
            self.drop(self._newest[1])

    def retire_all(self) -> None:
        """Give up every bucket."""
        for number in self.pool.retire(LIMIT_BYTES):
            self._retire(number)

    def drop(self, block: Block) -> None:
        """The server itself uses a block no more."""
        block.uses -= 1
        self.look()

    def look(self) -> None:
        """See which blocks are free."""
        for block, (action, number) in list(self._busy.items()):
            if block.uses or self.table.is_held(block.index) or self.table.renew(block.index) is None:
                continue
            del self._busy[block]
            if action == "give back":
                self.pool.give_back(number)
            else:
                self._free(number)

    def _block(self) -> Block:
        self._num_blocks += 1
        generation = self.table.renew(self._num_blocks)
        return Block(self._num_blocks, generation or 0)

    def _change(self, number: int, what: str) -> None:
        memory = self.memory[number]
        memory.version = -1
        if memory.reading or memory.is_freed:
            readers = memory.reading or ["nobody: it is gone"]
            raise Violation(f"bucket {number} is {what}, and read by {readers}", readers)

    def _retire(self, number: int) -> None:
        block = self.memory[number].block
        block.uses -= 1
        self._busy[block] = ("free", number)
        key = BucketKey(self.host.name, block.index, block.generation)
        for reader in sorted(self.memory[number].told - self.lost_peers):
            self.host.send(reader, DEVICE, Retire(key))
        self.look()

    def _free(self, number: int) -> None:
        self._change(number, "freed")
        memory = self.memory[number]
        if memory.opened:
            raise Violation(f"bucket {number} is freed, and open in {sorted(memory.opened)}", memory.opened)
        memory.is_freed = True
        self.pool.gone(number)


class DeviceReader:
    """A process that reads what the server has on the device."""

    def __init__(self, host: Host, slot: int, owner: Owner, cluster: Cluster) -> None:
        self.host = host
        self.buckets = cluster.machines.open_buckets()
        self._owner = owner
        self._slot = slot
        self._held: dict[int, int] = {}
        self._numbers: dict[BucketKey, int] = {}
        self._draw = host.world.randomness(DEVICE, host.name)
        owner.table.pids[slot] = slot + 1
        host.serve(DEVICE, self)
        for ticket in range(NUM_FETCHES):
            host.later(self._draw.randrange(TELLING_US), self._ask, ticket)

    def _ask(self, ticket: int) -> None:
        if self._owner.host.name != self.host.name:
            self.host.send(self._owner.host.name, DEVICE, Ask(ticket))

    def receive(self, sender: str, message: Any) -> None:
        """See `Service`."""
        match message:
            case Here(ticket, version, block, generation, number, key):
                self._hold(block, generation)
                self.host.send(sender, DEVICE, Taken(ticket))
                if key not in self.buckets:
                    self._hold(key.block, key.generation)
                    self._numbers[key] = number
                    self._memory(key).opened.add(self.host.name)
                    self.buckets.opened(key)
                self.buckets.begin(key)
                keeps_us = self._draw.choice((1_000, MAX_COPY_US, MAX_KEEP_US))
                self.host.later(self._draw.randrange(keeps_us), self._begin, version, block, key)
            case Retire(key):
                if self.buckets.retire(key):
                    self._close(key)

    def lost(self, peer: str) -> None:
        """See `Service`."""
        for key in self.buckets.lose(peer):
            self._close(key)

    def died(self) -> None:
        """The kernel frees what it held."""
        for memory in self._owner.memory.values():
            memory.opened.discard(self.host.name)
            memory.reading[:] = [name for name in memory.reading if name != self.host.name]
        for block in self._held:
            self._owner.table.release(self._slot, block)

    def _memory(self, key: BucketKey) -> Memory:
        return self._owner.memory[self._numbers[key]]

    def _begin(self, version: int, block: int, key: BucketKey) -> None:
        self._memory(key).reading.append(self.host.name)
        self._check(version, key)
        self.host.later(self._draw.randrange(MAX_COPY_US), self._end, version, block, key)

    def _end(self, version: int, block: int, key: BucketKey) -> None:
        self._check(version, key)
        self._memory(key).reading.remove(self.host.name)
        self.host.world.note(self.host.name, "has read", version)
        if self.buckets.end(key):
            self._close(key)
        self._release(block)

    def _check(self, version: int, key: BucketKey) -> None:
        memory = self._memory(key)
        if memory.version != version or memory.is_freed or self.host.name not in memory.opened:
            raise Violation(f"{self.host.name} reads {memory} for version {version}", (self.host.name,))

    def _close(self, key: BucketKey) -> None:
        if self.host.name in self._memory(key).reading:
            raise Violation(f"{self.host.name} closes what it reads", (self.host.name,))
        self._memory(key).opened.discard(self.host.name)
        self._release(key.block)

    def _hold(self, block: int, generation: int) -> None:
        self._held[block] = self._held.get(block, 0) + 1
        if self._owner.table.hold(self._slot, block, generation):
            return
        if self.host.name not in self._owner.lost_peers:
            raise Violation(f"{self.host.name} is given block {block}, which is gone", (self.host.name,))

    def _release(self, block: int) -> None:
        self._held[block] -= 1
        if not self._held[block]:
            del self._held[block]
            self._owner.table.release(self._slot, block)


class DevicePart(Part):
    """The server has a device, and every other process has the same one."""

    def __init__(self, cluster: Cluster, script: Script) -> None:
        del script
        self._cluster = cluster
        self._readers: dict[str, DeviceReader] = {}
        draw = cluster.world.randomness("devices")
        self._owner: Owner | None = None
        if cluster.world.seed % EVERY == EVERY - 1:
            self._owner = Owner(cluster.server, cluster)
            for _ in range(NUM_VERSIONS):
                cluster.server.later(draw.randrange(TELLING_US), self._owner.publish)

    def start(self, host: Host, number: int) -> None:
        """See `Part`."""
        del number
        if self._owner is not None:
            slot = len(self._readers)
            self._readers[host.name] = DeviceReader(host, slot, self._owner, self._cluster)

    def call(self, host: Host, step: Call) -> None:
        """See `Part`."""

    def died(self, host: Host) -> None:
        """See `Part`."""
        if host.name in self._readers:
            self._readers[host.name].died()

    def finish(self) -> Iterator[None]:
        """See `Part`."""
        owner = self._owner
        if owner is None:
            return
        if not owner.host.alive:
            open_in = [name for name, each in self._readers.items() if each.host.alive and len(each.buckets)]
            if open_in:
                raise Violation(f"{open_in} have buckets open whose owner is dead", open_in)
            return
        owner.end()
        yield
        owner.look()
        if owner.pool.num_taken:
            raise Violation(f"{owner.pool.num_taken} buckets are taken that nobody reads")
        owner.retire_all()
        yield
        owner.look()
        if owner.pool.size_bytes:
            raise Violation(f"{owner.pool.size_bytes} bytes of buckets are left that were given up")
