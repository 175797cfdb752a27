"""A simulated disk: what was not synced may be lost or torn, a call may fail, and a process may die in it."""

# A function of `os` is made a method of a process.
# mypy: disable-error-code="override"

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from rlinf_scheduler.comm.disk import Disk
from simulator.world import Killed, Process, World

# So much is written at once, or not at all: less than of a real one, as most blocks are small.
SECTOR = 64
# A process that is to die in a call dies in one of the next so many, or of those after a file takes its name.
MAX_CALLS, MAX_CALLS_BEHIND = 8, 3
# Where none of these comes, it dies after so long.
PATIENCE_US = 300_000


class _File:
    """A file: what processes see of it, and what of that is on the disk."""

    def __init__(self, number: int, mode: int = 0o600) -> None:
        self.number = number
        self.mode = mode
        self.data = bytearray()
        self.synced = bytearray()
        self.same_bytes = 0  # so many from the start are still what was synced
        self.lock: tuple[int, int] | None = None  # whose descriptor has locked it
        self.num_names = 1

    def sync(self) -> None:
        self.synced[self.same_bytes :] = self.data[self.same_bytes :]
        self.same_bytes = len(self.data)

    def lose(self, draw: Any) -> None:
        """The machine has died: of what was not synced, each sector and the length are there or not."""
        before, after = bytes(self.synced), bytes(self.data)
        if before == after:
            return
        size = draw.choice((len(before), len(after), draw.randint(*sorted((len(before), len(after))))))
        both = [each.ljust(size, b"\0") for each in (before, after)]
        is_likely = draw.choice((0.1, 0.5, 0.9))
        found = bytearray()
        for begin in range(0, size, SECTOR):
            found += both[draw.random() < is_likely][begin : min(size, begin + SECTOR)]
        self.data, self.synced = found, bytearray(found)
        self.same_bytes = len(found)


