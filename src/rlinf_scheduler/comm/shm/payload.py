"""An object on its way between processes: its bytes in the message, or in shared memory with a descriptor instead.

    descriptor  u8 255, then msgpack of a `Descriptor`

Single frames whose first byte is 254 or 255 stand for an object that is elsewhere; no object's own bytes begin so.

The owner is the process in whose arena the bytes lie; `pid` is a process that has that arena open, and whoever gets
the descriptor opens it there. The frames follow each other in the block, each at a multiple of 64 bytes, large ones at
the beginning of a page.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rlinf_scheduler.comm.codec import Encoded, decode
from rlinf_scheduler.comm.codec.copying import BATCH_BYTES
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer, Bytes, object_bytes, total_bytes
from rlinf_scheduler.comm.shm.arena import Arena
from rlinf_scheduler.comm.shm.blocks import Block
from rlinf_scheduler.comm.shm.kernel import PAGE_BYTES
from rlinf_scheduler.comm.shm.lease import BlockLease

DESCRIPTOR = 255
_ELSEWHERE = 254
_PREFIX = bytes([DESCRIPTOR])
_ALIGNMENT = 64


class Descriptor(msgspec.Struct, array_like=True, frozen=True):
    """Where an object lies in shared memory, as it travels.

    Attributes:
        owner_id: the process id of the arena's owner.
        pid: a process that has the arena open,
        fd: under this number.
        index: which block of the arena.
        generation: which of those that lie there one after the other.
        frame_sizes: of the frames in it, in bytes.
        shared: several processes read it, so each keeps to itself what it writes.
    """

    owner_id: str
    pid: int
    fd: int
    index: int
    generation: int
    frame_sizes: tuple[int, ...]
    shared: bool

    def to_frame(self) -> bytes:
        """The descriptor as a frame."""
        return _PREFIX + msgspec.msgpack.encode(self)

    @classmethod
    def from_frame(cls, frame: Buffer) -> Descriptor:
        """The descriptor that `to_frame` wrote.

        Raises:
            ValueError: it is none.
        """
        return _decode(memoryview(frame)[1:])


_decode = msgspec.msgpack.Decoder(Descriptor).decode


def is_here(frames: Sequence[Buffer]) -> bool:
    """Whether these frames are an object's bytes, and do not say where these are."""
    return len(frames) != 1 or not len(frames[0]) or frames[0][0] < _ELSEWHERE


def is_descriptor(frames: Sequence[Buffer]) -> bool:
    """Whether these frames stand for an object in shared memory."""
    return not is_here(frames) and frames[0][0] == DESCRIPTOR


def frame_offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where frames of these sizes begin in a block, and how long it has to be."""
    offsets: list[int] = []
    end = 0
    for size in sizes:
        if size >= BATCH_BYTES:
            # glibc copies around the cache, and where the target lies a little further in its page than the source, it
            # takes four pages at a time, a fifth faster. Large memory of malloc's begins 16 or 64 bytes after a page.
            end = -(-end // PAGE_BYTES) * PAGE_BYTES
        offsets.append(end)
        end = -(-(end + size) // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def frames_of(memory: Bytes, sizes: Sequence[int]) -> list[Buffer]:
    """The frames that lie in a block; each keeps `memory`."""
    offsets, _ = frame_offsets(sizes)
    return [memory[offset : offset + size].data for offset, size in zip(offsets, sizes, strict=True)]


class Written:
    """A block of this process's own arena with an object in it.

    Args:
        arena: the arena.
        block: the block.
        encoded: the object; it is copied into the block here.
    """

    __slots__ = ("_arena", "_block", "_sizes")

    def __init__(self, arena: Arena, block: Block, encoded: Encoded) -> None:
        self._arena = arena
        self._block = block
        self._sizes = encoded.sizes
        offsets, _ = frame_offsets(encoded.sizes)
        encoded.write_into(block.memory, offsets)

    def descriptor(self, owner_id: str, pid: int, *, shared: bool) -> Descriptor:
        """How others find it."""
        block = self._block
        sizes = tuple(self._sizes)
        return Descriptor(owner_id, pid, self._arena.fd, block.index, block.generation, sizes, shared)

    def when_free(self, tell: Callable[[], None]) -> None:
        """Call `tell` on the I/O thread once nobody uses a block any more; by who has it."""
        self._arena.when_free(self._block, tell)

    def holders(self) -> list[int]:
        """The ids of the processes that hold a block."""
        return self._arena.holders(self._block)

    def frames(self) -> list[Buffer]:
        """The object's frames; they keep the block."""
        return frames_of(self._block.memory, self._sizes)


