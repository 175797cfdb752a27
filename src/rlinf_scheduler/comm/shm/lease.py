"""The use of a block by this process; what is made of its data keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf_scheduler.comm.framing import Bytes
from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.comm.shm.foreign import Hold
from rlinf_scheduler.comm.shm.maps import array_interface

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
