"""What a channel's clients and its server say to each other.

A client opens the channel once, by a request to the control service. From then on both sides send notices, each with
as much as has gathered, so that many small operations share one message: `Operations` with the frames of its puts and
fills, in order, one way, and `Responses` with the frames of its deliveries the other way.

The frames of an item are its bytes, or one descriptor of shared memory: then its bytes stay where the producer wrote
them, and the server keeps them there. Every operation has a ticket, unique in its client's process, and every answer
names it. The client keeps the clock: at its deadline it withdraws an operation, and the server's answer says whether
that came in time. A delivered item stays in the server until its ticket is confirmed, and returns to the head of its
queue when the client withdraws or is gone.

A thread that blocks may use a shortcut (see `shortcut`): a socket of its own on which one `Direct` operation goes at a
time, and one `DirectAnswer` comes back. Confirmations, and operations that were given up (`QueryOutcome`), go the
usual way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, Union

import msgspec

from rlinf_scheduler.queueing.item import as_name as as_name
from rlinf_scheduler.queueing.messages import Fill as Fill
from rlinf_scheduler.queueing.messages import Get as Get
from rlinf_scheduler.queueing.messages import Gets as Gets
from rlinf_scheduler.queueing.messages import Put as Put
from rlinf_scheduler.queueing.messages import Puts as Puts
from rlinf_scheduler.queueing.messages import Resend as Resend
from rlinf_scheduler.queueing.messages import Withdraw as Withdraw
from rlinf_scheduler.queueing.policies import OPERATIONS as OF_POLICIES
from rlinf_scheduler.queueing.policies import AnyGet as AnyGet

# Larger items that travel as bytes are announced to a bounded queue; smaller ones go at once, on credit.
INLINE_BYTES = 64 << 10
# So much of one client may lie at the server of a bounded channel before it was accepted, for each queue.
CREDIT_BYTES = 256 << 10
# The same of a queue that nobody bounded, so that only its machine's memory does.
LARGE_INLINE_BYTES = 1 << 20
LARGE_CREDIT_BYTES = 16 << 20
# What goes by a shortcut is no larger. The kernel takes datagrams up to its default size of a buffer, 208 KiB.
MAX_DATAGRAM_BYTES = 160 << 10
# Items up to here travel in it: two copies more cost less than a block of shared memory.
DIRECT_BYTES = 128 << 10


class QueryOutcome(msgspec.Struct, tag=6, array_like=True, gc=False):
    """Nobody wants an operation any more that went by a shortcut -> `Refused`, or accepted: always one of them."""

    ticket: int


OPERATION_TYPES = (Put, Puts, Fill, Get, Gets, Withdraw, Resend, QueryOutcome, *OF_POLICIES)
if TYPE_CHECKING:
    OperationMessage: TypeAlias = Any
else:
    OperationMessage = Union[tuple(AnyGet if kind is Get else kind for kind in OPERATION_TYPES)]  # noqa: UP007


def tickets_of(operation: OperationMessage) -> list[int]:
    """Of which operations a message is."""
    tickets: list[int] = operation.tickets if isinstance(operation, Puts | Gets) else [operation.ticket]
    return tickets


class Operations(msgspec.Struct, array_like=True):
    """Client to server: tickets whose items were taken, or have arrived and are not taken; operations in order."""

    confirmed: list[int]
    arrived: list[int]
    operations: list[OperationMessage]


class EncodedOperations(msgspec.Struct, array_like=True):
    """`Operations` as they are sent: each operation was encoded on its own, so what cannot be is refused alone."""

    confirmed: list[int]
    arrived: list[int]
    operations: list[msgspec.Raw]


class Granted(msgspec.Struct, tag=0, array_like=True, gc=False):
    """There is room for an item that was announced; or its shared memory cannot be read (`problem`)."""

    ticket: int
    problem: str = ""


class Delivered(msgspec.Struct, tag=1, array_like=True, gc=False):
    """The items of a get: the number of frames of each; and whether a batch is what was asked for, or what was left.

    `grant` says how they are given to who has asked for that, as the policy of the queue says it; `group` is the one
    that they belong to, where a group was asked for; `versions` are those that the items were made with, where anybody
    said so; `by` has put the last one, as far as that is known; `origins` say who put each, and its ticket there,
    while the job is traced.
    """

    ticket: int
    num_frames: list[int]
    complete: bool = True
    grant: Any = None
    group: Any = None
    versions: list[int | None] | None = None
    origins: list[tuple[str, int] | None] | None = None
    by: str = ""


class Handed(msgspec.Struct, tag=3, array_like=True, gc=False):
    """As so many `Delivered` in a row, of one item each, which `by` has put."""

    num_frames: int
    by: str
    tickets: list[int]


class Refused(msgspec.Struct, tag=2, array_like=True, gc=False):
    """An operation failed: a reason of `queueing.Reason` or INVALID, and what its queue looks like."""

    ticket: int
    reason: str
    state: str


INVALID = "invalid"

# In `Responses`, in order.
Response = Granted | Delivered | Handed | Refused


def num_frames_of(response: Response) -> int:
    """How many frames belong to a response."""
    if isinstance(response, Delivered):
        return sum(response.num_frames)
    return response.num_frames * len(response.tickets) if isinstance(response, Handed) else 0


class Direct(msgspec.Struct, array_like=True, gc=False):
    """By a shortcut: an operation with its frames; before it come so many `Operations` of the same client."""

    after: int
    operation: Put | AnyGet
    frames: list[bytearray]


class Accepted(msgspec.Struct, tag=6, array_like=True, gc=False):
    """The queue holds the item of a put."""

    ticket: int


class Elsewhere(msgspec.Struct, tag=4, array_like=True, gc=False):
    """The items of a get are too large for a shortcut, and come as `Responses`."""

    ticket: int


class Again(msgspec.Struct, tag=5, array_like=True, gc=False):
    """The shared memory of a put cannot be read: it has put nothing, and is to come the usual way."""

    ticket: int
    problem: str


class DirectAnswer(msgspec.Struct, array_like=True, gc=False):
    """By a shortcut: the end of the operation, with the frames of its items."""

    answer: Accepted | Delivered | Refused | Elsewhere | Again
    frames: list[bytearray]


class Responses(msgspec.Struct, array_like=True):
    """Server to client: tickets of accepted puts, and other responses in order; `left`: the server is no more."""

    accepted: list[int]
    others: list[Response]
    left: bool = False


# Where a channel's server takes operations and requests, and a client takes responses; of a durable channel, where the
# server hears its clients, where it takes what is not written down, and a client hears it (`durable/`).
OPERATIONS, CONTROL, RESPONSES = "", "/control", "/news"
LINE, ASIDE, TOLD = "/line", "/aside", "/told"


def service(channel_id: str, part: str) -> str:
    """Return the name of a channel's service in a process; `part` is one of the above."""
    return f"channel/{channel_id}{part}"
