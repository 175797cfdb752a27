"""An object that has come from another process: its bytes, or the block of shared memory in which they lie.

Single frames whose first byte is 254 or 255 stand for an object that is elsewhere; no object's own bytes begin so. In
a block the frames follow each other, each at a multiple of 64 bytes, large ones at the beginning of a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf_scheduler.comm.codec import decode
from rlinf_scheduler.comm.codec.copying import BATCH_BYTES
from rlinf_scheduler.comm.framing import Buffer, Bytes, object_bytes, total_bytes
from rlinf_scheduler.comm.shm.foreign import BlockLease
from rlinf_scheduler.comm.shm.kernel import PAGE_BYTES

DESCRIPTOR = 255
_ELSEWHERE = 254
_ALIGNMENT = 64


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


class ReceivedPayload:
    """An object that came from another process, not decoded yet.

    Attributes:
        block: the one in which it lies; None if its bytes came in the message.
        sizes: of the frames in shared memory.
    """

    __slots__ = ("_frames", "block", "sizes")

    def __init__(
        self, frames: list[Buffer], block: BlockLease | None = None, sizes: Sequence[int] = ()
    ) -> None:
        self._frames = frames
        self.block = block
        self.sizes = sizes

    @property
    def size_bytes(self) -> int:
        """How large it is (see `object_bytes`)."""
        if self.block is None:
            frames = self._frames
            if len(frames) == 1:
                return total_bytes(frames)
            return object_bytes(total_bytes(frames[:1]), total_bytes(frames[1:]))
        return object_bytes(self.sizes[0], sum(self.sizes) - self.sizes[0])

    def mark(self) -> Any:
        """A byte of its block, seen by all processes: 1 once somebody has taken the object; None without a block."""
        return None if self.block is None else self.block.mark()

    def frames(self) -> list[Buffer]:
        """Its frames, to be read and handed on; those in shared memory keep their block.

        Raises:
            OSError: shared memory can neither be mapped nor read here.
        """
        if self.block is None:
            return self._frames
        try:
            return frames_of(self.block.original(), self.sizes)
        except OSError:  # too many descriptors or maps
            return frames_of(self.block.copy(), self.sizes)

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
        return self._frames if self.block is None else frames_of(self.block.to_load(), self.sizes)

    def copied(self) -> ReceivedPayload:
        """The same in memory of its own."""
        return ReceivedPayload([bytearray(frame) for frame in self.frames()])
