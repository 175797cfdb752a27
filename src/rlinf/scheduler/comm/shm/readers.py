"""Arenas of other processes (and this one's own), open for reading, and the blocks of them that are used here.

What is used is a `Lease`. Everything else belongs to the I/O thread: it alone writes this process's rows of the holder
tables. A lease that is dropped, anywhere, is noted by the interpreter itself, in one step, and released by the I/O
thread; where there is none any more, whoever drops it does that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.promise import Wake
from rlinf.scheduler.comm.shm import kernel
from rlinf.scheduler.comm.shm.forks import remember
from rlinf.scheduler.comm.shm.header import HEADER_BYTES, WANTED_AT, Header, read_header
from rlinf.scheduler.comm.shm.holders import HolderTable
from rlinf.scheduler.comm.shm.layout import Layout
from rlinf.scheduler.comm.shm.maps import Bytes, array_interface, map_array
from rlinf.scheduler.comm.shm.slots import claim_slot

# So many arenas stay open while nothing of them is in use; opening and mapping one again costs some 50 us, and
# touching its pages for the first time another 20 us for each MiB.
MAX_IDLE_ARENAS = 64


class Seat:
    """A process's place among the readers of an arena: its descriptor and its slot."""

    __slots__ = ("fd", "head", "pid", "slot", "table")

    def __init__(self, fd: int, slot: int, head: Bytes, table: HolderTable) -> None:
        self.fd = fd
        self.slot = slot
        self.head = head
        self.table = table
        self.pid = os.getpid()

    def adopt(self, fd: int, slot: int) -> None:
        """Be a forked child's own; the inherited descriptor is closed, its lock is the parent's."""
        inherited, self.fd = self.fd, fd
        self.slot = slot
        self.pid = os.getpid()
        if slot >= 0:
            self.table.pids[slot] = self.pid
        if inherited >= 0:
            os.close(inherited)

    def leave(self) -> None:
        """Give the slot back; in a forked child it is the parent's."""
        if self.slot >= 0 and self.pid == os.getpid():
            self.table.pids[self.slot] = 0
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class ForeignArena:
    """The arena of some process, open for reading.

    Attributes:
        owner: whose it is.
        owner_pid: that process's id.
        owner_is_gone: it is kept no longer than it is in use.
        layout: where its blocks lie.
        seat: this process's place in its holder table.
        holds: what is held here, by the number of the block.
    """

    __slots__ = (
        "__weakref__",
        "_regions",
        "_wake",
        "holds",
        "layout",
        "owner",
        "owner_is_gone",
        "owner_pid",
        "seat",
    )

    def __init__(
        self, seat: Seat, layout: Layout, owner: Endpoint, owner_pid: int, wake: Wake | None
    ) -> None:
        self.seat = seat
        self.layout = layout
        self.owner = owner
        self.owner_pid = owner_pid
        self.owner_is_gone = False
        self.holds: dict[int, HoldRef] = {}
        self._regions: dict[int, Bytes] = {}
        self._wake = wake

    @property
    def fd(self) -> int:
        """Its descriptor here."""
        return self.seat.fd

    @property
    def wanted(self) -> bool:
        """Whether its owner waits for room."""
        return bool(self.seat.head[WANTED_AT])

    def address(self, index: int) -> int:
        """Where a block is mapped; its region is mapped once.

        Raises:
            OSError: there is no room in the address space, or no descriptor to be had.
        """
        size_class = self.layout.class_of(index)
        region = self._regions.get(size_class)
        if region is None:
            offset, size = self.layout.region(size_class)
            with _description_for_a_map(self.fd) as fd:
                region = map_array(fd, size, offset)
            region = self._regions.setdefault(size_class, region)
        return int(region.ctypes.data) + self.layout.offset_in_region(index)

    def mapped_at(self, index: int) -> int:
        """Where a block is mapped; 0 if it is not."""
        return self.address(index) if self.layout.class_of(index) in self._regions else 0

    def map_privately(self, index: int, size_bytes: int) -> int:
        """Map a block once more, for one who may write into it unseen; the address, to be unmapped by the caller.

        Raises:
            OSError: see `address`.
        """
        with _description_for_a_map(self.fd) as fd:
            return kernel.map_memory(fd, size_bytes, self.layout.offset(index), private=True)

    def read(self, index: int, size_bytes: int) -> Bytes:
        """A copy of what a block begins with, made without mapping it.

        Raises:
            OSError: it cannot be read.
        """
        data = np.empty(size_bytes, np.uint8)
        done = 0
        while done < len(data):
            count = os.preadv(self.fd, [data[done:].data], self.layout.offset(index) + done)
            if not count:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            done += count
        return data

    def block_bytes(self, index: int) -> int:
        """How long a block is.

        Raises:
            ValueError: there is none of that number.
        """
        if not 0 <= index < self.layout.num_blocks:
            message = f"it has {self.layout.num_blocks} blocks, and none of number {index}"
            raise ValueError(message)
        return self.layout.block_bytes[self.layout.class_of(index)]

    def adopt(self, fd: int, slot: int) -> None:
        """Have a seat of this forked child's own; -1 for none."""
        self.seat.adopt(fd, slot)

    # -- the I/O thread --------------------------------------------------------------------------

    def hold(self, index: int, generation: int, opened: OpenArenas) -> Hold:
        """Hold a block, for which somebody vouches who holds it; once in this process, however often it is asked.

        Raises:
            ValueError: it is of another generation now.
        """
        ref = self.holds.get(index)
        hold = ref() if ref is not None else None
        if hold is not None and hold.generation == generation:
            return hold
        if hold is not None or not self.seat.table.hold(self.seat.slot, index, generation):
            message = "everybody who had it is gone, and it is used for something else"
            raise ValueError(message)
        hold = Hold(self, index, generation, Wake(opened.wake))
        ref = self.holds[index] = HoldRef(hold, opened.dropped.append)
        ref.arena, ref.index = self, index
        return hold

    def release(self, index: int) -> bool:
        """Undo `hold`; whether the owner waits for room."""
        table = self.seat.table
        if self.seat.slot < 0:
            return False
        table.release(self.seat.slot, index)
        kernel.fence()
        if self.owner_is_gone and not table.is_held(index) and table.renew(index) is not None:
            # Nobody will use these pages again.
            kernel.punch(self.fd, self.layout.offset(index), self.block_bytes(index))
        return self.wanted


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


