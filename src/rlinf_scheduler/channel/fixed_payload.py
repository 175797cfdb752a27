"""Items as they are put, that go as the same frames whoever gets them."""

from __future__ import annotations

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer

# Shared memory, or an announcement, would cost more than so many bytes.
SMALL_BYTES = 16 << 10


class FixedPayload:
    """An item whose frames say where it is.

    Attributes:
        frames: they.
        size_bytes: how large the item is.
    """

    __slots__ = ("frames", "size_bytes")
    is_elsewhere = True

    def __init__(self, frames: list[Buffer], size_bytes: int) -> None:
        self.frames = frames
        self.size_bytes = size_bytes

    def goes_as_descriptor(self, _peer: Endpoint) -> bool:
        """Whether `frames_for` gives something else than the bytes."""
        return self.is_elsewhere

    def frames_for(self, _peer: Endpoint) -> list[Buffer]:
        """Return the frames for the channel's server."""
        return self.frames

    def bytes_frames(self) -> list[Buffer]:
        """Return the frames for a receiver that could not read those."""
        return self.frames


class InlinePayload(FixedPayload):
    """An item that always travels as its bytes: these are its frames."""

    __slots__ = ()
    is_elsewhere = False
