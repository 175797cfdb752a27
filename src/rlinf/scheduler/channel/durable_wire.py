"""What a client and the server of a durable channel say to each other, around what they say of any channel."""

from __future__ import annotations

from typing import Any

import msgspec

from rlinf.scheduler.comm.endpoint import Endpoint

# What clients speak to.
OPERATIONS, CONTROL = "", "/control"
# What the server tells.
NOTICE, REPLY, FAILURE, HEARD = range(4)


class FindServer(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """A client has found the channel's process, be it for the first time or another one -> `Found`.

    Attributes:
        endpoint: of the client.
        heard: the last of what a server has told it.
        begun: it has found one before.
        line: tells what it says from what its process has said by another line, before.
    """

    endpoint: Endpoint
    heard: int
    begun: bool
    line: str


class Found(msgspec.Struct, array_like=True, frozen=True):
    """The server has so much of what a client has said; `lost`: it was given up, and all that it had begun undone."""

    heard: int
    epoch: int
    lost: bool = False


class Said(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Client to server.

    Attributes:
        number: counts what this client says.
        heard: so much of what the server has told it has arrived.
        ident: of a request; 0 for none.
        service: the server's, after the channel's own prefix.
        head: of the message.
        waits: whether somebody waits for what follows from it.
    """

    number: int
    heard: int
    ident: int
    service: str
    head: msgspec.Raw
    waits: bool = True


class Told(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """Server to client.

    Attributes:
        number: counts what this client is told; 0 where it is nothing but `heard`.
        heard: so much of what the client has said is in the journal.
        kind: NOTICE, REPLY, FAILURE or HEARD.
        ident: of the request that is answered.
        service: the client's that a notice is for.
        head: of the message.
    """

    number: int
    heard: int
    kind: int
    ident: int
    service: str
    head: msgspec.Raw


class Left(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Server to client: this process does not hold the channel any more; `returns`: another one will."""

    reason: str
    returns: bool


class HoldingBegun(msgspec.Struct, tag=0, array_like=True):
    """A process has begun to hold the channel, in a job."""

    epoch: int
    job: str


class ClientJoined(msgspec.Struct, tag=1, array_like=True):
    """A client is there."""

    client: str
    name: str
    line: str


class ClientLost(msgspec.Struct, tag=2, array_like=True):
    """A client is gone."""

    client: str


class Came(msgspec.Struct, tag=3, array_like=True):
    """A client has said something, with frames of these sizes; for the rest see `Said`."""

    client: str
    number: int
    heard: int
    ident: int
    service: str
    head: msgspec.Raw
    sizes: list[int]


class Fired(msgspec.Struct, tag=4, array_like=True):
    """A timer has rung: what it was to call, with which arguments."""

    name: str
    args: list[Any]


Record = HoldingBegun | ClientJoined | ClientLost | Came | Fired


class JournaledTurn(msgspec.Struct, array_like=True):
    """What has happened in one turn of the I/O thread: a block of the journal. `now`: by the channel's own clock."""

    now: float
    records: list[Record]


def line_service(channel_id: str) -> str:
    """Where the server hears its clients."""
    return f"channel/{channel_id}/line"


def aside_service(channel_id: str) -> str:
    """Where the server takes what is not written down: checkpoints."""
    return f"channel/{channel_id}/aside"


def told_service(channel_id: str) -> str:
    """Where a client hears the server."""
    return f"channel/{channel_id}/told"
