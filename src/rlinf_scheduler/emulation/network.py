"""The emulated network of a job, in its home: one clock and one order for all that is sent over its links."""

from __future__ import annotations

import math

import msgspec

from rlinf_scheduler.comm import Request
from rlinf_scheduler.config.net_emulation import NetEmulation
from rlinf_scheduler.emulation.links import Links, ProcessPlace, place_of
from rlinf_scheduler.session import Session

# -- what is said to it ------------------------------------------------------------------------------


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


# -- the home ----------------------------------------------------------------------------------------


class EmulatedNetwork:
    """Says when what has arrived would be there. On the I/O thread, but for its making.

    Args:
        session: the home's; it was provided with the `NetEmulation`.
    """

    def __init__(self, session: Session) -> None:
        self._links = Links(session.fact(NetEmulation) or NetEmulation())
        self._now = session.messenger.now
        self._places: dict[str, ProcessPlace] = {}
        session.messenger.serve(PLACE, self._on_place, TellPlace)
        session.messenger.serve(BOOK, self._on_book, BookTransfer)

    def _on_place(self, request: Request) -> None:
        said: TellPlace = request.head
        self._places[request.peer_name] = place_of(request.peer_name, said.node_rank)
        request.reply(None)

    def _on_book(self, request: Request) -> None:
        wanted: BookTransfer = request.head
        link = self._links.between(self._place(wanted.source), self._place(request.peer_name))
        if link is None:
            request.reply(Booked(0.0, is_linked=False))
            return
        now = self._now()
        there = self._links.book(link, wanted.size_bytes, now, wanted.transfer)
        most = self._links.bytes_per_s(link)
        request.reply(
            Booked(max(0.0, there - now), is_linked=True, bytes_per_s=0 if most == math.inf else most)
        )

    def _place(self, name: str) -> ProcessPlace:
        # A process below a rank is where that is.
        return self._places.get(name.partition("/")[0]) or place_of(name)
