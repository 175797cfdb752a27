"""Blocks of other processes' arenas, as long as this process uses them."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np

from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.forking import on_fork_in_child
from rlinf.scheduler.comm.shm import kernel
from rlinf.scheduler.comm.shm.arena import DATA_AT, MARK_AT, TOKEN_BYTES
from rlinf.scheduler.comm.shm.header import is_wanted, read_owner
from rlinf.scheduler.comm.shm.maps import Bytes, array_interface, map_array

# So many arenas stay open while nothing of them is in use; opening and mapping one again costs some 50 us, and
# touching its pages for the first time another 20 us for each MiB.
MAX_IDLE_ARENAS = 64

_next_number = itertools.count().__next__
_opened: weakref.WeakSet[ForeignArena] = weakref.WeakSet()


class ForeignArena:
    """The arena of some process (this one included), open for reading.

    Attributes:
        fd: its descriptor here, closed with this object; -1 in a forked child.
        pid: the process that opened it.
        owner: whose it is.
        owner_pid: that process's id.
        owner_is_gone: it is kept no longer than it is in use.
        on_closed: called in the end, anywhere the garbage collector runs.
    """

    def __init__(self, fd: int, owner: Endpoint, owner_pid: int) -> None:
        self.fd = fd
        self.pid = os.getpid()
        self.owner = owner
        self.owner_pid = owner_pid
        self.owner_is_gone = False
        self.on_closed: Callable[[], None] | None = None
        self._size = os.fstat(fd).st_size
        self._lock = threading.Lock()
        self._memory: Bytes | None = None
        self._locked: dict[int, int] = {}
        on_fork_in_child(_close_inherited)
        _opened.add(self)

    def address(self) -> int:
        """Where it is mapped; done once.

        Raises:
            OSError: there is no room in the address space, or no descriptor to be had.
        """
        memory = self._memory
        if memory is None:
            with self._lock:
                memory = self._memory
                if memory is None:
                    with _description_for_a_map(self.fd) as fd:
                        memory = self._memory = map_array(fd, self._size)
        return int(memory.ctypes.data)

    def map_privately(self, offset: int, size_bytes: int) -> int:
        """Map a block once more, for one who may write into it unseen; the address, to be unmapped by the caller.

        Raises:
            OSError: see `address`.
        """
        with _description_for_a_map(self.fd) as fd:
            return kernel.map_memory(fd, size_bytes, offset, private=True)

    def lock(self, offset: int, size_bytes: int) -> int:
        """Lock one byte of a block; which one.

        Each loan has a byte of its own: two loans of one block in one process are two locks, and giving one back
        needs no count of the other.

        Raises:
            OSError: the kernel refuses the lock, or every byte has a loan.
        """
        number = _next_number()
        for probe in range(number, number + size_bytes):
            byte = offset + probe % size_bytes
            # One step, for two threads may do this at once.
            if self._locked.setdefault(byte, number) == number:
                break
        else:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        try:
            kernel.share_lock(self.fd, byte)
        except OSError:
            del self._locked[byte]
            raise
        return byte

    def unlock(self, byte: int) -> None:
        """Undo `lock`. Takes no lock: the garbage collector may call this."""
        kernel.unlock(self.fd, byte)
        self._locked.pop(byte, None)

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            _close(self.fd)
            self.fd = -1
            if self.on_closed is not None:
                self.on_closed()


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


def _close_inherited() -> None:
    """Close what a forked child inherited: the locks are its parent's, and end with it."""
    for arena in list(_opened):
        fd, arena.fd = arena.fd, -1
        if fd >= 0:
            os.close(fd)


