"""Arenas of other processes (and this one's own), open for reading, and the blocks of them that are used here.

What is used is a `BlockLease`. Everything else belongs to the I/O thread: it alone writes this process's rows of the
holder tables. A lease that is dropped, anywhere, is noted by the interpreter itself, in one step, and released by the
I/O thread; where there is none any more, whoever drops it does that.

What a process has received stays valid in the children that it forks. A child has its parent's maps, but not its slots:
what the parent releases would be used again while the child reads it. So before a fork the parent takes a slot for the
child in each arena of which it holds something and holds the same there; from then on each releases for itself. What
the parent could not take, because it is out of descriptors or slots or held it only after that, the child takes; if
that is too late, the child's map of the block is made unreadable: it is killed if it reads it, but never reads anything
else.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.promise import Wake
from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.comm.shm.foreign import BlockLease, ForeignArena, Hold, Seat, claim_slot, open_arena
from rlinf_scheduler.comm.shm.io_thread import Carrier

# So many arenas stay open while nothing of them is in use; opening and mapping one again costs some 50 us, and
# touching its pages for the first time another 20 us for each MiB.
MAX_IDLE_ARENAS = 64


class OwnerWatch:
    """Descriptors of processes (pidfd_open(2)), watched by the I/O thread, to which it belongs."""

    def __init__(self, messenger: Carrier) -> None:
        self._messenger = messenger
        self._watches: set[int] = set()

    def begin(self, pid: int, on_ended: Callable[[], None]) -> Callable[[], None] | None:
        """Call `on_ended` when a process ends; what ends the watch, None if it is gone or cannot be watched."""
        try:
            watch = os.pidfd_open(pid)
        except OSError:
            return None
        self._watches.add(watch)

        def ended() -> None:
            self._end(watch)
            on_ended()

        self._messenger.watch(watch, ended)
        return lambda: self._end(watch)

    def _end(self, watch: int) -> None:
        if watch in self._watches:
            self._watches.remove(watch)
            self._messenger.unwatch(watch)
            os.close(watch)

    def close(self) -> None:
        """End all."""
        for watch in list(self._watches):
            self._end(watch)

    def abandon(self) -> None:
        """Close the descriptors in a forked child."""
        watches, self._watches = self._watches, set()
        for watch in watches:
            os.close(watch)


class ArenaRef(weakref.ref[ForeignArena]):
    """Stands for an arena that is open; it is closed after it was dropped."""

    __slots__ = ("on_closed", "owner_id", "seat")
    on_closed: Callable[[], None] | None
    owner_id: str
    seat: Seat

    def settle(self, opened: OpenArenas) -> None:
        """Close the arena."""
        if opened.known.get(self.owner_id) is self:
            del opened.known[self.owner_id]
        self.seat.leave()
        if self.on_closed is not None:
            self.on_closed()


class HoldRef(weakref.ref[Hold]):
    """Stands for a block that is held here; it is released after it was dropped."""

    __slots__ = ("arena", "index")
    arena: ForeignArena
    index: int

    def settle(self, opened: OpenArenas) -> None:
        """Release the block, if it was not taken again meanwhile."""
        arena = self.arena
        if arena.holds.get(self.index) is self:
            if arena.release(self.index):
                opened.tell_owner(arena.owner)
            del arena.holds[self.index]


class OpenArenas:
    """The arenas that this process has open: those in use, and some that were used lately.

    Args:
        submit: runs a callback on the I/O thread, from any thread, without a lock.
        on_opened: called with each that was opened, to notice the end of its owner; gives what to call when it is
            closed.
        tell_owner: tells an owner that waits for room that a block was released.

    Attributes:
        dropped: what is not referred to any more, and has to be released or closed.
    """

    def __init__(
        self,
        submit: Callable[[Callable[[], None]], None],
        on_opened: Callable[[ForeignArena], Callable[[], None] | None],
        tell_owner: Callable[[Endpoint], None],
    ) -> None:
        self._submit: Callable[[Callable[[], None]], None] | None = submit
        self._on_opened = on_opened
        self.tell_owner = tell_owner
        self.dropped: deque[HoldRef | ArenaRef] = deque()
        self.known: dict[str, ArenaRef] = {}
        self._recent: OrderedDict[str, ForeignArena] = OrderedDict()
        remember(self)

    # -- the I/O thread --------------------------------------------------------------------------

    def get(self, owner_id: str, pid: int, fd: int) -> ForeignArena:
        """The arena of process `owner_id`, which process `pid` has open as `fd`.

        Raises:
            OSError: it cannot be opened.
            ValueError: what is there is not that arena.
        """
        self.serve()
        ref = self.known.get(owner_id)
        arena = ref() if ref is not None else None
        if arena is None:
            arena = open_arena(owner_id, pid, fd, Wake(self.wake))
            ref = self.known[owner_id] = ArenaRef(arena, self.dropped.append)
            ref.owner_id, ref.seat = owner_id, arena.seat
            ref.on_closed = self._on_opened(arena)
        if not arena.owner_is_gone:
            self._recent[owner_id] = arena
            self._recent.move_to_end(owner_id)
            while len(self._recent) > MAX_IDLE_ARENAS:
                self._recent.popitem(last=False)
        return arena

    def lease(
        self, arena: ForeignArena, index: int, generation: int, size_bytes: int, *, shared: bool
    ) -> BlockLease:
        """The use of a block, for which somebody vouches who holds it.

        Raises:
            ValueError: the block is not there any more, or never was.
        """
        if size_bytes > arena.block_bytes(index):
            message = f"{size_bytes} bytes do not fit into block {index}"
            raise ValueError(message)
        return BlockLease(self._hold(arena, index, generation), size_bytes, shared)

    def _hold(self, arena: ForeignArena, index: int, generation: int) -> Hold:
        """Hold a block; once in this process, however often it is asked."""
        ref = arena.holds.get(index)
        hold = ref() if ref is not None else None
        if hold is not None and hold.generation == generation:
            return hold
        if hold is not None or not arena.seat.table.hold(arena.seat.slot, index, generation):
            message = "everybody who had it is gone, and it is used for something else"
            raise ValueError(message)
        hold = Hold(arena, index, generation, Wake(partial(self.release_soon, arena)))
        new = arena.holds[index] = HoldRef(hold, self.dropped.append)
        new.arena, new.index = arena, index
        return hold

    def forget(self, owner_id: str) -> None:
        """Keep an arena only as long as it is in use: its owner is gone."""
        self._recent.pop(owner_id, None)
        ref = self.known.get(owner_id)
        arena = ref() if ref is not None else None
        if arena is not None:
            # What it wrote may still come from whoever holds it, and is no reason to keep the rest.
            arena.owner_is_gone = True

    def serve(self) -> None:
        """Release and close what was dropped."""
        while self.dropped:
            try:
                ref = self.dropped.popleft()
            except IndexError:  # another thread took it
                return
            ref.settle(self)

    def in_use(self) -> bool:
        """Whether anything is held."""
        return any(arena.holds for arena in self.arenas())

    def close(self) -> None:
        """Keep nothing but what is in use; from now on whoever drops that releases it."""
        self.orphan()
        self.serve()

    # -- anywhere --------------------------------------------------------------------------------

    def wake(self) -> None:
        """See to what was dropped."""
        if self._submit is not None:
            self._submit(self.serve)
        else:
            self.serve()

    def release_soon(self, arena: ForeignArena) -> None:
        """Release what was dropped: at once if the owner is short of room, else with what the I/O thread does next."""
        if self._submit is None or arena.low:
            self.wake()

    def arenas(self) -> list[ForeignArena]:
        """Those that are open."""
        return [arena for ref in list(self.known.values()) if (arena := ref()) is not None]

    def orphan(self) -> None:
        """Go on without an I/O thread."""
        self._submit = None
        self.tell_owner = _tell_nobody
        self._recent.clear()


def _tell_nobody(_owner: Endpoint) -> None:
    """Without an I/O thread nothing is sent; owners that wait look by themselves now and then."""


# -- forks -------------------------------------------------------------------------------------------

_all: weakref.WeakSet[OpenArenas] = weakref.WeakSet()
# For each thread that is about to fork: the child's descriptor and slot of each arena.
_prepared: dict[int, dict[ForeignArena, tuple[int, int]]] = {}
_registered: list[bool] = []


def remember(opened: OpenArenas) -> None:
    """See to these arenas when this process forks."""
    _all.add(opened)
    if not _registered:
        _registered.append(True)
        os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


def _before() -> None:
    prepared = _prepared[threading.get_ident()] = {}
    for opened in list(_all):
        for arena in opened.arenas():
            held = _held(arena)
            place = _new_place(arena) if held else None
            if place is None:
                continue
            prepared[arena] = place
            for hold in held:
                arena.seat.table.hold(place[1], hold.index, hold.generation)


def _in_parent() -> None:
    for fd, _ in _prepared.pop(threading.get_ident(), {}).values():
        os.close(fd)


def _in_child() -> None:
    mine = _prepared.pop(threading.get_ident(), {})
    for others in _prepared.values():
        for fd, _ in others.values():
            os.close(fd)
    _prepared.clear()
    for opened in list(_all):
        opened.orphan()
        for arena in opened.arenas():
            held = _held(arena)
            place = mine.get(arena) or (_new_place(arena) if held else None)
            arena.seat.adopt(*(place or (-1, -1)))
            for hold in held:
                if place is None or not arena.seat.table.hold(place[1], hold.index, hold.generation):
                    _forbid(hold)


def _held(arena: ForeignArena) -> list[Hold]:
    return [hold for ref in list(arena.holds.values()) if (hold := ref()) is not None]


def _new_place(arena: ForeignArena) -> tuple[int, int] | None:
    try:
        fd = kernel.open_of(os.getpid(), arena.fd)
    except OSError:
        return None
    try:
        return fd, claim_slot(fd, arena.seat.table)
    except OSError:
        os.close(fd)
        return None


def _forbid(hold: Hold) -> None:
    size = hold.arena.block_bytes(hold.index)
    for address in (hold.arena.mapped_at(hold.index), *hold.private):
        if address:
            kernel.forbid(address, size)
