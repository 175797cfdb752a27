"""What the arena asks of the kernel: memory without a name, maps of it as arrays, and locks that end with their holder.

A lock on a byte of an arena means "I am the process that has this slot". Locks belong to an open file description
(`F_OFD_*`, see fcntl(2)), so the kernel drops them when their process ends, however it ends; and they are tested
without asking anybody.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlinf_scheduler.comm.framing import Bytes

# fcntl(2); `fcntl` of Python names them since 3.9 on some platforms only.
_OFD_SETLK = 37
_FLOCK = struct.Struct("hhqqi4x")  # l_type, l_whence, l_start, l_len, l_pid of struct flock on 64-bit Linux
_MAP_NORESERVE = 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_MAP_FIXED = 0x10
_PUNCH_HOLE_KEEP_SIZE = 0x03
_COLLAPSE_RANGE = 0x08

PAGE_BYTES = mmap.PAGESIZE


def create(size_bytes: int) -> int:
    """Make anonymous memory of a size that nobody can change any more; its descriptor.

    Pages cost nothing until they are written.

    Raises:
        OSError: the system has no memfd, or no room for it.
    """
    fd = os.memfd_create("rlinf-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        # Who maps it must not be killed by SIGBUS because somebody cut it short.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd


def open_of(pid: int, fd: int) -> int:
    """Open what process `pid` has open as `fd`; the new description has locks of its own.

    Raises:
        OSError: the process is gone, /proc is not there, or may not be looked into.
    """
    return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)


@contextlib.contextmanager
def description_for_a_map(fd: int) -> Iterator[int]:
    """Open a file of this process once more, to map it.

    A map keeps the locks of the description that it was made of, and a forked child has all maps of its parent: what
    the parent had locked would stay locked as long as the child lives.
    """
    opened = open_of(os.getpid(), fd)
    try:
        yield opened
    finally:
        os.close(opened)


def map_memory(fd: int, size_bytes: int, offset: int = 0, *, private: bool = False) -> int:
    """Map memory from `offset` on; its address. What is written to a private map is seen by nobody else.

    `mmap.mmap` would keep another descriptor open for each map.

    Raises:
        OSError: there is no room in the address space.
    """
    kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc.mmap(None, size_bytes, access, kind | _MAP_NORESERVE, fd, offset)
    if address is None or address == _MAP_FAILED:
        raise _last_error()
    return int(address)


def unmap_memory(address: int, size_bytes: int) -> None:
    """Undo `map_memory`."""
    _libc.munmap(address, size_bytes)


def punch(fd: int, offset: int, size_bytes: int) -> None:
    """Give whole pages back to the system; they read as zeros afterwards, in every map."""
    _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, offset, size_bytes)


def take_front(fd: int, size_bytes: int) -> int:
    """Take away the beginning of a file, in whole blocks, without holding up who appends to it.

    Returns:
        By how much what follows has moved up; 0 where the file system cannot do that: then there is a hole, of zeros.

    Raises:
        OSError: it cannot do that, either.
    """
    size_bytes -= size_bytes % os.fstat(fd).st_blksize
    if _libc.fallocate(fd, _COLLAPSE_RANGE, 0, size_bytes) == 0:
        return size_bytes
    if _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, 0, size_bytes):
        raise _last_error()
    return 0


def forbid(address: int, size_bytes: int) -> None:
    """Let whoever touches this memory of our own be killed, rather than read what it is not meant to."""
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
    _libc.mmap(address, size_bytes, 0, anonymous, -1, 0)


def prefer_huge_pages(address: int, size_bytes: int) -> None:
    """Ask for huge pages, where the system gives them to those who ask."""
    _libc.madvise(address, size_bytes, mmap.MADV_HUGEPAGE)


def try_lock(fd: int, begin: int, size_bytes: int = 1) -> bool:
    """Lock a range for this description alone; False if another has a lock in it, or the kernel is out of locks."""
    try:
        fcntl.fcntl(fd, _OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, begin, size_bytes, 0))
    except OSError:
        return False
    return True


def unlock(fd: int, place: int) -> None:
    """Drop this description's lock on one byte."""
    fcntl.fcntl(fd, _OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, place, 1, 0))


def fence(_lock: type = Lock) -> None:
    """Whatever this thread wrote before is seen by all before it reads anything after.

    Python names no such instruction. Releasing a lock and taking it again is one: on x86 each is a locked
    instruction, on ARM a store-release that a load-acquire of the same place follows.
    """
    lock = _lock()
    lock.acquire()
    lock.release()
    lock.acquire()


def trim_heap() -> None:
    """Give the free parts of this process's heap back to the system, where the C library can (glibc)."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(0)


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


Indexes = npt.NDArray[np.intp]


class _Map:
    """Memory at an address, as numpy takes it."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self._address = address
        self._size_bytes = size_bytes
        self.__array_interface__ = array_interface(address, size_bytes)

    def __del__(self, _unmap: Callable[[int, int], None] = unmap_memory) -> None:
        _unmap(self._address, self._size_bytes)


def array_interface(address: int, size_bytes: int) -> dict[str, Any]:
    """How numpy is told of `size_bytes` writable bytes at an address."""
    return {"version": 3, "data": (address, False), "shape": (size_bytes,), "typestr": "|u1"}


def map_array(fd: int, size_bytes: int, offset: int = 0) -> Bytes:
    """A map of `fd` from `offset` on as an array, uint8 of shape (size_bytes,); see `map_memory`.

    Raises:
        OSError: there is no room in the address space.
    """
    return np.asarray(_Map(map_memory(fd, size_bytes, offset), size_bytes))


class Region(NamedTuple):
    """A map and its address, which numpy takes a microsecond to tell."""

    memory: Bytes
    address: int


def map_region(fd: int, size_bytes: int, offset: int) -> Region:
    """The same as `map_array`, with its address."""
    memory = map_array(fd, size_bytes, offset)
    return Region(memory, memory.ctypes.data)


def nonzero(shared: npt.NDArray[Any]) -> Indexes:
    """Where memory is not 0 that other processes may write meanwhile.

    numpy counts first and collects then: with a change in between it raises RuntimeError, so it gets a copy.
    """
    return np.flatnonzero(shared.copy())
