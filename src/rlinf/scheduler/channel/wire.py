"""What a channel's clients and its server say to each other.

A client opens the channel once, by a request to the control service. From then on both sides send notices, each with
as much as has gathered, so that many small operations share one message: `Operations` with the frames of its puts and
fills, in order, one way, and `News` with the frames of its deliveries the other way.

The frames of an item are its bytes, or one descriptor of shared memory: then its bytes stay where the producer wrote
them, and the server keeps them there. Every operation has a ticket, unique in its client's process, and every answer
names it. The client keeps the clock: at its deadline it withdraws an operation, and the server's answer says whether
that came in time. A delivered item stays in the server until its ticket is confirmed, and returns to the head of its
queue when the client withdraws or is gone.

A thread that blocks may use a shortcut (see `shortcut`): a socket of its own on which one `Direct` operation goes at a
time, and one `Answer` comes back. Confirmations, and operations that were given up (`Recall`), go the usual way.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.queueing import QueueName

# Larger items that travel as bytes are announced to a bounded queue; smaller ones go at once, on credit.
INLINE_BYTES = 64 << 10
# So much of one client may lie at the server of a bounded channel before it was accepted, for each queue.
CREDIT_BYTES = 256 << 10
# The same of a queue that nobody bounded, so that only its machine's memory does.
LARGE_INLINE_BYTES = 1 << 20
LARGE_CREDIT_BYTES = 16 << 20


class Put(msgspec.Struct, tag=0, array_like=True, gc=False):
    """Put an item -> accepted, `Refused`, or `Granted` if the server cannot read its shared memory."""

    ticket: int
    queue: Any
    weight: float | int
    wait: bool
    num_frames: int
    priority: int = 0


class Reserve(msgspec.Struct, tag=1, array_like=True, gc=False):
    """Announce an item -> `Granted` or `Refused`."""

    ticket: int
    queue: Any
    weight: float | int
    wait: bool
    size_bytes: int
    priority: int = 0


class Fill(msgspec.Struct, tag=2, array_like=True, gc=False):
    """The bytes of an announced item -> accepted or `Refused`."""

    ticket: int
    num_frames: int


class Limits(msgspec.Struct, array_like=True, gc=False):
    """`queueing.Limits` as they travel."""

    min_items: int
    max_items: int
    max_bytes: int
    max_wait_s: float | None


class Shard(msgspec.Struct, array_like=True, gc=False):
    """Which part of a queue a get asks for, after which step, and `queueing.ShardPlan` as it travels."""

    index: int
    done_step: int
    num_shards: int
    policy: str
    batch_weight: float | int | None
    batch_items: int | None
    cost: tuple[float | int, float | int]
    equal_counts: bool


class Get(msgspec.Struct, tag=3, array_like=True, gc=False):
    """Get one item, a batch (of a weight, with limits, or both), or a shard's part -> `Delivered` or `Refused`."""

    ticket: int
    queue: Any
    wait: bool
    batch_weight: float | int | None
    limits: Limits | None = None
    shard: Shard | None = None


class Withdraw(msgspec.Struct, tag=4, array_like=True, gc=False):
    """Nobody wants an operation any more -> `Refused`, unless it was over before."""

    ticket: int


class Resend(msgspec.Struct, tag=5, array_like=True, gc=False):
    """A delivery lies in shared memory that the client cannot open -> `Delivered`, as bytes."""

    ticket: int


class Recall(msgspec.Struct, tag=6, array_like=True, gc=False):
    """Nobody wants an operation any more that went by a shortcut -> `Refused`, or accepted: always one of them."""

    ticket: int


Operation = Put | Reserve | Fill | Get | Withdraw | Resend | Recall


class Operations(msgspec.Struct, array_like=True):
    """Client to server: tickets whose items were taken, or have arrived and are not taken; operations in order."""

    confirmed: list[int]
    arrived: list[int]
    operations: list[Operation]


class Granted(msgspec.Struct, tag=0, array_like=True, gc=False):
    """There is room for an item that was announced; or its shared memory cannot be read (`problem`)."""

    ticket: int
    problem: str = ""


class Part(msgspec.Struct, array_like=True, gc=False):
    """Of which step the items of a shard are, their weights, and how uneven the step's parts are."""

    step: int
    weights: list[float | int]
    imbalance: float


class Delivered(msgspec.Struct, tag=1, array_like=True, gc=False):
    """The items of a get: the number of frames of each; and whether a batch is what was asked for, or what was left."""

    ticket: int
    num_frames: list[int]
    complete: bool = True
    part: Part | None = None


