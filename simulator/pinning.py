"""Pinned shared memory in a simulated cluster: the server fills blocks, and devices of others read them by themselves.

Around the real `BlockStore`, `HolderTable` and `Pins`. A device reads the pages that it was told of: they are those of
the block, all that is read is pinned, and what it reads is what was put there. In the end no page is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rlinf_scheduler.comm.promise import Wake
from rlinf_scheduler.comm.shm.blocks import Block
from rlinf_scheduler.comm.shm.holders import HolderTable, table_bytes
from rlinf_scheduler.comm.shm.layout import Layout
from rlinf_scheduler.devices.pins import PinKey
from simulator.cluster import Cluster, Part
from simulator.host import Host
from simulator.script import Call, Script
from simulator.world import Violation

PINNING = "pinning"
EVERY, WHICH = 16, 5
"""Of so many stories this one is about pinned memory: what is said there shifts all else."""
KIB = 1 << 10
LIMIT_BYTES, PINNED_BYTES = 1024 * KIB, 512 * KIB
NUM_ITEMS, NUM_LOOKS = 40, 12
TELLING_US = 3_000_000
MAX_COPY_US, MAX_KEEP_US = 20_000, 300_000
_NOWHERE = np.empty(0, np.uint8)


class Item(NamedTuple):
    """Something that lies in a block."""

    number: int
    block: int
    generation: int
    size_bytes: int


class Taken(NamedTuple):
    """The reader holds it."""

    number: int


class Writer:
    """The process whose memory it is."""

    def __init__(self, host: Host, cluster: Cluster) -> None:
        self.host = host
        layout = Layout(LIMIT_BYTES)
        self.table = HolderTable(np.zeros(table_bytes(layout.num_blocks), np.uint8), layout.num_blocks)
        self.store = cluster.machines.block_store(
            layout, self.table, make_block=_block, punch=self._punch, charge=self._charge
        )
        self.readers: list[str] = []
        self.lost_peers: set[str] = set()
        self.unpin_is_wanted: set[str] = set()
        # How often the pages of a block were given back, and which item lies there.
        self.pages: dict[int, int] = {}
        self.items: dict[int, int] = {}
        self._sent: dict[tuple[str, int], Block] = {}
        self._draw = host.world.randomness(PINNING)
        host.serve(PINNING, self)

    def put(self, number: int) -> None:
        """Fill a block and send it to somebody, if there is room."""
        self.store.look()
        size_bytes = self._draw.choice((64, 72, 100, 112, 250)) * KIB
        block = self.store.take(size_bytes)
        self._see_pins()
        readers = [each for each in self.readers if each not in self.lost_peers]
        if block is None or not readers:
            return
        self.items[block.index] = number
        reader = self._draw.choice(readers)
        self._sent[reader, number] = block
        self.host.send(reader, PINNING, Item(number, block.index, block.generation, size_bytes))

    def trim(self) -> None:
        """Give back what is free."""
        self.store.look()
        while self.store.trim():
            pass
        self._see_pins()

    def receive(self, sender: str, message: Any) -> None:
        """A message came."""
        self._sent.pop((sender, message.number), None)

    def lost(self, peer: str) -> None:
        """The session with `peer` has ended: nothing more comes from it, nothing more arrives there."""
        self.lost_peers.add(peer)
        for sent in [each for each in self._sent if each[0] == peer]:
            del self._sent[sent]

    def _see_pins(self) -> None:
        if self.store.pins_in_the_way:
            self.unpin_is_wanted.update(self.readers)

    def _punch(self, index: int, _room_bytes: int) -> None:
        self.pages[index] = self.pages.get(index, 0) + 1

    def _charge(self, size_bytes: int) -> bool:
        return self.store.touched_bytes + size_bytes <= LIMIT_BYTES


def _block(index: int, generation: int, room_bytes: int) -> Block:
    return Block(index, generation, room_bytes, _NOWHERE, 0, Wake(lambda: None))


@dataclass(frozen=True)
class Pinned:
    """What a device was told of: how long it is, and of which pages."""

    size_bytes: int
    pages: int


class PinningReader:
    """A process whose device reads what it gets."""

    def __init__(self, host: Host, slot: int, writer: Writer, cluster: Cluster) -> None:
        self.host = host
        self.pins = cluster.machines.pins(PINNED_BYTES)
        self._writer = writer
        self._slot = slot
        self._pinned: dict[PinKey, Pinned] = {}
        self._held: set[int] = set()
        self._draw = host.world.randomness(PINNING, host.name)
        writer.table.pids[slot] = slot + 1
        writer.readers.append(host.name)
        host.serve(PINNING, self)
        for _ in range(NUM_LOOKS):
            host.later(self._draw.randrange(TELLING_US), self.look)

    def receive(self, sender: str, message: Any) -> None:
        """A message came."""
        if not self._writer.table.hold(self._slot, message.block, message.generation):
            if self.host.name not in self._writer.lost_peers:
                raise Violation(f"{self.host.name} is given {message}, which is gone", (self.host.name,))
            return
        self._held.add(message.block)
        self.host.send(sender, PINNING, Taken(message.number))
        self.host.later(self._draw.randrange(MAX_COPY_US), self._load, message)

    def lost(self, peer: str) -> None:
        """The session with `peer` has ended: nothing more comes from it, nothing more arrives there."""

    def look(self) -> None:
        """Unpin what the writer wants back."""
        if self.host.name in self._writer.unpin_is_wanted:
            self._writer.unpin_is_wanted.remove(self.host.name)
            for key in self.pins.idle():
                self._unpin(key)

    def died(self) -> None:
        """The kernel frees what it held and had pinned."""
        for block in self._held:
            self._writer.table.release(self._slot, block)
        for key in self._pinned:
            self._writer.table.unpin(self._slot, key.block)

    def _load(self, item: Item) -> None:
        key = PinKey(self._writer.host.name, item.block)
        is_pinned = self._pin(key, item.size_bytes)
        if is_pinned:
            self.pins.begin(key)
            # It is told to copy, and the last array is dropped: the device may be later.
            self._device_reads(key, item)
        keeps_us = self._draw.choice((1_000, MAX_COPY_US, MAX_KEEP_US))
        self.host.later(self._draw.randrange(keeps_us), self._release, key, item, is_pinned)

    def _pin(self, key: PinKey, size_bytes: int) -> bool:
        if self.pins.covers(key, size_bytes):
            return True
        unpinned = self.pins.make_room(key, size_bytes)
        if unpinned is None:
            return False
        for other in unpinned:
            self._unpin(other)
        self._writer.table.pin(self._slot, key.block)
        self._pinned[key] = Pinned(size_bytes, self._writer.pages.get(key.block, 0))
        self.pins.add(key, size_bytes)
        pinned_bytes = sum(each.size_bytes for each in self._pinned.values())
        if pinned_bytes > PINNED_BYTES:
            raise Violation(f"{self.host.name} has pinned {pinned_bytes} bytes", (self.host.name,))
        self.host.world.note(self.host.name, "pins", key.block)
        return True

    def _unpin(self, key: PinKey) -> None:
        self.pins.remove(key)
        del self._pinned[key]
        self._writer.table.unpin(self._slot, key.block)

    def _device_reads(self, key: PinKey, item: Item) -> None:
        writer, pinned = self._writer, self._pinned.get(key)
        pages = writer.pages.get(key.block, 0)
        if pinned is None or pinned.size_bytes < item.size_bytes or pinned.pages != pages:
            raise Violation(
                f"a device of {self.host.name} reads {item} from {pinned}; its pages are {pages}",
                (self.host.name,),
            )
        if writer.items[item.block] != item.number:
            raise Violation(f"a device of {self.host.name} reads another item for {item}", (self.host.name,))

    def _release(self, key: PinKey, item: Item, is_pinned: bool) -> None:
        if is_pinned:
            self._device_reads(key, item)
            self.pins.end(key)
            self.host.world.note(self.host.name, "has read pinned", item.number)
        self._held.remove(item.block)
        self._writer.table.release(self._slot, item.block)


class PinningPart(Part):
    """The server sends items in its memory, and the devices of all others read them there."""

    def __init__(self, cluster: Cluster, script: Script) -> None:
        del script
        self._cluster = cluster
        self._readers: dict[str, PinningReader] = {}
        self._writer: Writer | None = None
        if cluster.world.seed % EVERY == WHICH:
            draw = cluster.world.randomness("pinned memory")
            self._writer = writer = Writer(cluster.server, cluster)
            for number in range(NUM_ITEMS):
                cluster.server.later(draw.randrange(TELLING_US), writer.put, number)
            for _ in range(NUM_LOOKS):
                cluster.server.later(draw.randrange(TELLING_US), writer.trim)

    def start(self, host: Host, number: int) -> None:
        """A process has started."""
        del number
        if self._writer is not None and host.name != self._writer.host.name:
            slot = len(self._readers)
            self._readers[host.name] = PinningReader(host, slot, self._writer, self._cluster)

    def call(self, host: Host, step: Call) -> None:
        """A user calls in a process."""

    def died(self, host: Host) -> None:
        """A process has died."""
        if host.name in self._readers:
            self._readers[host.name].died()

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""
        writer = self._writer
        if writer is None or not writer.host.alive:
            return
        yield
        writer.trim()
        for reader in self._readers.values():
            if reader.host.alive:
                reader.look()
        writer.trim()
        if writer.store.touched_bytes:
            raise Violation(f"{writer.store.touched_bytes} bytes are kept that nobody uses")
