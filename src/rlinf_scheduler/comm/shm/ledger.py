"""How much shared memory the processes of a job may take on one machine, and what they have taken.

The ledger is a small file, with a number for each process: what it takes. A process writes only its own number, and
locks it as long as it lives, so that what a dead one took counts no more. It adds first and then sums up: two who would
both exceed the limit may both be refused, but never both be let pass; so nobody waits for anybody. After the numbers
stands when somebody was refused last: whoever keeps free blocks warm sees that and gives them up. The last one removes
the file; after a crash of all, the next process of this user does.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rlinf_scheduler.comm.control_groups import memory_limit_bytes
from rlinf_scheduler.comm.rundir import is_at
from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.comm.shm.kernel import map_array, nonzero
from rlinf_scheduler.errors import ConfigError

VARIABLE = "RLINF_ARENA_MIB"
PINNED_VARIABLE = "RLINF_PINNED_MIB"
_SHARE = 2


def default_limit_bytes() -> int:
    """What `RLINF_ARENA_MIB` says; else half of the memory that this machine, or this process's control group, has.

    Only what is in use takes memory; 0 switches shared memory off.

    Raises:
        ConfigError: the variable holds no number of at least 0.
    """
    told = _bytes_in(VARIABLE, "no shared memory")
    return memory_bytes() // _SHARE if told is None else told


def pinned_limit_bytes() -> int:
    """How much shared memory a process pins for its devices: what `RLINF_PINNED_MIB` says; else 0, for none.

    Raises:
        ConfigError: the variable holds no number of at least 0.
    """
    return _bytes_in(PINNED_VARIABLE, "no pinned memory") or 0


def _bytes_in(variable: str, zero: str) -> int | None:
    text = os.environ.get(variable)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise ConfigError(f"{variable} is {text!r}; it takes a whole number of MiB, 0 for {zero}")
    return int(text) << 20


def memory_bytes() -> int:
    """Return how much memory this machine has, or the smallest control group that this process is in."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit_bytes()
    return total if limit is None else min(total, limit)


PREFIX = "memory-"
MAX_PROCESSES = 4096
_SIZE = 8 * MAX_PROCESSES + 8
_MAX_ATTEMPTS = 100


class Ledger:
    """This process's line in the ledger of its job.

    Args:
        directory: a private one, the same for all processes of this user.
        job: which job; a word for file names.
        limit_bytes: how much all may take together.
        now: the clock, in seconds, that all processes of the machine have in common.

    Raises:
        OSError: the file cannot be made, or has a line for no more processes.
    """

    def __init__(self, directory: Path, job: str, limit_bytes: int, now: Callable[[], float]) -> None:
        self.limit_bytes = limit_bytes
        self._now = now
        self._path = directory / (PREFIX + job)
        _remove_stale(directory)
        self._fd, self._line = _open(self._path)
        try:
            with kernel.description_for_a_map(self._fd) as for_map:
                numbers = map_array(for_map, _SIZE).view(np.int64)
        except OSError:
            os.close(self._fd)
            raise
        self._taken, self._refused_at = numbers[:-1], numbers[-1:].data
        self._taken[self._line] = 0

    def charge(self, size_bytes: int) -> bool:
        """Take so many bytes more, or give them back if it is negative; False if all would have too many."""
        if self._fd < 0:
            return True
        self._taken[self._line] += size_bytes
        if size_bytes <= 0:
            return True
        kernel.fence()
        if self.taken_bytes <= self.limit_bytes or (
            self._forget_dead() and self.taken_bytes <= self.limit_bytes
        ):
            return True
        self._taken[self._line] -= size_bytes
        self._refused_at[0] = int(self._now() * 1e9)
        return False

    def adopt(self, size_bytes: int) -> None:
        """Take so many bytes that a dead process had, or give them back if it is negative; they are there anyhow."""
        if self._fd >= 0:
            self._taken[self._line] += size_bytes

    @property
    def refused_at_ns(self) -> int:
        """When some process was refused last, by the clock of all; 0 if none ever was."""
        return int(self._refused_at[0])

    @property
    def taken_bytes(self) -> int:
        """How much all processes take together."""
        return int(self._taken.sum())

    def _forget_dead(self) -> bool:
        found = False
        for line in nonzero(self._taken).tolist():
            if line != self._line and kernel.try_lock(self._fd, line):
                self._taken[line] = 0
                kernel.unlock(self._fd, line)
                found = True
        return found

    def close(self) -> None:
        """Take nothing any more; the last one removes the file."""
        if self._fd < 0:
            return
        self._taken[self._line] = 0
        with contextlib.suppress(OSError):
            _remove_if_alone(self._fd, self._path)
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptor, in a forked child: the line is its parent's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _open(path: Path) -> tuple[int, int]:
    """A descriptor of the file, and the line that is locked with it."""
    for _ in range(_MAX_ATTEMPTS):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _allocate(fd, path)
            line = next((line for line in range(MAX_PROCESSES) if kernel.try_lock(fd, line)), None)
            # Whoever was the last removes it while all lines are locked.
            if line is not None and is_at(fd, path):
                return fd, line
        except OSError:
            os.close(fd)
            raise
        os.close(fd)
    raise OSError(errno.EUSERS, "the ledger of shared memory has no line left")


def _allocate(fd: int, path: Path) -> None:
    """Let the file have its disk space: writing to a map of a file for which there is none ends the process."""
    try:
        os.posix_fallocate(fd, 0, _SIZE)
    except OSError as error:
        with contextlib.suppress(OSError):
            _remove_if_alone(fd, path)
        raise OSError(error.errno, error.strerror, str(path)) from error


def _remove_stale(directory: Path) -> None:
    """Remove the ledgers of jobs of which nobody lives."""
    for path in directory.glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                _remove_if_alone(fd, path)
            finally:
                os.close(fd)


def _remove_if_alone(fd: int, path: Path) -> None:
    if kernel.try_lock(fd, 0, MAX_PROCESSES) and is_at(fd, path):
        path.unlink()
