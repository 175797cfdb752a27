"""A small item, as it is put."""

from __future__ import annotations

from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.framing import Buffer

# Shared memory, or an announcement, would cost more than so many bytes.
SMALL_BYTES = 16 << 10


class SmallParcel:
    """An item that always travels as its bytes.

    Attributes:
        frames: they.
        size_bytes: how large it is.
    """

    __slots__ = ("frames", "size_bytes")

    def __init__(self, frames: list[Buffer], size_bytes: int) -> None:
        self.frames = frames
        self.size_bytes = size_bytes

    def goes_as_descriptor(self, _peer: Endpoint) -> bool:
        """Whether `frames_for` gives something else than the bytes."""
        return False

    def frames_for(self, _peer: Endpoint) -> list[Buffer]:
        """What to send."""
        return self.frames

    def bytes_frames(self) -> list[Buffer]:
        """The same."""
        return self.frames
