"""Arenas of other processes (and this one's own), open for reading, and the blocks of them that are used here.

What is used is a `BlockLease`. Everything else belongs to the I/O thread: it alone writes this process's rows of the
holder tables. A lease that is dropped, anywhere, is noted by the interpreter itself, in one step, and released by the
I/O thread; where there is none any more, whoever drops it does that.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.promise import Wake
from rlinf_scheduler.comm.shm.foreign import ForeignArena, Hold, Seat, open_arena
from rlinf_scheduler.comm.shm.forks import remember
from rlinf_scheduler.comm.shm.lease import BlockLease

# So many arenas stay open while nothing of them is in use; opening and mapping one again costs some 50 us, and
# touching its pages for the first time another 20 us for each MiB.
MAX_IDLE_ARENAS = 64


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
