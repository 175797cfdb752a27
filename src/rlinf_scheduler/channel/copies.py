"""What travels with items besides their bytes: copies of what lives in a process, and what an item was made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from threading import get_ident, local
from typing import TYPE_CHECKING, Any
from weakref import ref

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.arguments import MAX_INTEGER
from rlinf_scheduler.errors import ChannelArgumentError, SchedulerError
from rlinf_scheduler.tape.work import current_step, current_work

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


# An item says so many sources itself, and of more, how many; with so many bytes of names.
MAX_NAMED = 4096
MAX_NAMES_BYTES = 4 << 20


def own_trace() -> wire.Trace | None:
    """Return the origins of an item that this thread or task puts now; None if it has taken nothing recorded."""
    work = current_work()
    if not work.sources and work.step is None:
        return None
    work.put()
    return wire.Trace(list(work.sources), work.num_left_out, work.step)


def trace_of(channel: str, sources: Any) -> wire.Trace:
    """Return the origins of an item as its producer names them.

    Args:
        channel: into which it is put, for messages.
        sources: ids of items, and what has `ids`, such as batches; or one of these alone.

    Raises:
        ChannelArgumentError: something in it is neither.
    """
    ids = _ids(channel, sources)
    _check_ids(channel, ids[:MAX_NAMED])
    return wire.Trace(ids[:MAX_NAMED], max(0, len(ids) - MAX_NAMED), current_step())


def _ids(channel: str, sources: Any) -> list[wire.ItemId]:
    if isinstance(sources, wire.ItemId):
        return [sources]
    ids = getattr(sources, "ids", None)
    if ids is None and isinstance(sources, list | tuple):
        return [one for source in sources for one in _ids(channel, source)]
    if ids is None:
        problem = f"sources are batches, leases, or ids of their items (`batch.ids`), not {sources!r}"
        raise ChannelArgumentError(channel, problem)
    return list(ids)


def _check_ids(channel: str, ids: Sequence[Any]) -> None:
    """Raise unless a message can carry them."""
    if not all(type(each) is wire.ItemId for each in ids):
        strange = next(each for each in ids if type(each) is not wire.ItemId)
        raise ChannelArgumentError(channel, f"sources are ids of items (`batch.ids`), not {strange!r}")
    texts = [text for each in ids for text in each[:2]]
    numbers = [each.number for each in ids]
    if not all(type(text) is str for text in texts) or not all(_is_number(number) for number in numbers):
        raise ChannelArgumentError(channel, "sources are ids of items as a batch has them (`batch.ids`)")
    try:
        size_bytes = len("".join(texts).encode())
    except UnicodeEncodeError as error:
        raise ChannelArgumentError(channel, f"sources: the name of a producer is no text: {error}") from error
    if size_bytes > MAX_NAMES_BYTES:
        limit = f"{MAX_NAMES_BYTES >> 20} MiB"
        raise ChannelArgumentError(
            channel, f"sources have {size_bytes} bytes of names; they may have {limit}"
        )


def _is_number(number: Any) -> bool:
    return type(number) is int and 0 <= number <= MAX_INTEGER
