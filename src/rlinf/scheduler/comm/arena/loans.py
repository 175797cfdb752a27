"""Blocks of other processes' arenas, as long as this process uses them."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf.scheduler.comm.arena import kernel
from rlinf.scheduler.comm.arena.arena import DATA_AT, GRAIN_BYTES, TOKEN_BYTES
from rlinf.scheduler.comm.arena.header import is_wanted, read_owner
from rlinf.scheduler.comm.arena.maps import Bytes, array_interface, map_array
from rlinf.scheduler.comm.endpoint import Endpoint

# So many arenas stay open while nothing of them is in use; opening and mapping one again costs some 50 us, and
# touching its pages for the first time another 20 us for each MiB.
MAX_IDLE_ARENAS = 64

# Each loan locks a byte of its own in its block: two loans of one block in one process are two locks, and giving one
# back needs no count of the other.
_next_byte = itertools.count().__next__


class ForeignArena:
    """The arena of some process (this one included), open for reading.

    Attributes:
        fd: its descriptor here, closed with this object; -1 in a forked child.
        owner: whose it is.
        owner_pid: that process's id.
        on_closed: called in the end, anywhere the garbage collector runs.
    """

    def __init__(self, fd: int, owner: Endpoint, owner_pid: int) -> None:
        self.fd = fd
        self.owner = owner
        self.owner_pid = owner_pid
        self.on_closed: Callable[[], None] | None = None
        self._size = os.fstat(fd).st_size
        self._lock = threading.Lock()
        self._maps: dict[bool, Bytes] = {}

    def address(self, *, private: bool) -> int:
        """Where it is mapped; done once.

        Raises:
            OSError: there is no room in the address space.
        """
        memory = self._maps.get(private)
        if memory is None:
            with self._lock:
                memory = self._maps.get(private)
                if memory is None:
                    memory = self._maps[private] = map_array(self.fd, self._size, private=private)
        return int(memory.ctypes.data)

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            _close(self.fd)
            self.fd = -1
            if self.on_closed is not None:
                self.on_closed()


class Loan:
    """A block that this process uses; given back when the last reference to it, or to an array of it, is dropped.

    Args:
        arena: the arena.
        offset: where the block begins.
        size_bytes: its length.
        token: what its first bytes must be.
        private: other processes read the block too: what is written here stays here.
        on_returned: told the owner if it waits for room; called anywhere the garbage collector runs.

    Raises:
        OSError: the kernel refuses the lock.
        ValueError: the block is not there any more.
    """

    __slots__ = ("_byte", "_mapped", "_on_returned", "arena", "offset", "private", "size_bytes", "token")

    def __init__(
        self,
        arena: ForeignArena,
        offset: int,
        size_bytes: int,
        token: bytes,
        private: bool,
        on_returned: Callable[[Endpoint], None],
    ) -> None:
        self._byte = -1
        self._mapped = 0
        self.arena = arena
        self.offset = offset
        self.size_bytes = size_bytes
        self.token = token
        self.private = private
        self._on_returned = on_returned
        byte = offset + _next_byte() % GRAIN_BYTES
        kernel.share_lock(arena.fd, byte)
        self._byte = byte
        if os.pread(arena.fd, TOKEN_BYTES, offset) != token:
            message = "everybody who had it is gone, and it is used for something else"
            raise ValueError(message)

    def array(self) -> Bytes:
        """The block's data, uint8 of shape (size_bytes - DATA_AT,), writable; it keeps the loan.

        Raises:
            OSError: the arena cannot be mapped.
        """
        self._mapped = self.arena.address(private=self.private) + self.offset
        return np.asarray(self)[DATA_AT:]

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return array_interface(self._mapped, self.size_bytes)

    def __del__(
        self,
        _unlock: Callable[[int, int], None] = kernel.unlock,
        _forget: Callable[[int, int], None] = kernel.forget_changes,
        _is_wanted: Callable[[int], bool] = is_wanted,
    ) -> None:
        fd = self.arena.fd
        if self._byte < 0 or fd < 0:
            return
        if self.private and self._mapped:
            _forget(self._mapped, self.size_bytes)
        _unlock(fd, self._byte)
        if _is_wanted(fd):
            self._on_returned(self.arena.owner)


class OpenArenas:
    """The arenas that this process has open: those in use, and some that were used lately.

    Args:
        on_opened: called with each that was opened, to notice the end of its owner.
    """

    def __init__(self, on_opened: Callable[[ForeignArena], None]) -> None:
        self._on_opened = on_opened
        self._lock = threading.Lock()
        self._known: weakref.WeakValueDictionary[str, ForeignArena] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[str, ForeignArena] = OrderedDict()

    def get(self, owner_id: str, pid: int, fd: int) -> ForeignArena:
        """The arena of process `owner_id`, which process `pid` has open as `fd`.

        Raises:
            OSError: it cannot be opened.
            ValueError: what is there is not that arena.
        """
        with self._lock:
            arena = self._known.get(owner_id)
            if arena is None:
                arena = self._known[owner_id] = open_arena(owner_id, pid, fd)
                self._on_opened(arena)
            self._recent[owner_id] = arena
            self._recent.move_to_end(owner_id)
            while len(self._recent) > MAX_IDLE_ARENAS:
                self._recent.popitem(last=False)
        return arena

    def forget(self, owner_id: str) -> None:
        """Keep an arena only as long as it is in use: its owner is gone."""
        with self._lock:
            arena = self._recent.pop(owner_id, None)
        del arena  # closed outside of the lock, if it was the last reference

    def abandon(self) -> None:
        """Close every descriptor in a forked child, before anything else can use one."""
        for arena in list(self._known.values()):
            fd, arena.fd = arena.fd, -1
            if fd >= 0:
                os.close(fd)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Keep nothing but what is in use."""
        with self._lock:
            recent, self._recent = self._recent, OrderedDict()
        recent.clear()


def open_arena(owner_id: str, pid: int, fd: int) -> ForeignArena:
    """The arena of process `owner_id`, which process `pid` has open as `fd`.

    Raises:
        OSError: it cannot be opened.
        ValueError: what is there is not that arena.
    """
    opened = kernel.open_of(pid, fd)
    try:
        owner, owner_pid = read_owner(opened)
    except (OSError, ValueError):
        os.close(opened)
        raise
    arena = ForeignArena(opened, owner, owner_pid)
    if owner.process_id != owner_id:
        message = f"process {pid} has the arena of another process open as {fd}"
        raise ValueError(message)
    return arena