class Hold:
    """A block that this process holds as long as something refers to this."""

    __slots__ = ("__weakref__", "_wake", "arena", "generation", "index", "private")

    def __init__(self, arena: ForeignArena, index: int, generation: int, wake: Wake) -> None:
        self.arena = arena
        self.index = index
        self.generation = generation
        # Where it is mapped besides the arena's own map.
        self.private: list[int] = []
        self._wake = wake


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


class Lease:
    """A block that this process uses; released when the last reference to it, or to an array of it, is dropped.

    Args:
        hold: the block.
        size_bytes: how much of it there is to read.
        shared: other processes read the block too, so that who writes needs a copy.
    """

    __slots__ = ("_hold", "_private_address", "shared", "size_bytes")

    def __init__(self, hold: Hold, size_bytes: int, shared: bool) -> None:
        self._private_address = 0
        self._hold = hold
        self.size_bytes = size_bytes
        self.shared = shared

    @property
    def arena(self) -> ForeignArena:
        """Where it lies."""
        return self._hold.arena

    @property
    def index(self) -> int:
        """The number of the block."""
        return self._hold.index

    @property
    def generation(self) -> int:
        """Which of those that lie there one after the other."""
        return self._hold.generation

    def map(self) -> None:
        """Make sure that `array` will not fail.

        Raises:
            OSError: the memory cannot be mapped.
        """
        if not self.shared:
            self.arena.address(self.index)
        elif not self._private_address:
            self._private_address = self.arena.map_privately(self.index, self.size_bytes)
            self._hold.private.append(self._private_address)

    def array(self) -> Bytes:
        """The data, uint8 of shape (size_bytes,), writable; it keeps the lease.

        What is written to a block that others read too is seen in the arrays of this lease only.

        Raises:
            OSError: the memory cannot be mapped.
        """
        self.map()
        return np.asarray(_Memory(self, self._private_address or self.arena.address(self.index)))

    def original(self) -> Bytes:
        """The same data, as everybody sees it: to be read and handed on.

        Raises:
            OSError: the memory cannot be mapped.
        """
        return np.asarray(_Memory(self, self.arena.address(self.index)))

    def mark(self) -> Any:
        """One byte of the block that everybody sees (see `HolderTable.mark`)."""
        return self.arena.seat.table.mark(self.index)

    def copy(self) -> Bytes:
        """A copy of the data, made without mapping it.

        Raises:
            OSError: it cannot be read.
        """
        return self.arena.read(self.index, self.size_bytes)

    def __del__(self, _unmap: Callable[[int, int], None] = kernel.unmap_memory) -> None:
        if self._private_address:
            self._hold.private.remove(self._private_address)
            _unmap(self._private_address, self.size_bytes)


