"""Where everything lies in an arena, and what its first page says: whose it is, and how urgently room is needed in it.

    header | holder table | the region of the smallest blocks | the region of the next size | ...

That follows from the arena's limit, so that owner and readers agree. A block has one of a few sizes, four to each
doubling, and stays at its place for ever: a region has room for as many blocks of its size as the limit allows. So
there is nothing to join and nothing to search, and memory that was never written costs nothing but addresses.

The header holds: 8 bytes of magic; at WANTED_AT a byte that is 1 while the owner waits for room, so that whoever
releases a block tells it; at LOW_AT one that is 1 while little room is left, so that blocks are released as soon as
they are dropped; at UNPIN_AT one that the owner sets when pinned blocks keep it from giving memory back, and a reader
that looks at it clears; then a u16 and so many bytes of msgpack, a `Header`. Locks on the page's bytes stand for slots.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.shm import holders

# The last two bytes but one are the version of the layout.
MAGIC = b"rlinf\x00\x03\n"
WANTED_AT = 8
LOW_AT = 9
UNPIN_AT = 10
_LENGTH_AT = 16
_RECORD_AT = 18
HEADER_BYTES = 4096


class Header(msgspec.Struct, array_like=True, frozen=True):
    """The description of an arena that its readers get.

    Attributes:
        pid: the owner's process id.
        limit_bytes: how much the owner may keep in it, from which the layout follows.
    """

    owner: Endpoint
    pid: int
    limit_bytes: int


_decode = msgspec.msgpack.Decoder(Header).decode


def new_header(owner: Endpoint, limit_bytes: int) -> bytes:
    """The first bytes of an arena of this process."""
    data = msgspec.msgpack.encode(Header(owner, os.getpid(), limit_bytes))
    return MAGIC.ljust(_LENGTH_AT, b"\0") + len(data).to_bytes(2, "little") + data


def read_header(fd: int) -> Header:
    """What stands at the beginning of the arena that is open as `fd`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no arena, or one of another version.
    """
    page = os.pread(fd, HEADER_BYTES, 0)
    if not page.startswith(MAGIC):
        message = "it is not the arena of a process"
        raise ValueError(message)
    length = int.from_bytes(page[_LENGTH_AT:_RECORD_AT], "little")
    return _decode(page[_RECORD_AT : _RECORD_AT + length])


SMALLEST_BYTES = 64 << 10
# Regions begin where huge pages do.
_REGION_ALIGNMENT = 2 << 20


class Layout:
    """The places of an arena's parts.

    Args:
        limit_bytes: how much may be in use.

    Attributes:
        block_bytes: the sizes of blocks, ascending; the last holds as much as the limit.
        num_blocks: of all sizes together; blocks are numbered through.
        table_bytes: how long the header and the holder table are together.
        size_bytes: how long the arena is.

    >>> layout = Layout(1 << 20)
    >>> layout.size_class(100_000), layout.block_bytes[2]
    (3, 98304)
    >>> layout.size_class(98_304)
    2
    """

    __slots__ = (
        "_firsts",
        "_region_bytes",
        "_regions",
        "block_bytes",
        "num_blocks",
        "size_bytes",
        "table_bytes",
    )

    def __init__(self, limit_bytes: int) -> None:
        self.block_bytes = _sizes_up_to(limit_bytes)
        # A block is taken for an object that does not fit into the next smaller one.
        least = [self.block_bytes[0], *self.block_bytes[:-1]]
        counts = [max(1, -(-limit_bytes // size)) for size in least]
        self._firsts = [0]
        for count in counts:
            self._firsts.append(self._firsts[-1] + count)
        self.num_blocks = self._firsts[-1]
        self.table_bytes = HEADER_BYTES + holders.table_bytes(self.num_blocks)
        self._region_bytes = [
            _round_up(count * size, _REGION_ALIGNMENT)
            for count, size in zip(counts, self.block_bytes, strict=True)
        ]
        self._regions = [_round_up(self.table_bytes, _REGION_ALIGNMENT)]
        for size in self._region_bytes:
            self._regions.append(self._regions[-1] + size)
        self.size_bytes = self._regions[-1]

    def size_class(self, size_bytes: int) -> int:
        """The smallest blocks that hold so many bytes."""
        return bisect_left(self.block_bytes, size_bytes)

    def class_of(self, index: int) -> int:
        """Which size a block has."""
        return bisect_right(self._firsts, index) - 1

    def blocks(self, size_class: int) -> range:
        """The numbers of the blocks of a size."""
        return range(self._firsts[size_class], self._firsts[size_class + 1])

    def region(self, size_class: int) -> tuple[int, int]:
        """Where the blocks of a size lie: (offset in bytes, length in bytes)."""
        return self._regions[size_class], self._region_bytes[size_class]

    def offset_in_region(self, index: int) -> int:
        """Where a block begins, in bytes from the beginning of its region."""
        size_class = self.class_of(index)
        return (index - self._firsts[size_class]) * self.block_bytes[size_class]

    def offset(self, index: int) -> int:
        """Where a block begins in the arena, in bytes."""
        return self._regions[self.class_of(index)] + self.offset_in_region(index)


def _sizes_up_to(limit_bytes: int) -> list[int]:
    sizes: list[int] = []
    doubling = SMALLEST_BYTES
    while True:
        for quarters in range(4, 8):
            sizes.append(doubling * quarters // 4)
            if sizes[-1] >= limit_bytes:
                return sizes
        doubling *= 2


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
