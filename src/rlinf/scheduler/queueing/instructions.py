"""What the state machine asks its shell to do. Tuples: one is made for every operation of a channel."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from rlinf.scheduler.queueing.item import Item
from rlinf.scheduler.queueing.sharding import Part


class Reason(Enum):
    """Why an operation was refused."""

    FULL = "full"  # put without waiting: no room
    EMPTY = "empty"  # get without waiting: nothing there, or others came first
    CLOSED = "closed"  # the channel is closed (and, for getters, drained)
    ENDED = "ended"  # the queue has ended (and, for getters, is drained)
    SUCCEEDED = "succeeded"  # another one asks for the same shard now
    IMPOSSIBLE = "impossible"  # a batch that no future put can complete
    CANCELLED = "cancelled"  # its own client withdrew it


class Accept(NamedTuple):
    """The queue holds the item of this put: tell its producer."""

    client: str
    ticket: int


class Grant(NamedTuple):
    """There is room for the item that was announced: ask its producer for the bytes, then call `fill`."""

    client: str
    ticket: int


class Deliver(NamedTuple):
    """Send these items to the getter, then call `confirm` (taken) or `withdraw` (not taken).

    A batch that is not `complete` is what was left when its queue had ended or was flushed.
    """

    client: str
    ticket: int
    items: list[Item]
    complete: bool = True
    part: Part | None = None  # of a shard


class Refuse(NamedTuple):
    """The operation failed; nothing was put or taken. `state` says what its queue looks like, in a phrase."""

    client: str
    ticket: int
    reason: Reason
    state: str


class Ripen(NamedTuple):
    """Call `ripen` after so many seconds: a batch may have what is there then."""

    client: str
    ticket: int
    after_s: float


Instruction = Accept | Grant | Deliver | Refuse | Ripen
