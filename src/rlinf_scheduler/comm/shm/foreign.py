"""The arena of some process, open for reading, with this process's place among its readers."""

from __future__ import annotations

import errno
import os
import weakref

import numpy as np

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Bytes
from rlinf_scheduler.comm.promise import Wake
from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.comm.shm.header import HEADER_BYTES, LOW_AT, UNPIN_AT, WANTED_AT, Header, read_header
from rlinf_scheduler.comm.shm.holders import HolderTable
from rlinf_scheduler.comm.shm.layout import Layout
from rlinf_scheduler.comm.shm.maps import Region, map_array, map_region
from rlinf_scheduler.comm.shm.slots import claim_slot


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
        self.holds: dict[int, weakref.ref[Hold]] = {}
        self._regions: dict[int, Region] = {}
        self._wake = wake

    @property
    def fd(self) -> int:
        """Its descriptor here."""
        return self.seat.fd

    @property
    def wanted(self) -> bool:
        """Whether its owner waits for room."""
        return bool(self.seat.head[WANTED_AT])

    @property
    def low(self) -> bool:
        """Whether its owner has, or will soon have, too little room."""
        head = self.seat.head
        return bool(head[LOW_AT] or head[WANTED_AT])

    def unpin_is_wanted(self) -> bool:
        """Whether what is pinned here, and not in use, is to be unpinned; asked once for each time that it is."""
        head, wanted = self.seat.head, self.owner_is_gone
        if head[UNPIN_AT]:
            head[UNPIN_AT], wanted = 0, True
        return wanted

    def address(self, index: int) -> int:
        """Where a block is mapped; its region is mapped once.

        Raises:
            OSError: there is no room in the address space, or no descriptor to be had.
        """
        size_class = self.layout.class_of(index)
        region = self._regions.get(size_class)
        if region is None:
            offset, size = self.layout.region(size_class)
            with kernel.description_for_a_map(self.fd) as fd:
                region = map_region(fd, size, offset)
            region = self._regions.setdefault(size_class, region)
        return region.address + self.layout.offset_in_region(index)

    def mapped_at(self, index: int) -> int:
        """Where a block is mapped; 0 if it is not."""
        return self.address(index) if self.layout.class_of(index) in self._regions else 0

    def map_privately(self, index: int, size_bytes: int) -> int:
        """Map a block once more, for one who may write into it unseen; the address, to be unmapped by the caller.

        Raises:
            OSError: see `address`.
        """
        with kernel.description_for_a_map(self.fd) as fd:
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

    def release(self, index: int) -> bool:
        """Release a block, on the I/O thread; whether the owner waits for room."""
        table = self.seat.table
        if self.seat.slot < 0:
            return False
        table.release(self.seat.slot, index)
        kernel.fence()
        if self.owner_is_gone and not table.is_held(index) and table.renew(index) is not None:
            # Nobody will use these pages again.
            kernel.punch(self.fd, self.layout.offset(index), self.block_bytes(index))
        return self.wanted


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
        with kernel.description_for_a_map(opened) as for_map:
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
