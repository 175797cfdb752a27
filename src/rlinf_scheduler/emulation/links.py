"""When what is sent over an emulated link is there. Pure: the clock is passed in.

A pair of processes has a link if a delay was given for it. Members of a bandwidth group share one line upwards, for all
that they send over links, and one downwards; each carries one transfer after the other, in the order in which they are
booked. The first byte of a transfer is there a delay after it left, and the last one when both lines have let it
through: so a transfer alone takes the delay and its bytes at the slower of the two bandwidths.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from rlinf_scheduler.config.net_emulation import LinkEnd, NetEmulation, group_key

T = TypeVar("T")
# So many transfers that several receive are remembered.
MAX_TRANSFERS = 4096


class ProcessPlace(NamedTuple):
    """Where a process is.

    Attributes:
        group: its group's key.
        rank: its rank; -1 if it has none.
        node_rank: its node; None where that is not known.
    """

    group: str
    rank: int
    node_rank: int | None = None


def place_of(address: str, node_rank: int | None = None) -> ProcessPlace:
    """The place of a process; one below a rank is where that is.

    >>> place_of("ActorGroup:3")[:2], place_of("rollout:3/0", 1)[:3], place_of("driver")[:2]
    (('actor', 3), ('rollout', 3, 1), ('', -1))
    """
    group, colon, rank = address.partition("/")[0].rpartition(":")
    return (
        ProcessPlace(group_key(group), int(rank), node_rank)
        if colon and rank.isdecimal()
        else ProcessPlace("", -1)
    )


class SharedLine:
    """One direction of a bandwidth group: it carries one transfer after the other.

    >>> line = SharedLine(bytes_per_s=100.0)
    >>> line.carry(200, begins=5.0), line.carry(100, begins=6.0)
    ((5.0, 7.0), (7.0, 8.0))
    """

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.free_at = -math.inf

    def carry(self, size_bytes: int, begins: float) -> tuple[float, float]:
        """From when to when it carries so many bytes, which can begin then."""
        first = max(begins, self.free_at)
        self.free_at = first + size_bytes / self.bytes_per_s
        return first, self.free_at


class Link(NamedTuple):
    """What lies between two processes.

    Attributes:
        delay_s: how long a byte is under way, in seconds.
        up: the bandwidth group of the source; None: as fast as it is.
        down: of the target.
    """

    delay_s: float
    up: int | None
    down: int | None


class Links:
    """All emulated links of a job."""

    def __init__(self, emulation: NetEmulation) -> None:
        self._emulation = emulation
        self._up = [SharedLine(each.bytes_per_s) for each in emulation.bandwidths]
        self._down = [SharedLine(each.bytes_per_s) for each in emulation.bandwidths]
        self._found: dict[tuple[ProcessPlace, ProcessPlace], Link | None] = {}
        # When each transfer that several receive went up, and was down, by its name and the line.
        self._gone_up: OrderedDict[tuple[str, int], tuple[float, float]] = OrderedDict()
        self._come_down: OrderedDict[tuple[str, int], float] = OrderedDict()

    def between(self, source: ProcessPlace, target: ProcessPlace) -> Link | None:
        """The link from one process to another; None: there is none, nothing is emulated."""
        key = source, target
        if key not in self._found:
            self._found[key] = self._find(source, target) if source != target else None
        return self._found[key]

    def bytes_per_s(self, link: Link) -> float:
        """The most that a link carries; infinity where nothing limits it."""
        lines = [self._up[link.up]] if link.up is not None else []
        lines += [self._down[link.down]] if link.down is not None else []
        return min((each.bytes_per_s for each in lines), default=math.inf)

    def book(self, link: Link, size_bytes: int, now: float, transfer: str = "") -> float:
        """Send so many bytes over a link now, after all that was booked before; when the last of them is there.

        Args:
            now: seconds of a clock that never goes back.
            transfer: the name of what several receive, if it is that: it goes up once, and down once for each
                bandwidth group that receives it.
        """
        if transfer and link.down is not None and (transfer, link.down) in self._come_down:
            return self._come_down[transfer, link.down]
        first, last = self._send(link, size_bytes, now, transfer)
        there = last + link.delay_s
        if link.down is not None:
            line = self._down[link.down]
            there = max(there, line.carry(size_bytes, first + link.delay_s)[1])
            line.free_at = there
            _note(self._come_down, transfer, link.down, there)
        return there

    def _send(self, link: Link, size_bytes: int, now: float, transfer: str) -> tuple[float, float]:
        if link.up is None:
            return now, now
        sent = self._gone_up.get((transfer, link.up)) if transfer else None
        if sent is None:
            sent = self._up[link.up].carry(size_bytes, now)
            _note(self._gone_up, transfer, link.up, sent)
        return sent

    def _find(self, source: ProcessPlace, target: ProcessPlace) -> Link | None:
        delay_s: float | None = None
        for each in self._emulation.delays:
            if _holds(each.sources, source) and _holds(each.targets, target):
                delay_s = each.delay_s
        if delay_s is None:
            return None
        return Link(delay_s, self._bandwidth_of(source), self._bandwidth_of(target))

    def _bandwidth_of(self, place: ProcessPlace) -> int | None:
        shared = self._emulation.bandwidths
        return next((index for index, each in enumerate(shared) if _holds(each.members, place)), None)


def _holds(ends: Sequence[LinkEnd], place: ProcessPlace) -> bool:
    return any(end.holds(place.group, place.rank, place.node_rank) for end in ends)


def _note(notes: OrderedDict[tuple[str, int], T], transfer: str, line: int, value: T) -> None:
    if transfer:
        notes[transfer, line] = value
        if len(notes) > MAX_TRANSFERS:
            notes.popitem(last=False)
