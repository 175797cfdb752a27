"""Shared memory of simulated machines: blocks that processes of one machine read, until nobody keeps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.shm.payload import ReceivedPayload, frame_offsets, frames_of, is_descriptor
from rlinf_scheduler.comm.shm.payloads import SHARED_BYTES, Payloads
from rlinf_scheduler.comm.shm.sent_payload import Descriptor, Payload
from rlinf_scheduler.errors import SharedMemoryUnreadable
from simulator.world import Process

# So many descriptors cannot be read; then bytes are sent for a while.
UNREADABLE_SHARE = 0.03
DISTRUST_S = 1.0


class Block:
    """Memory with an object in it, and what says that somebody has taken that."""

    def __init__(self, number: int, sizes: Sequence[int]) -> None:
        self.offsets, size_bytes = frame_offsets(sizes)
        self.number = number
        self.sizes = tuple(sizes)
        self.memory = np.zeros(size_bytes, np.uint8)
        self.taken = bytearray(1)

    def descriptor(self, owner_id: str, pid: int, *, shared: bool) -> Descriptor:
        """How others find it; `pid` is the real one, and says nothing here."""
        return Descriptor(owner_id, 0, 0, self.number, 0, self.sizes, shared)

    def frames(self) -> list[Buffer]:
        """The object's frames."""
        return frames_of(self.memory, self.sizes)


class BlockRead:
    """A block as somebody reads it who did not write it."""

    def __init__(self, block: Block, *, shared: bool) -> None:
        self.block, self.shared = block, shared

    def mark(self) -> bytearray:
        """What says that somebody has taken the object."""
        return self.block.taken

    def original(self) -> NDArray[np.uint8]:
        """The bytes."""
        return self.block.memory

    def copy(self) -> NDArray[np.uint8]:
        """The bytes, for its reader alone."""
        return self.block.memory.copy()

    to_load = copy


class Memory:
    """The blocks of all machines."""

    def __init__(self) -> None:
        self.blocks: WeakValueDictionary[int, Block] = WeakValueDictionary()
        self._num_blocks = 0

    def reserve(self, sizes: Sequence[int]) -> Block:
        """Return a new block for an object."""
        self._num_blocks += 1
        block = self.blocks[self._num_blocks] = Block(self._num_blocks, sizes)
        return block

    def write(self, encoded: Encoded) -> Block:
        """Return a new block with an object."""
        block = self.reserve(encoded.sizes)
        encoded.write_into(block.memory, block.offsets)
        return block


class SimulatedPayloads(Payloads):
    """What a simulated process sends and receives: in the memory of its machine where the other one has that, too.

    Args:
        memory: of all machines.
        process: the process.
        is_near: whether a process, by its id, is of this machine.
        messenger: its messenger.
    """

    def __init__(
        self,
        memory: Memory,
        process: Process,
        is_near: Callable[[str], bool],
        messenger: Messenger,
        *_limits: Any,
    ) -> None:
        super().__init__(messenger, 0)
        self._memory = memory
        self._process = process
        self._is_near = is_near
        self._draw = process.world.randomness("memory", process.name)
        self._distrusted_until: dict[str, float] = {}

    def reads_ours(self, process_id: str) -> bool:
        return self._is_near(process_id) and self._process.now() >= self._distrusted_until.get(process_id, 0)

    def when_ready(self, _peer: Endpoint, callback: Callable[[], None]) -> None:
        self._messenger.submit(callback)

    def distrust(self, process_id: str, _reason: str) -> None:
        self._distrusted_until[process_id] = self._process.now() + DISTRUST_S

    def pack(
        self,
        encoded: Encoded,
        peer: Endpoint | None,
        *,
        snapshot: bool,
        wait_s: float = 0.0,
        shared: bool = False,
    ) -> Payload:
        near = peer is None or self.reads_ours(peer.process_id)
        written: Any = self._memory.write(encoded) if near and encoded.size_bytes >= SHARED_BYTES else None
        frames = encoded.snapshot() if written is None else []
        size_bytes = encoded.object_bytes
        return Payload(self.own_id, self.reads_ours, frames, written, size_bytes=size_bytes, shared=shared)

    def reserve(self, sizes: Sequence[int], *, wait_s: float = 0.0, shared: bool = False) -> Payload:
        written: Any = self._memory.reserve(sizes)
        size_bytes = sum(sizes[1:]) or sizes[0]
        return Payload(self.own_id, self.reads_ours, [], written, size_bytes=size_bytes, shared=shared)

    def receive(self, frames: list[Buffer], *, to_load: bool = True) -> ReceivedPayload:
        if not is_descriptor(frames):
            return ReceivedPayload(frames)
        at = Descriptor.from_frame(frames[0])
        block = self._memory.blocks.get(at.index)
        if block is None or self._draw.random() < UNREADABLE_SHARE:
            raise SharedMemoryUnreadable("its owner is gone" if block is None else "no descriptor is left")
        return _received(block, at.frame_sizes, shared=at.shared)

    def frames_for(self, arrived: ReceivedPayload, peer: Endpoint, *, shared: bool = False) -> list[Buffer]:
        read: Any = arrived.block
        if read is None or not self.reads_ours(peer.process_id):
            return arrived.frames()
        return [read.block.descriptor(self.own_id, 0, shared=shared or read.shared).to_frame()]


def _received(block: Block, sizes: Sequence[int], *, shared: bool) -> ReceivedPayload:
    read: Any = BlockRead(block, shared=shared)
    return ReceivedPayload([], read, sizes)
