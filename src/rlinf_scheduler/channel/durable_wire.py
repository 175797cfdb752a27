"""What a client and the server of a durable channel say to each other, around what they say of any channel."""

from __future__ import annotations

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint

# Kinds of words: a request's ident is 0 where nobody waits for an answer.
REQUEST, NOTICE, REPLY, FAILURE, HEARD = range(5)


class StreamEnvelope(msgspec.Struct, array_like=True, frozen=True):
    """The envelope of a message, in either direction; its frames go beside it.

    Attributes:
        kind: REQUEST of a client; NOTICE, REPLY, FAILURE, or, for nothing, HEARD of the server.
        ident: of the request, or of the one that is answered; 0 for none.
        service: where it goes; a server's is named after the channel's own prefix.
    """

    kind: int
    ident: int
    service: str
    head: msgspec.Raw


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
        envelope: what it says.
        waits: whether somebody waits for what follows from it.
    """

    number: int
    heard: int
    envelope: StreamEnvelope
    waits: bool = True


class Told(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """Server to client.

    Attributes:
        number: counts what this client is told; 0 where it is nothing but `heard`.
        heard: so much of what the client has said is in the journal.
        envelope: what it is told.
    """

    number: int
    heard: int
    envelope: StreamEnvelope


class Left(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Server to client: this process does not hold the channel any more; `returns`: another one will."""

    reason: str
    returns: bool
