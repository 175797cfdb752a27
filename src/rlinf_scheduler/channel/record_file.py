"""A file of records with checksums, which is there whole or not at all.

It begins with MAGIC and the version of its format. Then come records as of `record_log.framing`. The first one says
how many follow, so a file that was cut off at the end of a record is noticed, too.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO
from itertools import chain
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from rlinf_scheduler.comm.disk import DISK, Disk
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.errors import CheckpointError
from rlinf_scheduler.record_log.framing import HEAD, append_all, framed

MAGIC = b"\x93RLINF\r\n"
VERSION = 2
# The version of this library that wrote files of a format, for those that are read no more.
WRITTEN_BY = {1: "0.1.0 up to November 2026"}
_VERSION = struct.Struct("<I")
# A file is written beside its place, and then takes it.
NEW = ".new"

HeadT = TypeVar("HeadT", bound=msgspec.Struct)


def write_file(
    path: str, head: msgspec.Struct, records: Iterable[Sequence[Buffer | bytes]], disk: Disk = DISK
) -> int:
    """Write a file of a head and records; what was at its place stays there until it is complete, and on disk.

    Returns:
        Its size in bytes.

    Raises:
        CheckpointError: it cannot be written, or somebody else writes it now.
    """
    framed_records = chain([[msgspec.msgpack.encode(head)]], records)
    pieces = chain([MAGIC + _VERSION.pack(VERSION)], chain.from_iterable(map(framed, framed_records)))
    try:
        return _replace(disk, path, pieces)
    except OSError as error:
        raise CheckpointError(path, f"it cannot be written: {error}") from error


def _replace(disk: Disk, path: str, pieces: Iterator[Buffer]) -> int:
    new = path + NEW
    file = _locked(disk, new)
    try:
        disk.ftruncate(file.fileno(), 0)
        size_bytes = append_all(file.fileno(), 0, pieces, disk)
        disk.fsync(file.fileno())
        disk.replace(new, path)
    except BaseException:
        # It may have taken its place before it was interrupted.
        if _is_at(disk, file, new):
            disk.unlink(new)
        raise
    finally:
        file.close()
    disk.sync_folder(os.path.dirname(path))
    return size_bytes


def _locked(disk: Disk, path: str) -> FileIO:
    """Open a file that nobody else has opened so; the lock ends with the process at the latest."""
    while True:
        file = disk.open_to_write(path, 0o600)
        try:
            lock(file.fileno(), path.removesuffix(NEW), disk)
            if _is_at(disk, file, path):
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # who had it has just put it to its place


def _is_at(disk: Disk, file: FileIO, path: str) -> bool:
    """Whether a file that is locked here is still there; then nobody else puts another one there."""
    return disk.exists(path) and os.path.samestat(disk.fstat(file.fileno()), disk.stat(path))


def lock(file: Any, path: str, disk: Disk = DISK) -> None:
    """Keep others out as long as a file is open.

    Raises:
        CheckpointError: somebody else is there.
    """
    try:
        disk.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise CheckpointError(path, "another process, or thread, writes it now") from error


class RecordFile:
    """A file that was written by `write_file`, to be read once from its beginning.

    Args:
        disk: of what.

    Raises:
        CheckpointError: it is not there, no such file, of a newer format, cut off or corrupt. All methods raise that.
    """

    def __init__(self, path: str, disk: Disk = DISK) -> None:
        self.path = path
        self._disk = disk
        self._place = 0
        try:
            self._file = disk.open_to_read(path)
            self._left = disk.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise CheckpointError(path, f"it cannot be read: {error.strerror}") from error
        self._num_read = 0
        try:
            self._check_begin()
        except BaseException:
            self.close()
            raise

    def _check_begin(self) -> None:
        path = self.path
        begin = self._read(min(self._left, len(MAGIC) + _VERSION.size))
        if bytes(begin[: len(MAGIC)]) != MAGIC[: len(begin)] or not begin:
            raise CheckpointError(path, f"it is no checkpoint: it begins with {bytes(begin[:8])!r}")
        if len(begin) < len(MAGIC) + _VERSION.size:
            raise self._cut_off()
        (version,) = _VERSION.unpack(begin[len(MAGIC) :])
        if version < 1:
            raise CheckpointError(path, f"it is corrupt: it has format {version}, which there never was")
        if version in WRITTEN_BY:
            problem = f"it has format {version}, which version {WRITTEN_BY[version]} of this library wrote"
            what_to_do = "restore it with that one, and let what it holds be taken there"
            raise CheckpointError(path, f"{problem}, and this one reads format {VERSION}; {what_to_do}")
        if version > VERSION:
            problem = (
                f"it has format {version}, of a newer version of this library; this one reads up to {VERSION}"
            )
            raise CheckpointError(path, problem)

    def head(self, kind: type[HeadT], what: str) -> HeadT:
        """Read the first record, which is to be of a kind, `what` in words."""
        (data,) = self.record(1)
        try:
            return msgspec.msgpack.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise CheckpointError(self.path, f"it is not {what}: {error}") from error

    def record(self, num_frames: int | None = None) -> list[bytearray]:
        """Read the next record."""
        self._num_read += 1
        num, size_bytes, checksum = HEAD.unpack(self._read(HEAD.size))
        if size_bytes > self._left:
            raise self._cut_off()
        if 8 * num > size_bytes or num_frames not in (None, num):
            raise self._corrupt()
        table = self._read(8 * num)
        sizes = struct.unpack(f"<{num}Q", table)
        if 8 * num + sum(sizes) != size_bytes:
            raise self._corrupt()
        frames = [self._read(size) for size in sizes]
        found = crc32(table)
        for frame in frames:
            found = crc32(frame, found)
        if found != checksum:
            raise self._corrupt()
        return frames

    def end(self) -> None:
        """Make sure that nothing follows."""
        if self._left:
            raise CheckpointError(
                self.path, f"it is corrupt: {self._left} bytes too much follow its last record"
            )

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _read(self, size_bytes: int) -> bytearray:
        if size_bytes > self._left:
            raise self._cut_off()
        try:
            data = self._disk.read(self._file.fileno(), self._place, size_bytes)
        except OSError as error:
            raise CheckpointError(self.path, f"it cannot be read: {error.strerror}") from error
        self._left -= size_bytes
        self._place += size_bytes
        return data

    def _cut_off(self) -> CheckpointError:
        return CheckpointError(
            self.path, f"it is cut off, or corrupt: it ends within record {self._num_read}"
        )

    def _corrupt(self) -> CheckpointError:
        return CheckpointError(
            self.path, f"it is corrupt: record {self._num_read} does not match its checksum"
        )