class Files:
    """What lies on a disk that all machines share.

    Args:
        world: where it is.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.draw = world.randomness("disk")
        self.names: dict[str, _File] = {}
        self.folders: set[str] = set()
        self._on_disk: dict[str, _File] = {}
        self._changes: list[tuple[str, _File | None]] = []
        self._num_files = 0

    def make(self, path: str, mode: int) -> _File:
        """Make a file."""
        self._num_files += 1
        file = _File(self._num_files, mode)
        self.name(path, file)
        return file

    def name(self, path: str, file: _File | None) -> None:
        """Let a name stand for a file, or for none."""
        before = self.names.pop(path, None)
        if before is not None:
            before.num_names = 0
        if file is not None:
            self.names[path] = file
            file.num_names = 1
        self._changes.append((path, file))

    def sync_names(self, num_changes: int | None = None) -> None:
        """Have the first changes of names on the disk, or all."""
        for path, file in self._changes[:num_changes]:
            self._on_disk.pop(path, None)
            if file is not None:
                self._on_disk[path] = file
        self._changes = []

    def lose(self) -> None:
        """The machine has died: names and bytes that were not synced are there, or are not."""
        self.sync_names(self.draw.randint(0, len(self._changes)))
        self.names = dict(self._on_disk)
        for file in self.names.values():
            file.num_names = 1
            file.lose(self.draw)


class SimulatedFile:
    """What is asked of a file that is open on such a disk."""

    def __init__(self, disk: SimulatedDisk, fd: int) -> None:
        self._disk = disk
        self._fd = fd

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._fd

    def close(self) -> None:
        """Close it."""
        self._disk.close(self._fd)


class SimulatedDisk(Disk):
    """The disk as one process sees it.

    Args:
        files: what lies there.
        process: whose this is.

    Attributes:
        fails: the next writing or syncing fails.
        has_failed: one has.
    """

    def __init__(self, files: Files, process: Process) -> None:
        self.fails = self.has_failed = False
        self._files = files
        self._process = process
        self._open: dict[int, tuple[str, _File | None]] = {}
        self._next_fd = 3
        self._calls_left: int | None = None
        self._dies_behind_name = False
        self._die: Callable[[], None] = lambda: None

    # -- deaths and failures -------------------------------------------------------------------------

    def doom(self, die: Callable[[], None], *, with_machine: bool) -> None:
        """Let the process die: now, or in a call; `die` ends it."""
        draw = self._files.draw

        def end() -> None:
            if self._process.alive:
                die()
                if with_machine:
                    self._files.world.note("disk", "loses what was not synced")
                    self._files.lose()

        self._die = end
        how = draw.random()
        if how < 0.3:
            end()
            return
        if how < 0.6:
            self._calls_left = draw.randrange(MAX_CALLS)
        else:
            self._dies_behind_name = True
        self._files.world.schedule(self._files.world.now_us + PATIENCE_US, None, end)

    def close_all(self) -> None:
        """The process is dead: the kernel closes what it had open."""
        for fd in list(self._open):
            self._close(fd)

    def _enters(self) -> bool:
        """Whether the process lives to the end of the call that it makes now."""
        if not self._process.alive:
            raise Killed
        if self._calls_left is None:
            return True
        self._calls_left -= 1
        return self._calls_left >= 0

    def _happens(self, act: Callable[[], Any]) -> Any:
        """Do what a call is for; or die, before it or behind it."""
        if self._enters():
            return act()
        if self._files.draw.random() < 0.5:
            act()
        self._die()
        raise Killed

    def _fail(self, code: int) -> None:
        self.fails, self.has_failed = False, True
        self._files.world.note(self._process.name, "is failed by its disk", errno.errorcode[code])
        raise OSError(code, os.strerror(code))

    # -- calls ---------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        return int(self._happens(lambda: self._do_open(path, flags, mode)))

    def open_to_read(self, path: str) -> Any:
        return SimulatedFile(self, self.open(path, os.O_RDONLY))

    def open_to_write(self, path: str, mode: int) -> Any:
        return SimulatedFile(self, self.open(path, os.O_RDWR | os.O_CREAT, mode))

    def sync_folder(self, path: str) -> None:
        folder = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.fsync(folder)
        finally:
            self.close(folder)

    def _do_open(self, path: str, flags: int, mode: int) -> int:
        file = None
        if not flags & os.O_DIRECTORY:
            file = self._files.names.get(path)
            if file is None and not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if file is None:
                file = self._files.make(path, mode)
        self._next_fd += 1
        self._open[self._next_fd] = path, file
        return self._next_fd

    def close(self, fd: int) -> None:
        self._enters()
        self._close(fd)

    def _close(self, fd: int) -> None:
        _, file = self._open.pop(fd)
        if file is not None and file.lock == (id(self), fd):
            file.lock = None

    def close_beside(self, fd: int) -> None:
        self.close(fd)

    def flock(self, fd: int, _operation: int) -> None:
        self._enters()
        file = self._file(fd)
        if file.lock not in (None, (id(self), fd)):
            raise BlockingIOError(errno.EWOULDBLOCK, "locked")
        file.lock = id(self), fd

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._enters()
        return bytes(self._file(fd).data[offset : offset + size])

    def preadv(self, fd: int, buffers: Sequence[Any], offset: int) -> int:
        (memory,) = buffers
        found = self.pread(fd, len(memory), offset)
        memory[: len(found)] = found
        return len(found)

    def pwritev(self, fd: int, pieces: Sequence[Any], offset: int) -> int:
        data = b"".join(pieces)
        file = self._file(fd)
        lives = self._enters()
        fails = self.fails and data
        if not lives or fails:
            data = data[: self._files.draw.randint(0, len(data))]
        elif len(data) > 1 and self._files.draw.random() < 0.02:  # the kernel takes a part
            data = data[: len(data) // 2]
        if len(file.data) < offset:
            file.data.extend(bytes(offset - len(file.data)))
        file.same_bytes = min(file.same_bytes, offset)
        file.data[offset : offset + len(data)] = data
        if not lives:
            self._die()
            raise Killed
        if fails and not data:
            self._fail(errno.ENOSPC)
        return len(data)

    def ftruncate(self, fd: int, size: int) -> None:
        self._happens(lambda: self._truncate(self._file(fd), size))

    @staticmethod
    def _truncate(file: _File, size: int) -> None:
        file.same_bytes = min(file.same_bytes, size)
        del file.data[size:]
        file.data.extend(bytes(size - len(file.data)))

    def fsync(self, fd: int) -> None:
        _, file = self._open[fd]
        if self.fails and self._process.alive:
            self._fail(errno.EIO)
        self._happens(self._files.sync_names if file is None else file.sync)

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def fstat(self, fd: int) -> Any:
        self._enters()
        return self._status(self._file(fd))

    def stat(self, path: str) -> Any:
        self._enters()
        if path in self._files.names:
            return self._status(self._files.names[path])
        if path in self._files.folders:
            return self._status(_File(0, 0o700))
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    @staticmethod
    def _status(file: _File) -> Any:
        return SimpleNamespace(
            st_dev=1,
            st_ino=file.number,
            st_nlink=file.num_names,
            st_size=len(file.data),
            st_uid=os.getuid(),
            st_mode=file.mode,
        )

    def listdir(self, path: str) -> list[str]:
        self._enters()
        begin = f"{path}/"
        return [name[len(begin) :] for name in self._files.names if name.startswith(begin)]

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        self._files.folders.add(path)

    def rmdir(self, path: str) -> None:
        """Leave it there: nobody looks whether it is."""

    def replace(self, source: str, target: str) -> None:
        self._happens(lambda: self._rename(source, target))
        if self._dies_behind_name:
            self._calls_left = self._files.draw.randrange(MAX_CALLS_BEHIND)

    def _rename(self, source: str, target: str) -> None:
        file = self._files.names[source]
        self._files.name(source, None)
        self._files.name(target, file)

    def unlink(self, path: str) -> None:
        if path not in self._files.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._happens(lambda: self._files.name(path, None))

    def _file(self, fd: int) -> _File:
        file = self._open[fd][1]
        if file is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return file
