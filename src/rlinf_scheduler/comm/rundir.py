"""The private directory in which a process's Unix socket lies.

All of a user's lie in one directory of theirs. Each is locked by its process as long as that lives; the kernel
drops the lock even after kill -9, so that a later process can tell a dead one's directory and remove it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rlinf_scheduler.errors import ClusterError

SOCKET_NAME = "s"
LOCK_NAME = "lock"
# What a driver says of its job; see `session.job_file`.
JOB_NAME = "job"
# What a process writes its stacks to when it is asked by a signal; see `observe.outside`.
STACKS_NAME = "stacks"
# Where a thread that stands at a breakpoint is debugged; its process's id and a number follow. See `host.breakpoints`.
DEBUGGER_NAME = "d"
# Sockets of channels that this process holds follow it with their number.
SHORTCUTS_NAME = "c"
# A folder beside it has what processes of a job wrote while that was traced; see `tracing.span_file_folder`.
SPAN_FILE_SEGMENT = "[0-9a-zA-Z]+[.][0-9]"
_NUMBERED = re.compile(f"{SHORTCUTS_NAME}[0-9]+|{DEBUGGER_NAME}[0-9]+-[0-9]+|{SPAN_FILE_SEGMENT}")
_OURS = frozenset({SOCKET_NAME, LOCK_NAME, JOB_NAME, STACKS_NAME})
# A directory is made before it is locked: a young one may belong to a process that is just starting.
MIN_STALE_AGE_S = 60.0
# Who removes a folder has it locked meanwhile. Shorter than it takes until a process that waits so long in its I/O
# thread is taken for stopped.
REMOVED_WITHIN_S = 2.0
_LOOK_S = 0.01
# So many names of the common directory are tried before a process takes one of its own.
MAX_NAMES = 8
# sun_path holds 108 bytes with the closing zero; mkdtemp adds 8 letters to a prefix.
_MAX_PARENT_BYTES = 107 - len("/12345678/") - len(f"{DEBUGGER_NAME}4194304-12345")


class RunDirectory:
    """A fresh directory of mode 0700 that only this user may enter.

    Attributes:
        path: the directory; the socket goes in it under `SOCKET_NAME`.
    """

    def __init__(self) -> None:
        parent, self._is_shared = _parent()
        _remove_stale(parent)
        self.path = Path(tempfile.mkdtemp(prefix="", dir=parent))
        self._lock_fd = os.open(self.path / LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def abandon(self) -> None:
        """Leave the directory to the parent; in a forked child."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def close(self) -> None:
        """Remove the directory."""
        if self._lock_fd < 0:
            return
        with contextlib.suppress(OSError):
            _remove(self.path)
            if not self._is_shared:
                self.path.parent.rmdir()
        os.close(self._lock_fd)
        self._lock_fd = -1


def private_directory(longest_bytes: int | None = None) -> Path | None:
    """This user's directory of mode 0700, under the machine's for temporary files; None where none can be had.

    It is the same for all processes of the user, and stays.

    Args:
        longest_bytes: where its path would be longer, or has letters that are not ASCII, which Ray does not take, it is
            the one under /tmp.
    """
    path, is_shared = _parent(_MAX_PARENT_BYTES if longest_bytes is None else longest_bytes)
    if is_shared:
        return path
    path.rmdir()
    return None


def _parent(longest_bytes: int = _MAX_PARENT_BYTES) -> tuple[Path, bool]:
    """The directory of all of this user's, made now if it is not there; whether it is for all of them."""
    name = f"rlinf-{os.getuid()}"
    base = Path(tempfile.gettempdir())
    if len(os.fsencode(base / f"{name}-{MAX_NAMES}")) > longest_bytes or not str(base).isascii():
        base = Path("/tmp")  # noqa: S108 - what is made in it has mode 0700 and an owner that is checked
    # Somebody else may have that name in a directory that all may write to: then the next one.
    for path in (base / name, *(base / f"{name}-{number}" for number in range(1, MAX_NAMES))):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        if is_private(path):
            return path, True
    return Path(tempfile.mkdtemp(prefix="rlinf-", dir=base)), False


def private_file(path: str, flags: int) -> int:
    """Open a file as `open` does, as its `opener`; where it is made, only this user may read or write it."""
    return os.open(path, flags, 0o600)


def is_private(path: Path) -> bool:
    """Whether it is a directory, not a link to one, that belongs to this user and to nobody besides."""
    status = path.lstat()
    mine = status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700
    return stat.S_ISDIR(status.st_mode) and mine


def is_at(descriptor: int, path: Path) -> bool:
    """Whether what is open is what lies at that path now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def hold(path: Path, opened: Callable[[], int], within_s: float = REMOVED_WITHIN_S) -> int:
    """A descriptor; as long as it is open, in this process or a child of its, nobody takes what is there for left.

    Args:
        path: of what is held.
        opened: makes it, if it is not there, and opens it.
        within_s: how long somebody else may have it locked, in seconds.

    Raises:
        ClusterError: somebody has it locked for longer.
        FileNotFoundError: it cannot be made for as long: what it lies in is gone.
    """
    deadline = time.monotonic() + within_s
    while True:
        missing: FileNotFoundError | None = None
        try:
            descriptor, is_held = opened(), False
            try:
                is_held = _lock_shared(descriptor) and is_at(descriptor, path)
            finally:
                if not is_held:
                    os.close(descriptor)
            if is_held:
                return descriptor
        except FileNotFoundError as error:  # somebody removed it in between
            missing = error
        if time.monotonic() >= deadline:
            raise missing or ClusterError(
                f"{path}: another process has had it locked for {within_s:g} s, as one that removes it does; "
                f"`fuser -v {path}` says which"
            )
        time.sleep(_LOOK_S)


def living_drivers() -> Iterator[Path]:
    """The run directories of this user's processes that have not ended and say something of a job."""
    parent = private_directory()
    for path in parent.iterdir() if parent is not None else ():
        with contextlib.suppress(OSError):
            # To ask for a lock is to hold it for a moment: never that of a process which is about to take it.
            if is_private(path) and (path / JOB_NAME).exists() and _is_locked(path):
                yield path


def _is_locked(path: Path) -> bool:
    lock_fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return not _lock_shared(lock_fd)
    finally:
        os.close(lock_fd)


def _lock_shared(descriptor: int) -> bool:
    """Lock what is open, beside others that do; whether nobody has it alone."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_stale(parent: Path) -> None:
    oldest = time.time() - MIN_STALE_AGE_S
    with os.scandir(parent) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                # Most are young where many processes start.
                if entry.stat(follow_symlinks=False).st_mtime < oldest and is_private(Path(entry)):
                    _remove_if_unlocked(Path(entry))


def _remove_if_unlocked(path: Path) -> None:
    try:
        lock_fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:  # whoever made it was killed before it was locked: then it is empty, too
        path.rmdir()
        return
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(path)
    finally:
        os.close(lock_fd)


def _remove(path: Path) -> None:
    """Remove a directory that holds what we put there and nothing else."""
    names = {entry.name for entry in path.iterdir()}
    if all(name in _OURS or _NUMBERED.fullmatch(name) for name in names):
        for name in names:
            (path / name).unlink()
        path.rmdir()
