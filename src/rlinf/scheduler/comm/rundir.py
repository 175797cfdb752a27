"""The private directory in which a process's Unix socket lies.

A directory is locked by its process as long as that lives; the kernel drops the lock even after kill -9, so
that a later process can tell a dead one's directory and remove it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "rlinf-"
# sun_path holds 108 bytes with the closing zero; the file's own name needs a few of them.
MAX_DIRECTORY_BYTES = 90
# A directory is made before it is locked: a young one may belong to a process that is just starting.
MIN_STALE_AGE_S = 60.0


class RunDirectory:
    """A fresh directory of mode 0700 that only this user may enter.

    Attributes:
        path: the directory.
    """

    def __init__(self) -> None:
        parent = _parent()
        _remove_stale(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock_fd = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def abandon(self) -> None:
        """Leave the directory to the parent; in a forked child."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def close(self) -> None:
        """Remove the directory and what is in it."""
        if self._lock_fd < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock_fd)
        self._lock_fd = -1


def _parent() -> Path:
    wanted = tempfile.gettempdir()
    short_enough = len(os.fsencode(wanted)) + len(PREFIX) + 10 <= MAX_DIRECTORY_BYTES
    return Path(wanted if short_enough else "/tmp")  # noqa: S108 - the directory made in it has mode 0700


def _remove_stale(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > MIN_STALE_AGE_S:
                _remove_if_unlocked(path)


def _remove_if_unlocked(path: Path) -> None:
    lock_fd = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock_fd)
