"""Copies of what lives in a process, which travel with items besides their bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from threading import get_ident, local
from typing import TYPE_CHECKING
from weakref import ref

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from rlinf_scheduler.channel.connection import ChannelConnection

# What is to be said when an item is done with, by its place among those that came together.
Ends = dict[int, list[Callable[[], None]]]


class _Reading(local):
    """How this thread reads items: as its own, from now on or once they are done with, or not; and their place."""

    takes = True
    ends: Ends | None = None
    place = 0


READING = _Reading()


class SentCopies:
    """The last copies that were pickled in this process, so that a put which fails says that it sent none.

    Attributes:
        number: how many there were.
    """

    def __init__(self) -> None:
        self.number = 0
        self._last: deque[tuple[int, ref[ChannelConnection], control_wire.Control]] = deque(maxlen=256)

    def add(self, connection: ChannelConnection, message: control_wire.Control) -> None:
        """A copy was made, that this message is to be sent of if it goes nowhere."""
        self._last.append((get_ident(), ref(connection), message))
        self.number += 1

    def since(self, number: int) -> list[tuple[ChannelConnection, control_wire.Control]]:
        """Return those that this thread has made after so many."""
        count = min(self.number - number, len(self._last))
        here = get_ident()
        last = islice(self._last, len(self._last) - count, None)
        return [(there, message) for thread, at, message in last if thread == here and (there := at())]


SENT_COPIES = SentCopies()


def forget(copies: Iterable[tuple[ChannelConnection, control_wire.Control]]) -> None:
    """Say that copies were not sent: the put that was to send them has put nothing."""
    for connection, message in copies:
        with suppress(SchedulerError):
            connection.requests.tell(message)


def read_at(place: int) -> None:
    """Note that the next item to be read has this place."""
    READING.place = place


@contextmanager
def read_until_done(ends: Ends) -> Iterator[None]:
    """Read items in this block that are the reader's once they are done with, which says `ends`."""
    READING.ends = ends
    try:
        yield
    finally:
        READING.ends = None


@contextmanager
def only_looked_at() -> Iterator[None]:
    """Read items in this block that stay where they are."""
    READING.takes = False
    try:
        yield
    finally:
        READING.takes = True
