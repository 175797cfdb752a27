"""The calls about files of what is to outlive its process: of the kernel, or, in a simulation, of a simulated one."""

from __future__ import annotations

import errno
import fcntl
import os
from functools import partial
from io import FileIO

from rlinf_scheduler.comm.threads import run_beside


class _Opened(int):
    """A descriptor that is closed with the last reference to it, as a `FileIO` closes that of a file."""

    # In C all of it: a method could be interrupted before its first line.
    __del__ = property(partial(partial, os.close))


class Disk:
    """The functions of `os` of the same names, and `flock`."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    preadv = staticmethod(os.preadv)
    pwritev = staticmethod(os.pwritev)
    ftruncate = staticmethod(os.ftruncate)
    fsync = staticmethod(os.fsync)
    fdatasync = staticmethod(os.fdatasync)
    fstat = staticmethod(os.fstat)
    stat = staticmethod(os.stat)
    listdir = staticmethod(os.listdir)
    makedirs = staticmethod(os.makedirs)
    rmdir = staticmethod(os.rmdir)
    replace = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    flock = staticmethod(fcntl.flock)

    def open_to_read(self, path: str) -> FileIO:
        """Open a file that is closed with the last reference to this: an interruption anywhere leaves none open."""
        return FileIO(path)

    def open_to_write(self, path: str, mode: int) -> FileIO:
        """Likewise, one that is made if it is not there."""
        # Opened and owned in one step of the interpreter: an interruption may come between a call and a store.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        return next(map(FileIO, map(self.open, (path,), (flags,), (mode,)), ("r+",)))

    def exists(self, path: str) -> bool:
        """Whether there is something of that name."""
        try:
            self.stat(path)
        except OSError:
            return False
        return True

    def remove(self, path: str) -> None:
        """Remove a file if it is there."""
        try:
            self.unlink(path)
        except FileNotFoundError:
            return

    def close_beside(self, fd: int) -> None:
        """Close a file that has no name any more: only now its room on the disk is given back, which takes a while."""
        try:
            run_beside(self.close, fd)
        except RuntimeError:  # there is no thread for it
            self.close(fd)

    def read(self, fd: int, begin: int, size_bytes: int) -> bytearray:
        """Return so many bytes of a file.

        Raises:
            OSError: it has fewer, or cannot be read.
        """
        data = bytearray(size_bytes)
        view, done = memoryview(data), 0
        while done < size_bytes:
            count = self.preadv(fd, [view[done:]], begin + done)
            if not count:
                message = f"it ends at byte {begin + done} and not at {begin + size_bytes}"
                raise OSError(errno.EIO, message)
            done += count
        return data

    def sync_folder(self, path: str) -> None:
        """Have the names in a folder on the disk."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self.fsync(next(map(_Opened, map(self.open, (path or ".",), (flags,)))))


DISK = Disk()
