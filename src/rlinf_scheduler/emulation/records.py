"""What processes of a job with an emulated network say to its home."""

from __future__ import annotations

import msgspec

# Services of the job's home.
PLACE = "emulation.place"
BOOK = "emulation.book"


class TellPlace(msgspec.Struct, frozen=True, array_like=True):
    """The sender runs on this node -> None."""

    node_rank: int


class BookTransfer(msgspec.Struct, frozen=True, array_like=True):
    """Something has arrived at the sender that crosses the link from there to it -> `Booked`.

    Attributes:
        transfer: its name, if others get the same; else "".
    """

    source: str
    size_bytes: int
    transfer: str = ""


class Booked(msgspec.Struct, frozen=True, array_like=True):
    """When it is there.

    Attributes:
        wait_s: in so many seconds.
        is_linked: whether there is a link at all; without, nothing more need be asked of that source.
        bytes_per_s: the most that the link carries; 0: nothing limits it, and it always takes `wait_s`.
    """

    wait_s: float
    is_linked: bool
    bytes_per_s: float = 0.0
