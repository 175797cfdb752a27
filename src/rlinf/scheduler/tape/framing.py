"""A record as it lies in a file, of a few frames of bytes; and how one is appended, whole or not at all.

First comes HEAD: the number of frames, the size of the rest in bytes, the CRC-32 of the rest. The rest is the size of
each frame, in 8 bytes each, and then the frames.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from zlib import crc32

from rlinf.scheduler.comm.framing import Buffer

HEAD = struct.Struct("<IQI")
# The kernel takes so many pieces in one call.
_MAX_PIECES = 1024


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


def append_whole(file: int, end: int, pieces: Sequence[Buffer]) -> int:
    """Write pieces at the end of a file, all of them or none; the new end.

    Args:
        file: its descriptor, which does not append by itself.
        end: where the file ends.
        pieces: of one byte or more each.

    Raises:
        OSError: they cannot be written, there being no room for all of them, say; the file ends where it did.
    """
    place, first = end, 0
    left = [memoryview(piece).cast("B") for piece in pieces]
    try:
        while first < len(left):
            written = os.pwritev(file, left[first : first + _MAX_PIECES], place)
            place += written
            while first < len(left) and written >= left[first].nbytes:
                written -= left[first].nbytes
                first += 1
            if written:
                left[first] = left[first][written:]
    except BaseException:  # an interruption, too
        with suppress(OSError):
            os.ftruncate(file, end)
        raise
    return place
