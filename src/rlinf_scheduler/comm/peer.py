"""Another process, or this one, as a messenger knows it; and what it sends to a service. On the I/O thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from rlinf_scheduler.comm.framing import Buffer, Message, unpack
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.errors import CommError

logger = Reporter(__name__)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request.

    Attributes:
        head: what the server gave, of the type that was asked for.
        frames: its buffers; writable, and nobody else's.
    """

    head: Any
    frames: list[Buffer]


class Transport(Protocol):
    """What leads to another process, or to this one."""

    @property
    def kind(self) -> str:
        """How it is reached."""

    @property
    def num_sent(self) -> int:
        """How many messages were handed over, the last of them having that number."""

    def send(self, pieces: list[Buffer], *, late: bool = False) -> None:
        """Queue the pieces of one message; never blocks. `late`: it may wait a moment for others to go with."""

    def close(self) -> None:
        """Drop every connection."""

    def abandon(self) -> None:
        """Close every descriptor in a forked child."""


class SelfTransport:
    """The transport of a process to itself: no socket, but the same order, threads and independence of memory.

    A receiver gets memory of its own and a head that looks the same (tuples have become lists) whoever the sender is.

    Args:
        submit: runs a callback on the I/O thread.
        deliver: takes the messages there.
    """

    kind = "self"
    num_sent = 0  # nobody counts them: what is handed over arrives

    def __init__(
        self, submit: Callable[[Callable[[], None]], None], deliver: Callable[[list[Message]], None]
    ) -> None:
        self._submit = submit
        self._deliver = deliver

    def send(self, pieces: list[Buffer], *, late: bool = False) -> None:
        """Deliver the pieces of a message in a later round."""
        messages = [unpack(pieces)]
        self._submit(lambda: self._deliver(messages))

    def close(self) -> None:
        """Nothing is held."""

    def abandon(self) -> None:
        """Nothing is held."""


class Request:
    """A message to a service: a one-way notice, whose replies go nowhere, or (`OpenRequest`) one that is answered.

    Attributes:
        peer_id: the process id of the sender.
        head: what the sender gave, of the service's type.
        frames: its buffers; writable, and nobody else's.
        is_cancelled: the sender gave up or died before it was answered.
    """

    __slots__ = ("_peer", "frames", "head", "is_cancelled", "peer_id")

    def __init__(self, peer: BasePeer, frames: list[Buffer]) -> None:
        self._peer = peer
        self.is_cancelled = False
        self.peer_id = peer.process_id
        self.head: Any = None
        self.frames = frames

    @property
    def peer_name(self) -> str:
        """The name that the sender's messenger was given, or its process id."""
        return self._peer.title

    def check_claim(self, process_id: str, what: str) -> None:
        """Make sure that the sender, whom the transport has proved, is the process that it says it is.

        Args:
            process_id: of that process.
            what: what the sender says, for messages: "it is 'rollout:3'".

        Raises:
            CommError: it is another one; that is logged once for each sender.
        """
        if process_id == self.peer_id:
            return
        problem = f"'{self.peer_name}' says that {what}, which is another process"
        if not self._peer.has_lied:
            self._peer.has_lied = True
            logger.warning("%s; its messages are refused", problem)
        raise CommError(problem)

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the I/O thread when the sender gives up or dies before it was answered."""

    def reply(
        self,
        head: Any,
        frames: Sequence[Buffer] = (),
        *,
        snapshot: bool = True,
        on_confirmed: Callable[[bool], None] | None = None,
    ) -> bool:
        """Answer; from any thread, at any time, once. An answer that cannot be packed fails the request.

        Args:
            head: a small object that msgpack can carry.
            frames: opaque buffers.
            snapshot: False if nobody will change `frames` any more; saves a copy of large ones.
            on_confirmed: called once, on the I/O thread: True when the sender's future has taken the answer, False
                when it had been cancelled or the process died before. It costs one small message.

        Returns:
            False if nobody gets the answer (cancelled, dead, answered before, or it cannot be packed); `on_confirmed`
            is then not called.
        """
        return False

    def fail(self, error: BaseException) -> bool:
        """Answer with an error, which the sender's future raises; False if nobody waits for it."""
        return False


class BasePeer:
    """Another process (or this one), as what is sent to it and has come from it needs it.

    Args:
        submit: runs a callback on the I/O thread, later.
        run_soon: runs a callback on the I/O thread, now if this is it.

    Attributes:
        name: what its messenger calls itself; "" until it said so.
        transport: what leads to it.
        lost: why it is gone, "" as long as it is there.
        has_lied: it has said that it is another process.
    """

    def __init__(
        self,
        process_id: str,
        submit: Callable[[Callable[[], None]], None],
        run_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self.process_id = process_id
        self.name = ""
        self.transport: Transport | None = None
        self.lost = ""
        self.has_lied = False
        self.submit = submit
        self.run_soon = run_soon

    @property
    def title(self) -> str:
        """How the peer is called in messages to people."""
        return self.name or self.process_id

    @property
    def num_sent(self) -> int:
        """How many messages were handed over for it, the last of them having that number."""
        return 0 if self.transport is None else self.transport.num_sent

    def send(self, pieces: list[Buffer], *, late: bool = False) -> None:
        """Send the pieces of a message, `late` with what comes next; what goes to a lost peer is dropped."""
        if self.transport is not None and not self.lost:
            self.transport.send(pieces, late=late)


# To make one for a union of types takes ten times as long as to decode with it.
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
# One thread at a time makes them: what a type consists of is looked up in Python code, meanwhile others would find half
# of it, in C code that takes it for the whole.
_making = threading.RLock()


def _decoder_of(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    decoder = _decoders.get(type_)
    if decoder is None:
        with _making:
            decoder = _decoders.setdefault(type_, msgspec.msgpack.Decoder(type_))
    return decoder


def decode_head(head: msgspec.Raw, type_: Any) -> Any:
    """What a message says, as its type.

    Raises:
        msgspec.DecodeError: it has another shape.
    """
    return _decoder_of(type_).decode(head)
