"""What stands in an answer instead of an object's bytes, and what replication asks of those who pull (`pulls.py`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.blocks import Block
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.errors import ConfigError

VARIABLE, NIXL, OFF = "RLINF_PULL", "nixl", "off"


class PullOffer(msgspec.Struct, array_like=True, frozen=True):
    """Where one reader can pull a piece of an object from.

    Attributes:
        number: which offer of its process.
        registration: which registration of that process the memory belongs to.
        metadata: that registration, and how the process is reached, as NIXL writes it.
        address: where the object's block begins.
    """

    number: int
    registration: int
    metadata: bytes
    address: int


class PullStats(msgspec.Struct, array_like=True, frozen=True):
    """What a process has pulled.

    Attributes:
        stack: with what it pulls, such as "nixl 1.5.1"; "" where it cannot.
        pieces, size_bytes: how many pieces of objects, and how large they were together.
        fell_back: how many came as bytes nevertheless.
        why: why the last one did, or why none can be pulled.
    """

    stack: str = ""
    pieces: int = 0
    size_bytes: int = 0
    fell_back: int = 0
    why: str = ""


# Tells a reader of an offer, or why there is none, and is called back with whether it was taken; False: nobody waits.
Tell = Callable[[PullOffer | str, Callable[[bool], None] | None], bool]


class Pulling(NamedTuple):
    """The functions of this process's `Pulls`, for callers that may not import it."""

    stats: Callable[[], PullStats]
    offer: Callable[[Payload, str, str, Tell], None]
    pull: Callable[[Endpoint, PullOffer, Block, memoryview, memoryview], Promise[None]]
    fell_back: Callable[[Endpoint, str], None]
    abandon: Callable[[], None]


def pull_is_wanted() -> bool:
    """Whether the user wants objects to be pulled.

    Raises:
        ConfigError: `RLINF_PULL` says anything but "nixl" or "off".
    """
    told = os.environ.get(VARIABLE, OFF)
    if told not in {NIXL, OFF}:
        raise ConfigError(f"{VARIABLE} is {told!r}; it takes '{NIXL}', or '{OFF}'")
    return told == NIXL