class Refused(msgspec.Struct, tag=2, array_like=True, gc=False):
    """An operation failed: a reason of `queueing.Reason` or INVALID, and what its queue looks like."""

    ticket: int
    reason: str
    state: str


INVALID = "invalid"


class Direct(msgspec.Struct, array_like=True, gc=False):
    """By a shortcut: an operation with its frames; before it come so many `Operations` of the same client."""

    after: int
    operation: Put | Get
    frames: list[bytearray]


class Accepted(msgspec.Struct, tag=3, array_like=True, gc=False):
    """The queue holds the item of a put."""

    ticket: int


class Elsewhere(msgspec.Struct, tag=4, array_like=True, gc=False):
    """What a get gives is too large for a shortcut, and comes as `News`."""

    ticket: int


class Again(msgspec.Struct, tag=5, array_like=True, gc=False):
    """The shared memory of a put cannot be read: it has put nothing, and is to come the usual way."""

    ticket: int
    problem: str


class Answer(msgspec.Struct, array_like=True, gc=False):
    """By a shortcut: the end of the operation, with the frames of its items."""

    answer: Accepted | Delivered | Refused | Elsewhere | Again
    frames: list[bytearray]


class News(msgspec.Struct, array_like=True):
    """Server to client: tickets of accepted puts, and other answers in order; `left`: the server is no more."""

    accepted: list[int]
    answers: list[Granted | Delivered | Refused]
    left: bool = False


class Open(msgspec.Struct, tag=0, array_like=True):
    """A client begins -> None."""

    endpoint: Endpoint


class Close(msgspec.Struct, tag=1, array_like=True):
    """Refuse puts from now on -> None."""


class Delete(msgspec.Struct, tag=2, array_like=True):
    """Close, free the name, leave -> None."""


class Query(msgspec.Struct, tag=3, array_like=True):
    """Ask about a queue -> `QueueState`."""

    queue: Any


class Stats(msgspec.Struct, tag=4, array_like=True):
    """Ask about everything -> `ChannelState`."""


class Invite(msgspec.Struct, tag=5, array_like=True):
    """Ask for a shortcut for one thread -> `Invitation`."""


class EndQueue(msgspec.Struct, tag=6, array_like=True):
    """End a queue -> None."""

    queue: Any


class Flush(msgspec.Struct, tag=7, array_like=True):
    """Let batches take what a queue holds now -> None."""

    queue: Any


class Join(msgspec.Struct, tag=8, array_like=True):
    """Be one of the channel's producers -> `Joined`."""

    number: int
    name: str


class Leave(msgspec.Struct, tag=9, array_like=True):
    """Be a producer no more: done, or failed -> None."""

    number: int
    failed: bool


Control = Open | Close | Delete | Query | Stats | Invite | EndQueue | Flush | Join | Leave


class Joined(msgspec.Struct, array_like=True):
    """Why there is no place for this producer; empty if there is."""

    problem: str


class Invitation(msgspec.Struct, array_like=True):
    """Where the server takes shortcuts, and the first word on one; an empty path: it takes none (any more)."""

    path: str
    token: bytes


class QueueState(msgspec.Struct, array_like=True):
    """How many items a queue holds, and whether a put to it would wait."""

    num_items: int
    is_full: bool


class Depth(msgspec.Struct, array_like=True):
    """`queueing.QueueDepth` as it travels."""

    name: Any
    num_items: int
    weight: float | int
    size_bytes: int
    num_getters: int
    num_putters: int
    num_delivering: int


class ChannelState(msgspec.Struct, array_like=True):
    """What the channel has accepted since its beginning, and what each of its queues holds."""

    num_accepted: int
    accepted_bytes: int
    closed: bool
    depths: list[Depth]


def as_name(queue: Any) -> QueueName:
    """Return a queue's name as it was before it travelled: lists were tuples."""
    if type(queue) is list:
        return tuple(as_name(part) for part in queue)
    name: QueueName = queue
    return name


def operations_service(channel_id: str) -> str:
    """Where a channel's server takes operations."""
    return f"channel/{channel_id}"


def control_service(channel_id: str) -> str:
    """Where a channel's server takes requests."""
    return f"channel/{channel_id}/control"


def news_service(channel_id: str) -> str:
    """Where a channel's client takes news."""
    return f"channel/{channel_id}/news"
