"""What a transport is to the messenger: links that carry messages, and what they report."""

from __future__ import annotations

from typing import Any, Protocol

from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.framing import HELLO, Buffer, Message, ProtocolError
from rlinf.scheduler.comm.secret import ClusterSecret

# Who comes to us and has not proved within this time that it belongs to the cluster is dropped.
HANDSHAKE_TIMEOUT_S = 10.0


class Identity:
    """Who this process is, as its links present it.

    Args:
        secret: the cluster's key.
        hello: the pieces of the HELLO message.
    """

    __slots__ = ("hello", "secret")

    def __init__(self, secret: ClusterSecret, hello: list[Buffer]) -> None:
        self.secret = secret
        self.hello = hello


class Link(Protocol):
    """One connection to one process."""

    transport: str
    dialled: bool  # whether this process made the connection
    peer: Any  # whose link it is, set by whoever hears of it

    def send(self, pieces: list[Buffer], snapshot: bool) -> None:
        """Queue the pieces of one message; never blocks; from any thread.

        Args:
            pieces: what `framing.pack` gave.
            snapshot: whether what cannot go at once is copied, because the owner of the memory may change it.
                The kernel takes what fits into the socket's buffer immediately; only the rest is copied.
        """

    def idle(self) -> bool:
        """Whether everything queued has been handed to the operating system."""

    def finish(self, reason: str) -> None:
        """Deliver what has arrived already, then be lost; on the I/O thread."""

    def close(self) -> None:
        """Drop the connection; on the I/O thread."""


class LinkEvents(Protocol):
    """Who hears of links, on the I/O thread."""

    def on_hello(self, link: Link, endpoint: Endpoint, name: str) -> None:
        """The other side proved that it belongs to the cluster and said who it is; before any message."""

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        """Messages arrived, in order."""

    def on_lost(self, link: Link, reason: str) -> None:
        """The link is gone; nothing comes after this."""


def parse_hello(message: Message) -> tuple[Endpoint, str]:
    """Who the other side says it is.

    Raises:
        ProtocolError: it is another message, or its fields are wrong.
    """
    kind, _, name, head, _ = message
    if kind != HELLO:
        text = "its first message is not HELLO"
        raise ProtocolError(text)
    try:
        return Endpoint.from_wire(head), name
    except (TypeError, ValueError) as error:
        raise ProtocolError(str(error)) from error
