"""A record as it lies in a file, of a few frames of bytes; and how one is appended, whole or not at all.

First comes HEAD: the number of frames, the size of the rest in bytes, the CRC-32 of the rest. The rest is the size of
each frame, in 8 bytes each, and then the frames.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from zlib import crc32

from rlinf_scheduler.comm.disk import DISK, Disk
from rlinf_scheduler.comm.framing import Buffer, total_bytes

HEAD = struct.Struct("<IQI")
# The kernel takes so many pieces in one call.
_MAX_PIECES = 1024
# So much is written in one call of a stream of little writes.
_CHUNK_BYTES = 1 << 20


def framed(frames: Sequence[Buffer]) -> list[Buffer]:
    """What is to be written for a record, piece by piece; the frames are not copied."""
    views = [memoryview(frame).cast("B") for frame in frames]
    table = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
    checksum = crc32(table)
    for view in views:
        checksum = crc32(view, checksum)
    head = HEAD.pack(len(views), len(table) + sum(view.nbytes for view in views), checksum)
    return [head + table, *views]


def frames_in(data: memoryview, num_frames: int, checksum: int) -> list[memoryview] | None:
    """The frames of a record, of what follows its head; None if it is damaged."""
    table_bytes = 8 * num_frames
    if table_bytes > len(data) or crc32(data) != checksum:
        return None
    sizes = struct.unpack(f"<{num_frames}Q", data[:table_bytes])
    if table_bytes + sum(sizes) != len(data):
        return None
    frames, begin = [], table_bytes
    for size in sizes:
        frames.append(data[begin : begin + size])
        begin += size
    return frames


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
