"""The folder of a trace on a machine: where its processes write their spools, and what lets others tell that they live.

It lies beside this user's run directories, and is locked as these are, by each process that writes there: what is left
of a trace when all of them are gone, however they went, is removed by the next process that joins a job here.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from rlinf_scheduler.comm.rundir import (
    LOCK_NAME,
    REMOVED_WITHIN_S,
    hold,
    is_private,
    private_directory,
)
from rlinf_scheduler.errors import ClusterError

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


def hold_folder(folder: Path, within_s: float = REMOVED_WITHIN_S) -> int:
    """A descriptor; as long as it is open, in this process or a child of its, nobody takes the folder for left.

    Args:
        folder: of a trace.
        within_s: how long who removes it may take, in seconds.

    Raises:
        ClusterError: somebody has it locked for longer.
    """

    def opened() -> int:
        folder.mkdir(mode=0o700, exist_ok=True)
        return os.open(folder / LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    return hold(folder / LOCK_NAME, opened, within_s)


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
