"""Holds items of its node's producers, so that their bytes outlive these and need not pass a channel's machine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from rlinf_scheduler.channel.held import HOLDER, DropHeld, Fetched, FetchHeld, Held, HoldItem, Keep, OfHolder
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.errors import SharedMemoryUnreadable
from rlinf_scheduler.session import Session

# What a dead producer has put may still lie unread before its channel's server for so long.
UNCLAIMED_S = 60.0
T = TypeVar("T")


@dataclass(slots=True)
class _KeptItem(Generic[T]):
    payload: T
    producer: str
    keeper: str
    size_bytes: int
    claimed: bool = False
    orphaned: bool = False


@dataclass(slots=True)
class HeldItemTable(Generic[T]):
    """The items that a node's holder keeps, and for whom. Pure.

    An item is its producer's until the channel's server, its *keeper*, has claimed it; then it is the keeper's alone.
    Processes are named by their ids.

    Attributes:
        orphan_bytes: the size of what dead producers have left: it counts in nobody's arena.

    >>> book = HeldItemTable()
    >>> number = book.hold("an item", producer="env", keeper="channel")
    >>> book.claim("channel", [number]), book.drop("env", number), book.lose("env")
    (None, None, [])
    >>> book.find(number), book.release("channel", [number]), book.find(number)
    ('an item', None, None)
    """

    orphan_bytes: int = 0
    _items: dict[int, _KeptItem[T]] = field(default_factory=dict)
    _next_number: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)

    def __len__(self) -> int:
        return len(self._items)

    def hold(self, payload: T, *, producer: str, keeper: str, size_bytes: int = 0) -> int:
        """A producer hands an item over; returns its number, which no other one has ever."""
        number = self._next_number()
        self._items[number] = _KeptItem(payload, producer, keeper, size_bytes)
        return number

    def find(self, number: int) -> T | None:
        """Return an item; None if it is not here."""
        kept = self._items.get(number)
        return None if kept is None else kept.payload

    def claim(self, keeper: str, numbers: Iterable[int]) -> None:
        """A channel's server has these items: their producers' ends are nothing to them any more."""
        for kept in map(self._items.get, numbers):
            if kept is not None and kept.keeper == keeper:
                kept.claimed = True

    def release(self, keeper: str, numbers: Iterable[int]) -> None:
        """A channel's server does not need these items any more."""
        for number in numbers:
            kept = self._items.get(number)
            if kept is not None and kept.keeper == keeper:
                self._remove(number)

    def drop(self, producer: str, number: int) -> None:
        """A put came to nothing; of one that was claimed the channel's server says what becomes of it."""
        kept = self._items.get(number)
        if kept is not None and kept.producer == producer and not kept.claimed:
            self._remove(number)

    def lose(self, process: str) -> list[int]:
        """A process is gone; returns what it handed over and nobody has claimed yet: to be expired after a while."""
        for number in [number for number, kept in self._items.items() if kept.keeper == process]:
            self._remove(number)
        left = [number for number, kept in self._items.items() if kept.producer == process]
        for kept in map(self._items.__getitem__, left):
            self.orphan_bytes += 0 if kept.orphaned else kept.size_bytes
            kept.orphaned = True
        return [number for number in left if not self._items[number].claimed]

    def expire(self, numbers: Iterable[int]) -> None:
        """Nobody will claim these any more."""
        for number in numbers:
            kept = self._items.get(number)
            if kept is not None and not kept.claimed:
                self._remove(number)

    def _remove(self, number: int) -> None:
        kept = self._items.pop(number)
        self.orphan_bytes -= kept.size_bytes if kept.orphaned else 0


class NodeHolder:
    """Serves a `HeldItemTable` to the processes of the job; everything is on the I/O thread. A service of a session."""

    def __init__(self, session: Session) -> None:
        self.node = node_name(session.messenger.endpoint)
        self._messenger = session.messenger
        self._book: HeldItemTable[ReceivedPayload] = HeldItemTable()
        self._adopted_bytes = 0
        self._messenger.on_peer_lost(self._on_peer_lost)
        self._messenger.serve(HOLDER, self._on_message, OfHolder)

    @property
    def num_held(self) -> int:
        """How many items it has."""
        return len(self._book)

    def _on_message(self, request: Request) -> None:
        match request.head:
            case HoldItem(keeper):
                self._hold(request, keeper)
            case DropHeld(number):
                self._book.drop(request.peer_id, number)
            case Keep(claimed, released):
                self._book.claim(request.peer_id, claimed)
                self._book.release(request.peer_id, released)
                self._messenger.payloads.release_dropped()
                self._adopt()
            case FetchHeld(asker):
                request.check_claim(asker.process_id, "it fetches for itself")
                # Once it is known whether it reads shared memory here.
                self._messenger.payloads.when_ready(asker, partial(self._give, request, request.head))

    def _hold(self, request: Request, keeper: Endpoint) -> None:
        try:
            arrived = self._messenger.payloads.receive(request.frames, to_load=False)
        except SharedMemoryUnreadable as error:
            request.reply(Held(0, "", str(error)))
            return
        # Its end is the end of what it has claimed.
        self._messenger.connect(keeper)
        names = {"producer": request.peer_id, "keeper": keeper.process_id}
        number = self._book.hold(arrived, **names, size_bytes=arrived.size_bytes)
        if not request.reply(Held(number, self.node)):
            self._book.drop(request.peer_id, number)

    def _give(self, request: Request, fetch: FetchHeld) -> None:
        found = [(number, self._book.find(number)) for number in fetch.numbers]
        missing = [number for number, arrived in found if arrived is None]
        frames: list[Buffer] = []
        counts: list[int] = []
        for _, arrived in found if not missing else ():
            its_frames = self._frames_of(arrived, fetch)
            counts.append(len(its_frames))
            frames += its_frames
        request.reply(Fetched(counts, missing), frames, snapshot=False)

    def _frames_of(self, arrived: ReceivedPayload | None, fetch: FetchHeld) -> list[Buffer]:
        if arrived is None or fetch.as_bytes:
            return [] if arrived is None else arrived.frames()
        # What its reader writes is not to be seen by who has it next.
        return self._messenger.payloads.frames_for(arrived, fetch.asker, shared=True)

    def _on_peer_lost(self, process_id: str) -> None:
        unclaimed = self._book.lose(process_id)
        self._adopt()
        if unclaimed:
            self._messenger.call_later(UNCLAIMED_S, partial(self._expire, unclaimed))

    def _expire(self, unclaimed: list[int]) -> None:
        self._book.expire(unclaimed)
        self._adopt()

    def _adopt(self) -> None:
        """What dead producers have left counts among what this machine has in shared memory."""
        more_bytes = self._book.orphan_bytes - self._adopted_bytes
        if more_bytes and self._messenger.payloads.arena is not None:
            self._adopted_bytes += more_bytes
            self._messenger.payloads.arena.adopt(more_bytes)


def node_name(endpoint: Endpoint) -> str:
    """How a node is called in messages to people."""
    host = endpoint.tcp_address.removeprefix("tcp://").rpartition(":")[0]
    return f"node {host}" if host else f"machine {endpoint.machine_id}"
