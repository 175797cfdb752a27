"""The arena of some process, open for reading: this process's place among its readers, and its use of blocks."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Bytes
from rlinf_scheduler.comm.promise import Wake
from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.comm.shm.holders import HolderTable
from rlinf_scheduler.comm.shm.kernel import Region, array_interface, map_array, map_region
from rlinf_scheduler.comm.shm.layout import (
    HEADER_BYTES,
    LOW_AT,
    UNPIN_AT,
    WANTED_AT,
    Header,
    Layout,
    read_header,
)


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
    """The arena of some process, open for reading; kept no longer than it is in use once its owner is gone."""

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


def claim_slot(fd: int, table: HolderTable) -> int:
    """Take a slot for this process; it lasts as long as the open file description of `fd`.

    Raises:
        OSError: all have processes.
    """
    pids = table.pids
    for slot in np.flatnonzero(pids == 0).tolist():
        if kernel.try_lock(fd, slot):
            if pids[slot] == 0:
                pids[slot] = os.getpid()
                return int(slot)
            kernel.unlock(fd, slot)
    for slot in table.slots():
        if kernel.try_lock(fd, slot):
            _clear(fd, table, slot)
            pids[slot] = os.getpid()
            return int(slot)
    raise OSError(errno.EUSERS, "as many processes read it as can")


def clear_dead_slots(fd: int, table: HolderTable) -> bool:
    """Release what ended processes held; whether there was one. By the arena's owner, who has `fd`."""
    found = False
    for slot in table.slots():
        if kernel.try_lock(fd, slot):
            _clear(fd, table, slot)
            table.pids[slot] = 0
            kernel.unlock(fd, slot)
            found = True
    return found


def _clear(fd: int, table: HolderTable, slot: int) -> None:
    for row_at in table.rows_at(slot):
        kernel.punch(fd, HEADER_BYTES + row_at, table.row_bytes)
    table.pinning[slot] = 0
    table.dirty[:] = 1


# What several processes read is copied by each up to this size, and mapped once more beyond: of 1 MiB the copy takes
# 35 us, and a map of its own, with the faults of its pages, 150.
COPIED_BYTES = 2 << 20


class BlockLease:
    """A block that this process uses; released when the last reference to it, or to an array of it, is dropped.

    Attributes:
        size_bytes: how much of it there is to read.
        shared: other processes read the block too, so that who writes needs a copy.
        pin: pins what is to be loaded, so that a device reads it by itself; given this lease.
        pinned: what `pin` gave, kept as long as this.
    """

    __slots__ = ("_private_address", "hold", "pin", "pinned", "shared", "size_bytes")

    def __init__(self, hold: Hold, size_bytes: int, shared: bool) -> None:
        self._private_address = 0
        self.hold = hold
        self.size_bytes = size_bytes
        self.shared = shared
        self.pin: Callable[[BlockLease], object] | None = None
        self.pinned: object = None

    def map(self) -> None:
        """Make sure that `array` will not fail.

        Raises:
            OSError: the memory cannot be mapped.
        """
        if not self.shared or self.size_bytes <= COPIED_BYTES:
            self.hold.arena.address(self.hold.index)
        elif not self._private_address:
            self._private_address = self.hold.arena.map_privately(self.hold.index, self.size_bytes)
            self.hold.private.append(self._private_address)

    def array(self) -> Bytes:
        """The data, uint8 of shape (size_bytes,), writable; it keeps the lease, unless it is a copy.

        What is written to a block that others read too is seen by none of them.

        Raises:
            OSError: the memory cannot be mapped.
        """
        self.map()
        if self.shared and not self._private_address:
            return self.original().copy()
        return np.asarray(_Memory(self, self._private_address or self.hold.arena.address(self.hold.index)))

    def to_load(self) -> Bytes:
        """The same as `array`, pinned where this process does that; by a thread that may wait."""
        pin, self.pin = self.pin, None
        if pin is not None and not self.shared:
            self.pinned = pin(self)
        return self.array()

    def original(self) -> Bytes:
        """The same data, as everybody sees it: to be read and handed on.

        Raises:
            OSError: the memory cannot be mapped.
        """
        return np.asarray(_Memory(self, self.hold.arena.address(self.hold.index)))

    def mark(self) -> Any:
        """One byte of the block that everybody sees (see `HolderTable.mark`)."""
        return self.hold.arena.seat.table.mark(self.hold.index)

    def copy(self) -> Bytes:
        """A copy of the data, made without mapping it.

        Raises:
            OSError: it cannot be read.
        """
        return self.hold.arena.read(self.hold.index, self.size_bytes)

    def __del__(self, _unmap: Callable[[int, int], None] = kernel.unmap_memory) -> None:
        if self._private_address:
            self.hold.private.remove(self._private_address)
            _unmap(self._private_address, self.size_bytes)


class _Memory:
    """What numpy makes an array of; it keeps the lease."""

    __slots__ = ("__array_interface__", "_lease")

    def __init__(self, lease: BlockLease, address: int) -> None:
        self._lease = lease
        self.__array_interface__ = array_interface(address, lease.size_bytes)