class Loan:
    """A block that this process uses; given back when the last reference to it, or to an array of it, is dropped.

    Args:
        arena: the arena.
        offset: where the block begins.
        size_bytes: its length.
        token: what its first bytes must be.
        shared: other processes read the block too, so that who writes needs a copy.
        on_returned: told the owner if it waits for room; called anywhere the garbage collector runs.

    Raises:
        OSError: the kernel refuses the lock.
        ValueError: the block is not there any more.
    """

    __slots__ = (
        "_address",
        "_byte",
        "_on_returned",
        "_private_address",
        "arena",
        "offset",
        "shared",
        "size_bytes",
        "token",
    )

    def __init__(
        self,
        arena: ForeignArena,
        offset: int,
        size_bytes: int,
        token: bytes,
        shared: bool,
        on_returned: Callable[[Endpoint], None],
    ) -> None:
        self._byte = -1
        self._address = self._private_address = 0
        self.arena = arena
        self.offset = offset
        self.size_bytes = size_bytes
        self.token = token
        self.shared = shared
        self._on_returned = on_returned
        self._byte = arena.lock(offset, size_bytes)
        if os.pread(arena.fd, TOKEN_BYTES, offset) != token:
            message = "everybody who had it is gone, and it is used for something else"
            raise ValueError(message)

    def map(self) -> None:
        """Make sure that `array` will not fail.

        Raises:
            OSError: the memory cannot be mapped.
        """
        if not self.shared:
            self.arena.address()
        elif not self._private_address:
            self._private_address = self.arena.map_privately(self.offset, self.size_bytes)

    def array(self) -> Bytes:
        """The block's data, uint8 of shape (size_bytes - DATA_AT,), writable; it keeps the loan.

        What is written to a block that others read too is seen in the arrays of this loan only.

        Raises:
            OSError: the memory cannot be mapped.
        """
        self.map()
        return self._array_at(self._private_address or self.arena.address() + self.offset)

    def original(self) -> Bytes:
        """The same data, as everybody sees it: to be read and handed on.

        Raises:
            OSError: the memory cannot be mapped.
        """
        return self._array_at(self.arena.address() + self.offset)

    def mark(self) -> memoryview | None:
        """The byte of the block's header that is free for its users, as everybody sees it; None if not mapped."""
        try:
            return np.asarray(_Lent(self, self.arena.address() + self.offset))[MARK_AT : MARK_AT + 1].data
        except OSError:
            return None

    def copy(self) -> Bytes:
        """A copy of the data, made without mapping it.

        Raises:
            OSError: it cannot be read.
        """
        data = np.empty(self.size_bytes - DATA_AT, np.uint8)
        done = 0
        while done < len(data):
            count = os.preadv(self.arena.fd, [data[done:].data], self.offset + DATA_AT + done)
            if not count:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            done += count
        return data

    def _array_at(self, address: int) -> Bytes:
        return np.asarray(_Lent(self, address))[DATA_AT:]

    def __del__(
        self,
        _unmap: Callable[[int, int], None] = kernel.unmap_memory,
        _is_wanted: Callable[[int], bool] = is_wanted,
        _getpid: Callable[[], int] = os.getpid,
    ) -> None:
        if self._private_address:
            _unmap(self._private_address, self.size_bytes)
        arena = self.arena
        if self._byte < 0 or arena.fd < 0 or arena.pid != _getpid():
            return
        arena.unlock(self._byte)
        if _is_wanted(arena.fd):
            self._on_returned(arena.owner)


class _Lent:
    """What numpy makes an array of; it keeps the loan."""

    __slots__ = ("__array_interface__", "_loan")

    def __init__(self, loan: Loan, address: int) -> None:
        self._loan = loan
        self.__array_interface__ = array_interface(address, loan.size_bytes)


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
            if not arena.owner_is_gone:
                self._recent[owner_id] = arena
                self._recent.move_to_end(owner_id)
                while len(self._recent) > MAX_IDLE_ARENAS:
                    self._recent.popitem(last=False)
        return arena

    def forget(self, owner_id: str) -> None:
        """Keep an arena only as long as it is in use: its owner is gone."""
        with self._lock:
            self._recent.pop(owner_id, None)
            arena = self._known.get(owner_id)
            if arena is not None:
                # What it wrote may still come from whoever holds it, and is no reason to keep the rest.
                arena.owner_is_gone = True
        del arena  # closed outside of the lock, if it was the last reference

    def abandon(self) -> None:
        """Be usable in a forked child, whatever its parent was doing."""
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
