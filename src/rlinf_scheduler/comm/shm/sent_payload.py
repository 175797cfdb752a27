"""An object on its way to other processes: its bytes in the message, or in shared memory with a descriptor instead.

    descriptor  u8 255, then msgpack of a `Descriptor`

The owner is the process in whose arena the bytes lie; `pid` is a process that has that arena open, and whoever gets
the descriptor opens it there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer, object_bytes
from rlinf_scheduler.comm.shm.arena import Arena
from rlinf_scheduler.comm.shm.blocks import Block
from rlinf_scheduler.comm.shm.payload import DESCRIPTOR, frame_offsets, frames_of

_PREFIX = bytes([DESCRIPTOR])


class Descriptor(msgspec.Struct, array_like=True, frozen=True):
    """Where an object lies in shared memory, as it travels.

    Attributes:
        pid: a process that has the arena open as `fd`.
        generation: which of those that lie in that block one after the other.
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


def described_bytes(frames: Sequence[Buffer]) -> int:
    """Return how large the object is that a descriptor stands for."""
    first, *others = Descriptor.from_frame(frames[0]).frame_sizes
    return object_bytes(first, sum(others))


class Written:
    """A block of this process's own arena for an object.

    Args:
        sizes: of the object's frames, which are written into the block.
    """

    __slots__ = ("_arena", "block", "sizes")

    def __init__(self, arena: Arena, block: Block, sizes: Sequence[int]) -> None:
        self._arena = arena
        self.block = block
        self.sizes = sizes

    def write(self, encoded: Encoded) -> None:
        """Copy the object into the block."""
        offsets, _ = frame_offsets(self.sizes)
        encoded.write_into(self.block.memory, offsets)

    def descriptor(self, owner_id: str, pid: int, *, shared: bool) -> Descriptor:
        """How others find it."""
        block = self.block
        sizes = tuple(self.sizes)
        return Descriptor(owner_id, pid, self._arena.fd, block.index, block.generation, sizes, shared)

    def when_free(self, tell: Callable[[], None]) -> None:
        """Call `tell` on the I/O thread once nobody uses a block any more; by who has it."""
        self._arena.when_free(self.block, tell)

    def holders(self) -> list[int]:
        """The ids of the processes that hold a block."""
        return self._arena.holders(self.block)

    def frames(self) -> list[Buffer]:
        """The object's frames; they keep the block."""
        return frames_of(self.block.memory, self.sizes)


class Payload:
    """An object that is sent, from the call until nobody here needs its bytes; refers to them until dropped.

    Args:
        own_id: the process id of this process.
        reads_ours: whether the process of that id can read this one's arena.
        frames: its bytes where they are not in the arena.
        written: where it lies in the arena, if it does.
        shared: several processes will read it.
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
    def block(self) -> Block | None:
        """The block of this process's arena in which its bytes lie, if they do."""
        return None if self._written is None else self._written.block

    @property
    def in_shared_memory(self) -> bool:
        """Whether its bytes lie in this process's arena."""
        return self._written is not None

    @property
    def sizes(self) -> Sequence[int]:
        """How many bytes each of its frames has."""
        return [*map(len, self._frames)] if self._written is None else self._written.sizes

    def goes_as_descriptor(self, peer: Endpoint) -> bool:
        """Whether `frames_for` gives a descriptor."""
        return self._written is not None and self._reads_ours(peer.process_id)

    def frames_for(self, peer: Endpoint) -> list[Buffer]:
        """What to send to `peer`: a descriptor if it reads our arena, else the bytes."""
        at = self.descriptor if self._reads_ours(peer.process_id) else None
        return self.bytes_frames() if at is None else [at.to_frame()]

    @property
    def descriptor(self) -> Descriptor | None:
        """Where it lies in this process's arena; None if it does not."""
        written = self._written
        return None if written is None else written.descriptor(self._own_id, os.getpid(), shared=self._shared)

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