class Payload:
    """An object that is sent, from the call until nobody here needs its bytes; refers to them until dropped.

    Args:
        own_id: the process id of this process.
        reads_ours: whether the process of that id can read this one's arena.
        frames: its bytes where they are not in the arena.
        written: where it lies in the arena, if it does.
        shared: several processes will read it.

    Attributes:
        size_bytes: how large it is.
    """

    __slots__ = ("_frames", "_own_id", "_reads_ours", "_shared", "_written", "size_bytes")

    def __init__(
        self,
        own_id: str,
        reads_ours: Callable[[str], bool],
        frames: list[Buffer],
        written: Written | None,
        *,
        size_bytes: int,
        shared: bool,
    ) -> None:
        self._own_id = own_id
        self._reads_ours = reads_ours
        self._frames = frames
        self._written = written
        self._shared = shared
        self.size_bytes = size_bytes

    @property
    def in_shared_memory(self) -> bool:
        """Whether its bytes lie in this process's arena."""
        return self._written is not None

    def goes_as_descriptor(self, peer: Endpoint) -> bool:
        """Whether `frames_for` gives a descriptor."""
        return self._written is not None and self._reads_ours(peer.process_id)

    def frames_for(self, peer: Endpoint) -> list[Buffer]:
        """What to send to `peer`: a descriptor if it reads our arena, else the bytes."""
        if self._written is None or not self._reads_ours(peer.process_id):
            return self.bytes_frames()
        return [self._descriptor_of(self._written).to_frame()]

    @property
    def descriptor(self) -> Descriptor | None:
        """Where it lies in this process's arena; None if it does not."""
        return None if self._written is None else self._descriptor_of(self._written)

    def _descriptor_of(self, written: Written) -> Descriptor:
        return written.descriptor(self._own_id, os.getpid(), shared=self._shared)

    def when_free(self, tell: Callable[[], None]) -> None:
        """Call `tell` on the I/O thread once nobody, here or elsewhere, uses its block; it has one."""
        if self._written is not None:
            self._written.when_free(tell)

    def holders(self) -> list[int]:
        """The ids of the processes that read its block."""
        return [] if self._written is None else self._written.holders()

    def bytes_frames(self) -> list[Buffer]:
        """What to send to a peer that could not read a descriptor: always the bytes."""
        return self._frames if self._written is None else self._written.frames()


class ReceivedPayload:
    """An object that came from another process, not decoded yet.

    Attributes:
        lease: the block in which it lies; None if its bytes came in the message.
        sizes: of the frames in shared memory.
    """

    __slots__ = ("_frames", "lease", "sizes")

    def __init__(
        self, frames: list[Buffer], lease: BlockLease | None = None, sizes: Sequence[int] = ()
    ) -> None:
        self._frames = frames
        self.lease = lease
        self.sizes = sizes

    @property
    def size_bytes(self) -> int:
        """How large it is (see `object_bytes`)."""
        if self.lease is None:
            frames = self._frames
            if len(frames) == 1:
                return total_bytes(frames)
            return object_bytes(total_bytes(frames[:1]), total_bytes(frames[1:]))
        return object_bytes(self.sizes[0], sum(self.sizes) - self.sizes[0])

    def mark(self) -> Any:
        """A byte of its block, seen by all processes: 1 once somebody has taken the object; None without a block."""
        return None if self.lease is None else self.lease.mark()

    def frames(self) -> list[Buffer]:
        """Its frames, to be read and handed on; those in shared memory keep their block.

        Raises:
            OSError: shared memory can neither be mapped nor read here.
        """
        if self.lease is None:
            return self._frames
        try:
            return frames_of(self.lease.original(), self.sizes)
        except OSError:  # too many descriptors or maps
            return frames_of(self.lease.copy(), self.sizes)

    def load(self) -> Any:
        """The object; its arrays and tensors are writable, and lie where the bytes are.

        Raises:
            CodecError: the bytes are no object, or its class cannot be had here.
            OSError: shared memory cannot be mapped here.
        """
        frames = self.to_load()
        return decode(frames[0], frames[1:])

    def to_load(self) -> list[Buffer]:
        """Its frames, for its taker to write into.

        Raises:
            OSError: shared memory cannot be mapped here.
        """
        return self._frames if self.lease is None else frames_of(self.lease.to_load(), self.sizes)

    def copied(self) -> ReceivedPayload:
        """The same in memory of its own."""
        return ReceivedPayload([bytearray(frame) for frame in self.frames()])
