"""The first page of an arena: whose it is, and whether somebody waits for room in it.

It holds: 8 bytes of magic; at WANTED_AT a byte that is 1 while the owner waits for room, so that whoever gives a block
back tells it; then a u16 and so many bytes of msgpack, [the owner's endpoint, its process id].
"""

from __future__ import annotations

import os

import msgspec

from rlinf.scheduler.comm.endpoint import Endpoint

MAGIC = b"rlinf\x00\x01\n"
WANTED_AT = 8
_LENGTH_AT = 16
_OWNER_AT = 18
HEADER_BYTES = 4096


def new_header(owner: Endpoint) -> bytes:
    """The header of an arena."""
    data = msgspec.msgpack.encode([owner.to_wire(), os.getpid()])
    return MAGIC.ljust(_LENGTH_AT, b"\0") + len(data).to_bytes(2, "little") + data


def read_owner(fd: int) -> tuple[Endpoint, int]:
    """Whose arena is open as `fd`: the owner and its process id.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no arena.
    """
    header = os.pread(fd, HEADER_BYTES, 0)
    if not header.startswith(MAGIC):
        message = "it is not the arena of a process"
        raise ValueError(message)
    length = int.from_bytes(header[_LENGTH_AT:_OWNER_AT], "little")
    endpoint, pid = msgspec.msgpack.decode(header[_OWNER_AT : _OWNER_AT + length])
    return Endpoint.from_wire(endpoint), int(pid)


def is_wanted(fd: int) -> bool:
    """Whether the owner waits for room."""
    return os.pread(fd, 1, WANTED_AT) == b"\1"
