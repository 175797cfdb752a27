"""The folder of a trace on a machine: where its processes write their spools, and what lets others tell that they live.

It lies beside this user's run directories, and is locked as these are, by each process that writes there: what is left
of a trace when all of them are gone, however they went, is removed by the next process that joins a job here.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import msgspec

from rlinf.scheduler.comm.rundir import LOCK_NAME, is_at, is_private, private_directory
from rlinf.scheduler.errors import ClusterError

_PREFIX = "trace-"


class SpoolFile(msgspec.Struct, frozen=True, array_like=True):
    """A segment of a spool: its file's name, and how large it is, in bytes."""

    name: str
    size_bytes: int


def folder_of(trace_id: str, machine_id: str) -> Path:
    """The folder in which a machine's processes write their spools, this one's; it is made if it is not there.

    Raises:
        ClusterError: none can be had that is this user's alone.
    """
    parent = private_directory()
    if parent is None or not (trace_id + machine_id).isalnum():
        raise ClusterError(
            "no directory for temporary files is this user's alone: this process is not traced"
        )
    folder = parent / f"{_PREFIX}{trace_id}-{machine_id}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if not is_private(folder):
        raise ClusterError(f"{folder} is not this user's alone: this process is not traced")
    return folder


def hold_folder(folder: Path) -> int:
    """A descriptor; as long as it is open, in this process or a child of its, nobody takes the folder for left."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            lock_fd = os.open(
                folder / LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except FileNotFoundError:  # somebody took it for left just now
            continue
        try:
            # Who removes a folder has it for a moment.
            fcntl.flock(lock_fd, fcntl.LOCK_SH)
            if is_at(lock_fd, folder / LOCK_NAME):
                return lock_fd
        except BaseException:
            os.close(lock_fd)
            raise
        os.close(lock_fd)


def spools_in(folder: Path) -> list[SpoolFile]:
    """The segments that lie in a folder."""
    files = sorted(path for path in folder.iterdir() if path.name != LOCK_NAME)
    return [SpoolFile(path.name, path.stat().st_size) for path in files]


def part_of(folder: Path, name: str, start: int, size_bytes: int) -> bytes:
    """A part of a segment.

    Raises:
        ClusterError: it is not in that folder.
        OSError: it cannot be read.
    """
    if Path(name).name != name:
        raise ClusterError(f"'{name}' is no spool")
    with (folder / name).open("rb") as file:
        file.seek(start)
        return file.read(size_bytes)


def drop_spools(folder: Path) -> None:
    """Remove the folder of a trace."""
    shutil.rmtree(folder, ignore_errors=True)
