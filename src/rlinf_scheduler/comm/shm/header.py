"""The first page of an arena: whose it is, how large, and how urgently room is needed in it.

It holds: 8 bytes of magic; at WANTED_AT a byte that is 1 while the owner waits for room, so that whoever releases a
block tells it; at LOW_AT one that is 1 while little room is left, so that blocks are released as soon as they are
dropped; at UNPIN_AT one that the owner sets when pinned blocks keep it from giving memory back, and a reader that looks
at it clears; then a u16 and so many bytes of msgpack, a `Header`. Locks on the page's bytes stand for slots.
"""

from __future__ import annotations

import os

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint

# The last two bytes but one are the version of the layout.
MAGIC = b"rlinf\x00\x03\n"
WANTED_AT = 8
LOW_AT = 9
UNPIN_AT = 10
_LENGTH_AT = 16
_RECORD_AT = 18
HEADER_BYTES = 4096


class Header(msgspec.Struct, array_like=True, frozen=True):
    """What a reader must know of an arena.

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
