"""Buckets of a device in a simulated cluster: who fills them, and who opens and reads them.

Around the real `BucketPool`, `OpenBuckets` and `HolderTable`. Nothing is filled or freed that somebody reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rlinf_scheduler.comm.shm.holders import HolderTable, table_bytes
from rlinf_scheduler.devices.open_buckets import BucketKey
from simulator.host import Host
from simulator.machines import Machines
from simulator.world import Violation

NUM_BLOCKS = 4096
MIB = 1 << 20
LIMIT_BYTES, FREE_BYTES = 24 * MIB, 64 * MIB
MAX_COPY_US = 20_000


class Retire(NamedTuple):
    """A bucket is given up."""

    key: BucketKey


@dataclass(eq=False)
class Block:
    """A block of its owner's arena: in use there, lent, or free."""

    index: int
    generation: int
    uses: int = 1


@dataclass(eq=False)
class Memory:
    """A bucket, and who has it open; the number of what it holds, -1 while it is filled."""

    block: Block
    content: int = -1
    is_freed: bool = False
    told: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    reading: list[str] = field(default_factory=list)


class BucketOwner:
    """A process that fills buckets.

    Args:
        host: the process.
        service: under which it and its readers talk.
        machines: the machines under test.

    Attributes:
        table: who holds its blocks.
        pool: the machine under test.
        memory: its buckets, by number.
        lost_peers: whom it holds for gone.
    """

    def __init__(self, host: Host, service: str, machines: Machines) -> None:
        self.host = host
        self.table = HolderTable(np.zeros(table_bytes(NUM_BLOCKS), np.uint8), NUM_BLOCKS)
        self.pool = machines.bucket_pool(LIMIT_BYTES)
        self.memory: dict[int, Memory] = {}
        self.lost_peers: set[str] = set()
        self._service = service
        self._num_blocks = 0
        # What is to be done when nobody uses a block any more.
        self._busy: dict[Block, tuple[str, int]] = {}

    def take(self, size_bytes: int) -> int | None:
        """A bucket to be filled; None if there is no room."""
        self.look()
        number = self.pool.take(size_bytes)
        if number is None:
            for retired in self.pool.retire(size_bytes):
                self._retire(retired)
            if not self.pool.may_grow(size_bytes, FREE_BYTES):
                return None
            number = self.pool.add(size_bytes)
            self.memory[number] = Memory(self._block())
        if self.pool.size_bytes > LIMIT_BYTES:
            raise Violation(f"buckets of {self.pool.size_bytes} bytes, of {LIMIT_BYTES} at most")
        self._change(number, "filled")
        return number

    def filled(self, number: int, content: int) -> Block:
        """A bucket holds something, for which a block stands from now on."""
        self._change(number, "filled")
        self.memory[number].content = content
        block = self._block()
        self._busy[block] = ("give back", number)
        self.host.world.note(self.host.name, "stages", content, number)
        return block

    def give_back(self, number: int) -> None:
        """Whoever has filled a bucket was interrupted."""
        self._change(number, "filled")
        self.pool.give_back(number)

    def key(self, number: int) -> BucketKey:
        """What others know a bucket by."""
        at = self.memory[number].block
        return BucketKey(self.host.name, at.index, at.generation)

    def opened(self, number: int, reader: str) -> None:
        """Somebody has opened a bucket of which others have told it; it may have been given up meanwhile."""
        self.memory[number].told.add(reader)
        if ("free", number) in self._busy.values():
            self.host.send(reader, self._service, Retire(self.key(number)))

    def is_lent(self, block: Block) -> bool:
        """Whether what a block stands for is still in its bucket."""
        return block in self._busy

    def drop(self, block: Block) -> None:
        """The owner itself uses a block no more."""
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

    def retire_all(self) -> None:
        """Give up every bucket, at the end.

        Raises:
            Violation: one is taken, although nobody reads what is in it.
        """
        self.look()
        if self.pool.num_taken:
            raise Violation(f"{self.pool.num_taken} buckets of {self.host.name} are taken that nobody reads")
        for number in self.pool.retire(LIMIT_BYTES):
            self._retire(number)

    def check_empty(self) -> None:
        """Check, when all were given up and the world has come to rest, that none is left."""
        self.look()
        if self.pool.size_bytes:
            left = f"{self.pool.size_bytes} bytes of buckets of {self.host.name}"
            raise Violation(f"{left} are left that were given up")

    def _block(self) -> Block:
        self._num_blocks += 1
        generation = self.table.renew(self._num_blocks)
        return Block(self._num_blocks, generation or 0)

    def _change(self, number: int, what: str) -> None:
        memory = self.memory[number]
        memory.content = -1
        if memory.reading or memory.is_freed:
            readers = memory.reading or ["nobody: it is gone"]
            raise Violation(f"bucket {number} is {what}, and read by {readers}", readers)

    def _retire(self, number: int) -> None:
        key, block = self.key(number), self.memory[number].block
        block.uses -= 1
        self._busy[block] = ("free", number)
        for reader in sorted(self.memory[number].told - self.lost_peers):
            self.host.send(reader, self._service, Retire(key))
        self.look()

    def _free(self, number: int) -> None:
        self._change(number, "freed")
        memory = self.memory[number]
        if memory.opened:
            raise Violation(f"bucket {number} is freed, and open in {sorted(memory.opened)}", memory.opened)
        memory.is_freed = True
        self.pool.gone(number)


