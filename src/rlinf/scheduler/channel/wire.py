"""What a channel's clients and its server say to each other.

A client opens the channel once, by a request to the control service. From then on both sides send notices,
each with as much as has gathered, so that many small operations share one message:

    client -> server   [confirmed tickets, operations]       with the frames of its PUTs and FILLs, in order
    server -> client   [accepted tickets, news]              with the frames of its DELIVEREDs, in order
    server -> client   None                                  the server leaves

The frames of an item are its bytes, or one descriptor of shared memory (see `comm.parcel`): then its bytes stay
where the producer wrote them, and the server keeps them there.

Every operation has a ticket, unique in its client's process, and every answer names it. Operations are lists:

    [PUT, ticket, queue, weight, wait_s, number of frames]   -> accepted, or REFUSED
    [RESERVE, ticket, queue, weight, wait_s, size in bytes]  -> GRANTED, or REFUSED
    [FILL, ticket, number of frames]                         -> accepted, or REFUSED (timed out, closed)
    [GET, ticket, queue, wait_s, batch weight or None]       -> DELIVERED, or REFUSED
    [CANCEL, ticket]                                         -> REFUSED, if it still waits
    [ARRIVED, ticket]  the items are in the client's process; nobody has taken them yet
    [GIVE_BACK, ticket]  nobody will take them
    [RESEND, ticket]  they lie in shared memory that the client cannot open    -> DELIVERED, as bytes from now on

wait_s is None (no deadline), a number of seconds, or NOWAIT. The server alone decides whether an operation
met its deadline: so a get that timed out has taken nothing, and a put that timed out has put nothing.

A delivered item stays in the server until its ticket is confirmed, and returns to the head of its queue when
the consumer gives it back or its connection drops.
"""

from __future__ import annotations

PUT = 0
RESERVE = 1
FILL = 2
GET = 3
CANCEL = 4
ARRIVED = 5
GIVE_BACK = 6
RESEND = 7

GRANTED = 0  # [GRANTED, ticket]
DELIVERED = 1  # [DELIVERED, ticket, [number of frames of each item]]
REFUSED = 2  # [REFUSED, ticket, reason, state of the queue]

NOWAIT = -1

# Reasons beside those of `queueing.Reason`.
TIMED_OUT = "timed out"
INVALID = "invalid"
UNREADABLE = "unreadable"

# Larger items are announced to a bounded queue before their bytes move; smaller ones travel at once.
INLINE_BYTES = 64 << 10


def operations_service(channel_id: str) -> str:
    """Where a channel's server takes operations."""
    return f"channel/{channel_id}"


def control_service(channel_id: str) -> str:
    """Where a channel's server takes requests: open, close, delete, query, stats."""
    return f"channel/{channel_id}/control"


def news_service(channel_id: str) -> str:
    """Where a channel's client takes news."""
    return f"channel/{channel_id}/news"
