"""An item whose bytes stay on its producer's node: what travels in their place, and what is said about it.

    held        u8 254, then msgpack of a `HeldAt`

A process of that node, its *holder* (see `node_holder`), has the bytes: by a descriptor of the producer's shared
memory, so nothing is copied. The producer hands an item over before it puts it, the channel's server says that it has
the put (*claims* it) and when the item is gone, and consumers fetch from the holder.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.shm.payload import is_here

HOLDER = "holder"
HELD = 254
_PREFIX = bytes([HELD])


class HeldAt(msgspec.Struct, array_like=True, frozen=True):
    """The place of an item's bytes, as it travels instead of them.

    Attributes:
        holder: the process that has them.
        number: which of its items it is.
        size_bytes: how large it is.
        node: the node, for people.
    """

    holder: Endpoint
    number: int
    size_bytes: int
    node: str

    def to_frame(self) -> bytes:
        """It as a frame."""
        return _PREFIX + msgspec.msgpack.encode(self)

    @classmethod
    def from_frames(cls, frames: Sequence[Buffer]) -> HeldAt | None:
        """Read what `to_frame` wrote; None if the frames are something else.

        Raises:
            ValueError: the frame is damaged.
        """
        if is_here(frames) or frames[0][0] != HELD:
            return None
        return _decode(memoryview(frames[0])[1:])


_decode = msgspec.msgpack.Decoder(HeldAt).decode


class HoldItem(msgspec.Struct, tag=0, array_like=True):
    """A producer hands over an item for a channel's server -> `Held`."""

    keeper: Endpoint


class Held(msgspec.Struct, array_like=True):
    """The number of an item that was handed over, and the node's name; or why it cannot be held."""

    number: int
    node: str
    problem: str = ""


class DropHeld(msgspec.Struct, tag=1, array_like=True):
    """A notice of the producer: a put came to nothing."""

    number: int


class Keep(msgspec.Struct, tag=2, array_like=True):
    """A notice of the channel's server: it has these items now, and does not need those any more."""

    claimed: list[int]
    released: list[int]


class FetchHeld(msgspec.Struct, tag=3, array_like=True):
    """Ask for items -> `Fetched` with their frames, by descriptors if the asker reads shared memory here."""

    asker: Endpoint
    numbers: list[int]
    as_bytes: bool


class Fetched(msgspec.Struct, array_like=True):
    """How many frames each item has; `missing`: those that are not here."""

    counts: list[int]
    missing: list[int]


OfHolder = HoldItem | DropHeld | Keep | FetchHeld
