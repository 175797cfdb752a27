"""The folder of a trace on a machine.

Where its processes write their span files, and what lets others tell that they live.

It lies beside this user's run directories, and is locked as these are, by each process that writes there: what is left
of a trace when all of them are gone, however they went, is removed by the next process that joins a job here.

Each has its own span file locked, too. What is not locked was left by a process that has ended: the next one that
begins to write removes of this the oldest, beyond a bound.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from rlinf_scheduler.comm.rundir import (
    LOCK_NAME,
    REMOVED_WITHIN_S,
    hold,
    is_private,
    private_directory,
)
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.tracing.span_file import (
    dropped_whole,
    note_dropped_whole,
    number_of,
    read_span_file,
    segment,
)

_PREFIX = "trace-"
# Beside the span files: of how many spans nothing else is left. No process is called so.
DROPPED_NAME = "dropped.0"
# What a file takes of a disk is a multiple of it, mostly.
_BLOCK_BYTES = 4096
# The head of a segment is no longer, but for very long names.
_HEAD_BYTES = 1024


class SpanFileRecord(msgspec.Struct, frozen=True, array_like=True):
    """A segment of a span file: its file's name, and how large it is, in bytes."""

    name: str
    size_bytes: int


def folder_of(trace_id: str, machine_id: str) -> Path:
    """The folder in which a machine's processes write their span files, this one's; it is made if it is not there.

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

    Raises:
        ClusterError: somebody has it locked for longer.
    """

    def opened() -> int:
        folder.mkdir(mode=0o700, exist_ok=True)
        return os.open(folder / LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    return hold(folder / LOCK_NAME, opened, within_s)


def hold_span_file(path: Path, within_s: float = REMOVED_WITHIN_S) -> int:
    """A descriptor; as long as it is open, in this process or a child of its, nobody takes that span file for left.

    Raises:
        ClusterError: somebody has it locked for longer.
        OSError: it cannot be made.
    """
    first = segment(path, 0)
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    return hold(first, partial(os.open, first, flags, 0o600), within_s)


class _Segment(NamedTuple):
    """A segment of a process that has ended; it is more than one that was written before it."""

    written_ns: int
    number: int
    path: Path
    size_bytes: int


def drop_oldest(folder: Path, max_bytes: int) -> None:
    """Remove the oldest segments of processes that have ended, until the others fit.

    The next segment of a span file says how many spans were before it; of a whole span file that is noted in the
    folder.
    """
    with _alone_in(folder) as is_alone:
        if not is_alone:  # another process that begins to write does the same just now
            return
        ended = _segments_of_ended(folder)
        excess = sum(each.size_bytes for each in ended) - max_bytes
        num_segments = Counter(each.path.stem for each in ended)
        num_spans: Counter[str] = Counter()
        for each in sorted(ended):
            if excess <= 0:
                break
            with _ended(each.path.with_suffix("")) as has_ended:
                if has_ended:
                    num_segments[each.path.stem] -= 1
                    if not num_segments[each.path.stem]:
                        num_spans.update(_spans_until(each.path))
                    each.path.unlink()
                    excess -= each.size_bytes
        if num_spans:
            noted = folder / DROPPED_NAME
            num_spans.update(dropped_whole(noted.read_bytes()) if noted.exists() else {})
            note_dropped_whole(noted, dict(num_spans))


@contextmanager
def _alone_in(folder: Path) -> Iterator[bool]:
    """Keep others from removing segments meanwhile; False: another process does it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _locked(descriptor)
    finally:
        os.close(descriptor)


def _segments_of_ended(folder: Path) -> list[_Segment]:
    segments: dict[Path, list[Path]] = {}
    for path in folder.iterdir():
        if path.name not in {LOCK_NAME, DROPPED_NAME}:
            segments.setdefault(path.with_suffix(""), []).append(path)
    found: list[_Segment] = []
    for span_file, paths in segments.items():
        with _ended(span_file) as has_ended:
            found += map(_described, paths) if has_ended else ()
    return found


def _described(path: Path) -> _Segment:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        size_bytes = -(-status.st_size // _BLOCK_BYTES) * _BLOCK_BYTES
        return _Segment(status.st_mtime_ns, number_of(file.read(_HEAD_BYTES)), path, size_bytes)


@contextmanager
def _ended(span_file: Path) -> Iterator[bool]:
    """Keep a span file from being begun meanwhile; False: its process writes it."""
    try:
        descriptor = os.open(segment(span_file, 0), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:  # it was older than what is there, and is removed
        yield True
        return
    try:
        yield _locked(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Lock what is open, for nobody else to have; False: somebody has it locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _spans_until(path: Path) -> dict[str, int]:
    """How many spans a process had until the end of a segment, by its name."""
    content = read_span_file([path.read_bytes()])
    return {} if content is None else {content.head.process: content.num_dropped + len(content.spans)}


def span_files_in(folder: Path) -> list[SpanFileRecord]:
    """The segments that lie in a folder, and what is noted of those that were removed."""
    found: list[SpanFileRecord] = []
    for path in sorted(folder.iterdir()):
        if path.name != LOCK_NAME:
            with suppress(FileNotFoundError):  # it was removed just now
                found.append(SpanFileRecord(path.name, path.stat().st_size))
    return found


def part_of(folder: Path, name: str, start: int, size_bytes: int) -> bytes:
    """A part of a segment.

    Raises:
        ClusterError: it is not in that folder.
        OSError: it cannot be read.
    """
    if Path(name).name != name:
        raise ClusterError(f"'{name}' is no span file")
    with (folder / name).open("rb") as file:
        file.seek(start)
        return file.read(size_bytes)


def drop_span_files(folder: Path) -> None:
    """Remove the folder of a trace."""
    shutil.rmtree(folder, ignore_errors=True)
