"""A record as it lies in a file, of a few frames of bytes.

First comes HEAD: the number of frames, the size of the rest in bytes, the CRC-32 of the rest. The rest is the size of
each frame, in 8 bytes each, and then the frames.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from zlib import crc32

from rlinf.scheduler.comm.framing import Buffer

HEAD = struct.Struct("<IQI")


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
