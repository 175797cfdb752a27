"""Records in files: how they are framed, checked, appended and read again, and what a death or a full disk leaves.

    record = u64 length of the body, u32 CRC of the length, u32 CRC of the body; then the body:
             u32 length of the head, the head, bytes that are not looked into, one after the other

All numbers are little-endian. What is appended is there whole or not at all as long as its process lives; a death may
leave a record that is not whole, with nothing whole behind it. What records say, and in which files they lie, is of
those that keep them: journals, checkpoints and span files.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from io import FileIO
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from rlinf_scheduler.comm.disk import DISK, Disk
from rlinf_scheduler.comm.framing import JOIN_BYTES, Buffer, flat, total_bytes

HEADER = struct.Struct("<QII")
_LENGTH = struct.Struct("<I")
# What a record takes besides its head and its bytes.
RECORD_BYTES = HEADER.size + _LENGTH.size
# So much is read, copied, or written of a stream of little writes, at a time.
_CHUNK_BYTES = 1 << 20
# The kernel takes so many pieces in one call.
_MAX_PIECES = 1024
# A file that is written whole lies beside its place first, and then takes it.
NEW = ".new"


class BytesOnDisk:
    """The bytes of a large record: so much of them is read as is asked for, when it is.

    A snapshot is as large as all that a channel holds, which is to be in memory once.
    """

    def __init__(self, disk: Disk, fd: int, begin: int, end: int) -> None:
        self._disk, self._fd, self._begin, self._end = disk, fd, begin, end

    def __len__(self) -> int:
        return self._end - self._begin

    def __getitem__(self, part: slice) -> bytearray:
        begin, end, _ = part.indices(len(self))
        return self._disk.read(self._fd, self._begin + begin, end - begin)


class Record(NamedTuple):
    """A record that was read: what it says, and bytes that are not looked into."""

    head: bytes
    frames: memoryview | BytesOnDisk

    def cut(self, sizes: Iterable[int]) -> list[Buffer]:
        """Return its bytes as frames of these sizes, each to be kept without the others."""
        parts = (self.frames[begin:end] for begin, end in pairwise(accumulate(sizes, initial=0)))
        return [part if isinstance(part, bytearray) else bytearray(part) for part in parts]


# -- to write ------------------------------------------------------------------------------------------


def record(head: bytes, frames: Sequence[Buffer] = ()) -> list[Buffer]:
    """Return what is to be written for a record, piece by piece; large frames are not copied."""
    body: list[Buffer] = [_LENGTH.pack(len(head)), head, *map(flat, frames)]
    if total_bytes(body) <= JOIN_BYTES:
        body = [b"".join(body)]
    check = 0
    for piece in body:
        check = zlib.crc32(piece, check)
    return [_header(total_bytes(body), check), *body]


def _header(length: int, body_check: int) -> bytes:
    return HEADER.pack(length, zlib.crc32(length.to_bytes(8, "little")), body_check)


def append_whole(file: int, end: int, pieces: Sequence[Buffer], disk: Disk = DISK) -> int:
    """Write pieces at the end of a file, all of them or none; the new end.

    Args:
        file: its descriptor, which does not append by itself.
        end: where the file ends.
        pieces: bytes, in order.
        disk: where it lies.

    Raises:
        OSError: they cannot be written, there being no room for all of them, say; the file ends where it did.
    """
    try:
        written = disk.pwritev(file, pieces[:_MAX_PIECES], end)
        if written < total_bytes(pieces):
            return _append_rest(file, end, pieces, written, disk)
    except BaseException:  # an interruption, too
        with suppress(OSError):
            disk.ftruncate(file, end)
        raise
    return end + written


def _append_rest(file: int, place: int, pieces: Sequence[Buffer], written: int, disk: Disk) -> int:
    """Write what follows after so many bytes of pieces; where that ends."""
    left = [memoryview(piece).cast("B") for piece in pieces]
    first = 0
    while True:
        place += written
        while first < len(left) and written >= left[first].nbytes:
            written -= left[first].nbytes
            first += 1
        if first == len(left):
            return place
        left[first] = left[first][written:]
        written = disk.pwritev(file, left[first : first + _MAX_PIECES], place)


def append_all(file: int, end: int, pieces: Iterator[Buffer], disk: Disk = DISK) -> int:
    """Write pieces that need not be in memory together, a few at a time; the new end.

    Raises:
        OSError: they cannot be written; of those that went before some are there.
    """
    while some := _next_of(pieces):
        end = append_whole(file, end, some, disk)
    return end


def _next_of(pieces: Iterator[Buffer]) -> list[Buffer]:
    """Take the next of them, until these are worth a call of the kernel."""
    taken: list[Buffer] = []
    size_bytes = 0
    for piece in pieces:
        taken.append(piece)
        size_bytes += len(piece)
        if size_bytes >= _CHUNK_BYTES or len(taken) == _MAX_PIECES:
            break
    return taken


def append_record(file: int, end: int, head: bytes, frames: Iterable[Buffer], disk: Disk = DISK) -> None:
    """Append a record whose frames need not be in memory together; its header, which counts them, is written last.

    Raises:
        OSError: it cannot be written; of it some is there.
    """
    place, check = end + HEADER.size, 0

    def checked() -> Iterator[Buffer]:
        nonlocal check
        for piece in chain([_LENGTH.pack(len(head)), head], map(flat, frames)):
            check = zlib.crc32(piece, check)
            yield piece

    length = append_all(file, place, checked(), disk) - place
    append_whole(file, end, [_header(length, check)], disk)


def append_copy(source: int, start: int, end: int, target: int, disk: Disk = DISK) -> None:
    """Append a part of a file to another one.

    Raises:
        OSError: it cannot be read or written; of it some is there.
    """
    size = disk.fstat(target).st_size
    while start < end:
        piece = disk.pread(source, min(_CHUNK_BYTES, end - start), start)
        if not piece:
            raise OSError(errno.EIO, f"it ends at byte {start} and not at {end}")
        start += len(piece)
        size = append_whole(target, size, [piece], disk)


# -- a file that is there whole or not at all ---------------------------------------------------------


def write_whole(path: str, pieces: Iterator[Buffer], disk: Disk = DISK) -> int:
    """Write a file; what was at its place stays there until it is complete, and on disk.

    Returns:
        Its size in bytes.

    Raises:
        BlockingIOError: somebody else writes it now.
        OSError: it cannot be written.
    """
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


def lock(file: Any, disk: Disk = DISK) -> None:
    """Keep others out as long as a file is open.

    Raises:
        BlockingIOError: somebody else is there.
    """
    disk.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _locked(disk: Disk, path: str) -> FileIO:
    """Open a file that nobody else has opened so; the lock ends with the process at the latest."""
    while True:
        file = disk.open_to_write(path, 0o600)
        try:
            lock(file.fileno(), disk)
            if _is_at(disk, file, path):
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # who had it has just put it to its place


def _is_at(disk: Disk, file: FileIO, path: str) -> bool:
    """Whether a file that is locked here is still there; then nobody else puts another one there."""
    return disk.exists(path) and os.path.samestat(disk.fstat(file.fileno()), disk.stat(path))


# -- to read -------------------------------------------------------------------------------------------


def read_record(disk: Disk, file: int, position: int, size: int) -> tuple[Record, int] | None:
    """Read the record at a position of a file of this size; it and where it ends, None if it is not whole.

    Raises:
        OSError: the file cannot be read.
    """
    header = disk.pread(file, HEADER.size, position)
    length = _length_in(header)
    if length is None or length > size - position - HEADER.size:
        return None
    (_, _, body_check), start = HEADER.unpack(header), position + HEADER.size
    end = start + length
    if length <= _CHUNK_BYTES:
        body = disk.read(file, start, length)
        return (_record_of(body), end) if zlib.crc32(body) == body_check else None
    check = 0
    for place in range(start, end, _CHUNK_BYTES):
        check = zlib.crc32(disk.read(file, place, min(_CHUNK_BYTES, end - place)), check)
    if check != body_check:
        return None
    (head_length,) = _LENGTH.unpack(disk.read(file, start, _LENGTH.size))
    frames_at = start + _LENGTH.size + head_length
    head = disk.read(file, start + _LENGTH.size, head_length)
    return Record(bytes(head), BytesOnDisk(disk, file, frames_at, end)), end


def records_in(data: bytes) -> Iterator[Record]:
    """The records that are whole, of bytes from the beginning of a file; one that is damaged is left out."""
    position = 0
    while (length := _length_in(data[position : position + HEADER.size])) is not None:
        (_, _, body_check), start = HEADER.unpack_from(data, position), position + HEADER.size
        position = start + length
        if position > len(data):
            return
        if zlib.crc32(data[start:position]) == body_check:
            yield _record_of(data[start:position])


def is_whole_behind(disk: Disk, file: int, position: int, size: int) -> bool:
    """Whether a whole record follows after one that is not: then no death has torn that, it is damaged.

    Raises:
        OSError: the file cannot be read.
    """
    length = _length_in(disk.pread(file, HEADER.size, position))
    if length is not None:
        behind = position + HEADER.size + length
        return behind < size and read_record(disk, file, behind, size) is not None
    # Its length is not known: a whole record may begin anywhere.
    likely = _likely_records(disk, file, position + 1, size)
    return any(read_record(disk, file, start, size) is not None for start in likely)


def _length_in(header: bytes) -> int | None:
    """Return the length of the body that a header tells; None if it is not whole."""
    if len(header) < HEADER.size:
        return None
    length, check, _ = HEADER.unpack(header)
    return length if length >= _LENGTH.size and zlib.crc32(header[:8]) == check else None


def _record_of(body: bytes | bytearray) -> Record:
    (head_length,) = _LENGTH.unpack_from(body)
    frames_at = _LENGTH.size + head_length
    return Record(bytes(body[_LENGTH.size : frames_at]), memoryview(body)[frames_at:])


def _likely_records(disk: Disk, file: int, position: int, size: int) -> Iterator[int]:
    """Where from a position on something stands that is the length of a record, going by its check."""
    while position < size - HEADER.size:
        rest = disk.pread(file, min(size - position, _CHUNK_BYTES + HEADER.size), position)
        for shift in range(8):
            lengths = np.frombuffer(rest, "<u8", offset=shift, count=(len(rest) - shift) // 8)
            for index in np.flatnonzero((lengths >= _LENGTH.size) & (lengths <= size - position)):
                start = shift + 8 * int(index)
                check = int.from_bytes(rest[start + 8 : start + 12], "little")
                if zlib.crc32(rest[start : start + 8]) == check:
                    yield position + start
        position += _CHUNK_BYTES
