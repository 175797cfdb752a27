"""What two processes say to each other where one of them may die and come back with what it has written down.

Each side numbers what it says, and keeps it until the other has it *for good*: a client until the server has journaled
it, the server until the client has said so in something that was journaled. After a death each side says again what the
other has not, and takes what it has already for a repetition. So everything is done once, in order, over any number of
deaths of the server; and nothing that is sent this way need know of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint

What = TypeVar("What")

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


OfServer = Told | Left


class Stream(Generic[What]):
    """One side of it.

    Attributes:
        heard: the number of the last that the other has said, as far as this side has it for good.

    >>> client = Stream()
    >>> client.say("put"), client.say("get")
    (1, 2)
    >>> client.confirm(1)
    >>> client.after(0)
    [(2, 'get')]
    """

    __slots__ = ("_kept", "_num_said", "heard")

    def __init__(self) -> None:
        self.heard = 0
        self._num_said = 0
        self._kept: deque[tuple[int, What]] = deque()

    def say(self, what: What) -> int:
        """Number what is said, and keep it."""
        self._num_said += 1
        self._kept.append((self._num_said, what))
        return self._num_said

    def hear(self, number: int) -> bool:
        """The other has said something; False if that is a repetition."""
        if number != self.heard + 1:
            return False
        self.heard = number
        return True

    def confirm(self, number: int) -> None:
        """The other has everything up to this number for good."""
        while self._kept and self._kept[0][0] <= number:
            self._kept.popleft()

    def after(self, number: int) -> list[tuple[int, What]]:
        """Return the messages after this number, to be sent again."""
        return [kept for kept in self._kept if kept[0] > number]

    def contents(self) -> tuple[int, int, list[tuple[int, What]]]:
        """Return how much came from the other side, how much was sent to it, and what of that is kept."""
        return self.heard, self._num_said, list(self._kept)

    def load(self, heard: int, num_said: int, kept: Iterable[tuple[int, What]]) -> None:
        """Take what `contents` gave."""
        self.heard, self._num_said, self._kept = heard, num_said, deque(kept)

    @property
    def num_kept(self) -> int:
        """How much of what was said the other may not have for good."""
        return len(self._kept)


class Resumption(NamedTuple):
    """How it goes on with a client: what the server has of it, and what the server says again."""

    heard: int
    again: list[tuple[int, object]]


class ServerStreams(Generic[What]):
    """The server's side of all its clients.

    What a client says is *taken* when it comes, and journaled; then it is *applied*: done, and answered. A server that
    comes back is told of everything in its journal as it was told before, and knows then what it knew.

    >>> streams = ServerStreams()
    >>> streams.join("a")
    >>> streams.take("a", 1), streams.take("a", 1)
    (True, False)
    >>> streams.apply("a", 1, heard=0)
    True
    >>> streams.say("a", "accepted")
    1
    >>> streams.resume("a", heard=0, begun=True)
    Resumption(heard=1, again=[(1, 'accepted')])
    >>> streams.resume("b", heard=0, begun=True) is None
    True
    """

    def __init__(self) -> None:
        self._streams: dict[str, Stream[What]] = {}
        # What was taken, and may not be journaled yet.
        self._taken: dict[str, int] = {}

    def knows(self, client: str) -> bool:
        """Whether it is one of the clients."""
        return client in self._streams

    @property
    def clients(self) -> list[str]:
        """All of them."""
        return list(self._streams)

    def take(self, client: str, number: int) -> bool:
        """Something has come; whether it is new, and is to be journaled and applied."""
        if client not in self._streams or number != self._taken[client] + 1:
            return False
        self._taken[client] = number
        return True

    def join(self, client: str) -> None:
        """A client is there that was not (journaled)."""
        if client not in self._streams:
            self._streams[client] = Stream()
            self._taken[client] = 0

    def lose(self, client: str) -> None:
        """A client is gone (journaled): nothing more comes from it, or goes to it."""
        self._streams.pop(client, None)
        self._taken.pop(client, None)

    def apply(self, client: str, number: int, heard: int) -> bool:
        """Note that a message is in the journal; return whether to apply it: its client is not lost.

        Args:
            client: who has said it.
            number: which of its.
            heard: what the client had of the server's then.
        """
        stream = self._streams.get(client)
        if stream is None:
            return False
        self._taken[client] = max(self._taken[client], number)
        stream.confirm(heard)
        return stream.hear(number)

    def say(self, client: str, what: What) -> int | None:
        """Number what is said to a client; None if that is lost."""
        stream = self._streams.get(client)
        return None if stream is None else stream.say(what)

    def heard(self, client: str) -> int:
        """The number of the last that this server has of a client for good."""
        stream = self._streams.get(client)
        return 0 if stream is None else stream.heard

    def contents(self) -> dict[str, tuple[int, int, list[tuple[int, What]]]]:
        """The streams of all clients; see `Stream`."""
        return {client: stream.contents() for client, stream in self._streams.items()}

    def load(self, client: str, heard: int, num_said: int, kept: Iterable[tuple[int, What]]) -> None:
        """Have a client again that there was before."""
        self.join(client)
        self._streams[client].load(heard, num_said, kept)
        self._taken[client] = heard

    def resume(self, client: str, heard: int, *, begun: bool) -> Resumption | None:
        """A client looks for this server, be it for the first time; None if it was given up for lost.

        Args:
            client: which.
            heard: the last of the server's that it has.
            begun: a server has resumed with it before; so it may have said something since.
        """
        stream = self._streams.get(client)
        if stream is None:
            return None if begun else Resumption(0, [])
        # What it has sent to the server that died is to come again.
        self._taken[client] = stream.heard
        return Resumption(stream.heard, list(stream.after(heard)))