class BucketReader:
    """A process that reads what others have in buckets.

    Args:
        host: the process.
        slot: its place among those who hold blocks.
        owners: who has buckets, by name.
        machines: the machines under test.

    Attributes:
        buckets: the machine under test.
    """

    def __init__(self, host: Host, slot: int, owners: Mapping[str, BucketOwner], machines: Machines) -> None:
        self.host = host
        self.buckets = machines.open_buckets()
        self._slot = slot
        self._owners = owners
        self._held: dict[tuple[str, int], int] = {}
        self._numbers: dict[BucketKey, int] = {}

    def hold(self, owner: str, block: int, generation: int) -> bool:
        """Hold a block of an owner's; False if it was gone already. It is to be released all the same."""
        table = self._owners[owner].table
        table.pids[self._slot] = self._slot + 1
        self._held[owner, block] = self._held.get((owner, block), 0) + 1
        return table.hold(self._slot, block, generation)

    def release(self, owner: str, block: int) -> None:
        """Undo `hold`."""
        self._held[owner, block] -= 1
        if not self._held[owner, block]:
            del self._held[owner, block]
            self._owners[owner].table.release(self._slot, block)

    def open(self, key: BucketKey, number: int) -> bool:
        """Open a bucket; whether it was not open yet."""
        if key in self.buckets:
            return False
        self.hold(*key)
        self._numbers[key] = number
        self.memory(key).opened.add(self.host.name)
        self.buckets.opened(key)
        return True

    def owner(self, name: str) -> BucketOwner:
        """Who has buckets under a name."""
        return self._owners[name]

    def memory(self, key: BucketKey) -> Memory:
        """A bucket that is or was open here."""
        return self._owners[key.owner_id].memory[self._numbers[key]]

    def begin(self, content: int, key: BucketKey) -> None:
        """Begin to read a bucket, which is in use here."""
        self.memory(key).reading.append(self.host.name)
        self._check(content, key)

    def end(self, content: int, key: BucketKey) -> None:
        """Have read it, and use it no more."""
        self._check(content, key)
        self.memory(key).reading.remove(self.host.name)
        self.host.world.note(self.host.name, "has read", content)
        if self.buckets.end(key):
            self._close(key)

    def retire(self, key: BucketKey) -> None:
        """An owner gives up a bucket."""
        if self.buckets.retire(key):
            self._close(key)

    def lose(self, owner: str) -> None:
        """An owner is gone, or held for gone."""
        for key in self.buckets.lose(owner):
            self._close(key)

    def died(self) -> None:
        """This process has died: the kernel frees what it held."""
        for owner in self._owners.values():
            for memory in owner.memory.values():
                memory.opened.discard(self.host.name)
                memory.reading[:] = [name for name in memory.reading if name != self.host.name]
        for owner_name, block in self._held:
            self._owners[owner_name].table.release(self._slot, block)
        self._held.clear()

    def check_closed(self) -> None:
        """Check, when the world is at rest, that no bucket of a dead owner is open."""
        kept = {key.owner_id for key in self._numbers if key in self.buckets}
        dead = sorted(name for name in kept if not self._owners[name].host.alive)
        if self.host.alive and dead:
            raise Violation(f"{self.host.name} has buckets open of {dead}, who are dead", (self.host.name,))

    def _check(self, content: int, key: BucketKey) -> None:
        memory = self.memory(key)
        if memory.content != content or memory.is_freed or self.host.name not in memory.opened:
            raise Violation(f"{self.host.name} reads {memory} for {content}", (self.host.name,))

    def _close(self, key: BucketKey) -> None:
        if self.host.name in self.memory(key).reading:
            raise Violation(f"{self.host.name} closes what it reads", (self.host.name,))
        self.memory(key).opened.discard(self.host.name)
        self.release(key.owner_id, key.block)