class _Memory:
    """What numpy makes an array of; it keeps the lease."""

    __slots__ = ("__array_interface__", "_lease")

    def __init__(self, lease: Lease, address: int) -> None:
        self._lease = lease
        self.__array_interface__ = array_interface(address, lease.size_bytes)


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
    ) -> Lease:
        """The use of a block, for which somebody vouches who holds it.

        Raises:
            ValueError: the block is not there any more, or never was.
        """
        if size_bytes > arena.block_bytes(index):
            message = f"{size_bytes} bytes do not fit into block {index}"
            raise ValueError(message)
        return Lease(arena.hold(index, generation, self), size_bytes, shared)

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
        with contextlib.suppress(IndexError):
            while True:
                self.dropped.popleft().settle(self)

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

    def arenas(self) -> list[ForeignArena]:
        """Those that are open."""
        return [arena for ref in list(self.known.values()) if (arena := ref()) is not None]

    def orphan(self) -> None:
        """Go on without an I/O thread."""
        self._submit = None
        self.tell_owner = _tell_nobody
        self._recent.clear()


def open_arena(owner_id: str, pid: int, fd: int, wake: Wake | None = None) -> ForeignArena:
    """The arena of process `owner_id`, which process `pid` has open as `fd`; its seat is to be left by the caller.

    Raises:
        OSError: it cannot be opened, or has no slot for this process.
        ValueError: what is there is not that arena.
    """
    opened = kernel.open_of(pid, fd)
    try:
        header = _header_of(opened, owner_id)
        layout = Layout(header.limit_bytes)
        with _description_for_a_map(opened) as for_map:
            head = map_array(for_map, layout.table_bytes)
        table = HolderTable(head[HEADER_BYTES:], layout.num_blocks)
        seat = Seat(opened, claim_slot(opened, table), head, table)
    except (OSError, ValueError):
        os.close(opened)
        raise
    return ForeignArena(seat, layout, header.owner, header.pid, wake)


def _header_of(fd: int, owner_id: str) -> Header:
    header = read_header(fd)
    if header.owner.process_id != owner_id:
        message = "it is the arena of another process"
        raise ValueError(message)
    return header


@contextlib.contextmanager
def _description_for_a_map(fd: int) -> Iterator[int]:
    """Open a file once more.

    A map keeps the locks of the description that it was made of, and a forked child has all maps of its parent: what
    the parent had locked would stay locked as long as the child lives.
    """
    opened = kernel.open_of(os.getpid(), fd)
    try:
        yield opened
    finally:
        os.close(opened)


def _tell_nobody(_owner: Endpoint) -> None:
    """Without an I/O thread nothing is sent; owners that wait look by themselves now and then."""
