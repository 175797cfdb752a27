"""What one process knows of another: its transport, the requests to it and the requests from it. On the I/O thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from rlinf_scheduler.comm import framing
from rlinf_scheduler.comm.failure import dump_failure, load_failure
from rlinf_scheduler.comm.framing import Buffer, Message, StreamReader
from rlinf_scheduler.comm.loop import Timer, run_guarded
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.errors import CommError, PeerDied

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


class RequestFuture(Promise[Reply]):
    """The reply to come. `cancel()` tells the server that nobody waits any more.

    Args:
        withdraw: called by the thread that cancels it, once.
        reply_type: what the answer's head is, and an attribute.
    """

    def __init__(self, withdraw: Callable[[], None], reply_type: Any) -> None:
        super().__init__(withdraw)
        self.reply_type = reply_type
        self.timer: Timer | None = None

    def take(self, message: Message) -> None:
        """The answer has come."""
        try:
            head = decode_head(message.envelope.head, self.reply_type)
        except msgspec.DecodeError as error:
            self.set_exception(CommError(f"the answer has another shape: {error}"))
        else:
            self.set_result(Reply(head, message.frames))


class Transport(Protocol):
    """What leads to another process, or to this one."""

    @property
    def kind(self) -> str:
        """How it is reached."""

    def send(self, pieces: list[Buffer], *, late: bool = False) -> None:
        """Queue the pieces of one message; never blocks. `late`: it may wait a moment for others to go with."""

    def close(self) -> None:
        """Drop every connection."""

    def abandon(self) -> None:
        """Close every descriptor in a forked child."""


class SelfTransport:
    """The transport of a process to itself: no socket, but the same order, threads and independence of memory.

    The bytes pass through the same framing as everywhere, so that a receiver gets memory of its own and a head that
    looks the same (tuples have become lists) whoever the sender is.

    Args:
        submit: runs a callback on the I/O thread.
        deliver: takes the messages there.
    """

    kind = "self"

    def __init__(
        self, submit: Callable[[Callable[[], None]], None], deliver: Callable[[list[Message]], None]
    ) -> None:
        self._submit = submit
        self._deliver = deliver

    def send(self, pieces: list[Buffer], *, late: bool = False) -> None:
        """Deliver the pieces of a message in a later round."""
        messages: list[Message] = []
        reader = StreamReader()
        for piece in pieces:
            reader.feed(memoryview(piece), messages)
        self._submit(lambda: self._deliver(messages))

    def close(self) -> None:
        """Nothing is held."""

    def abandon(self) -> None:
        """Nothing is held."""


class Request:
    """A request from another process, or a one-way notice (then replies go nowhere).

    Attributes:
        peer_id: the process id of the sender.
        head: what the sender gave, of the service's type.
        frames: its buffers; writable, and nobody else's.
        is_cancelled: the sender gave up or died before it was answered.
    """

    __slots__ = (
        "_cancel_callbacks",
        "_ident",
        "_is_open",
        "_peer",
        "frames",
        "head",
        "is_cancelled",
        "peer_id",
    )

    def __init__(self, peer: Peer, ident: int, head: Any, frames: list[Buffer]) -> None:
        self._peer = peer
        self._ident = ident
        self._is_open = ident != 0
        self.is_cancelled = False
        self._cancel_callbacks: list[Callable[[], None]] | None = None
        self.peer_id = peer.process_id
        self.head = head
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
        self._peer.run_soon(lambda: self._add_cancel_callback(callback))

    def _add_cancel_callback(self, callback: Callable[[], None]) -> None:
        if self.is_cancelled:
            self._peer.submit(lambda: run_guarded(callback))
        elif self._is_open:
            self._cancel_callbacks = [*(self._cancel_callbacks or ()), callback]

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
        if not self._is_open:
            return False
        kind = framing.REPLY if on_confirmed is None else framing.REPLY_TO_CONFIRM
        try:
            pieces = framing.pack(kind, self._ident, "", head, frames, snapshot=snapshot)
        except Exception as error:  # noqa: BLE001 - it belongs to the caller
            self.fail(error)
            return False
        self._peer.run_soon(lambda: self._answer(pieces, on_confirmed))
        return True

    def fail(self, error: BaseException) -> bool:
        """Answer with an error, which the sender's future raises; False if nobody waits for it."""
        if not self._is_open:
            return False
        pieces = framing.pack(framing.FAIL, self._ident, "", None, [dump_failure(error)])
        self._peer.run_soon(lambda: self._answer(pieces, None))
        return True

    def _answer(self, pieces: list[Buffer], on_confirmed: Callable[[bool], None] | None) -> None:
        if not self._is_open:
            # It was cancelled or answered while this was on its way here.
            if on_confirmed is not None:
                run_guarded(on_confirmed, False)
            return
        self._is_open = False
        self._cancel_callbacks = None
        self._peer.answer(self._ident, pieces, on_confirmed)

    def cancel_from_peer(self) -> None:
        """The sender gave up or died."""
        self._is_open, self.is_cancelled = False, True
        callbacks, self._cancel_callbacks = self._cancel_callbacks, None
        for callback in callbacks or ():
            run_guarded(callback)


class Peer:
    """Another process (or this one), as long as it is not dead.

    Args:
        process_id: whose it is.
        submit: runs a callback on the I/O thread, later.
        run_soon: runs a callback on the I/O thread, now if this is it.

    Attributes:
        name: what its messenger calls itself; "" until it said so.
        transport: what leads to it.
        pending: our requests that it has not answered.
        incoming: its requests that we have not answered.
        unconfirmed: answers of which somebody wants to know whether they were taken.
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
        self.pending: dict[int, RequestFuture] = {}
        self.incoming: dict[int, Request] = {}
        self.unconfirmed: dict[int, Callable[[bool], None]] = {}
        self.lost = ""
        self.has_lied = False
        self.submit = submit
        self.run_soon = run_soon

    @property
    def title(self) -> str:
        """How the peer is called in messages to people."""
        return self.name or self.process_id

    def send(self, pieces: list[Buffer], *, late: bool = False) -> None:
        """Send the pieces of a message, `late` with what comes next; what goes to a lost peer is dropped."""
        if self.transport is not None and not self.lost:
            self.transport.send(pieces, late=late)

    def ask(self, ident: int, pieces: list[Buffer], future: RequestFuture) -> None:
        """Send a request; `future` gets its answer."""
        if self.lost:
            future.set_exception(PeerDied(self.title, self.lost))
            return
        self.pending[ident] = future
        self.send(pieces)

    def withdraw(self, ident: int, error: BaseException | None = None) -> None:
        """Give up one of our requests, if it is still open, and tell the peer."""
        future = self.pending.pop(ident, None)
        if future is None:
            return
        if future.timer is not None:
            future.timer.cancel()
        if error is not None:
            future.set_exception(error)
        self.send(framing.pack(framing.CANCEL, ident, "", None))

    def answer(self, ident: int, pieces: list[Buffer], on_confirmed: Callable[[bool], None] | None) -> None:
        """Answer one of its requests."""
        self.incoming.pop(ident, None)
        if on_confirmed is not None:
            if self.lost:
                run_guarded(on_confirmed, False)
                return
            self.unconfirmed[ident] = on_confirmed
        self.send(pieces)

    def lose(self, reason: str, *, closing: bool = False) -> None:
        """End everything that waits for this peer."""
        self.lost = reason
        while self.pending:
            _, future = self.pending.popitem()
            if future.timer is not None:
                future.timer.cancel()
            future.set_exception(CommError(reason) if closing else PeerDied(self.title, reason))
        while self.incoming:
            _, request = self.incoming.popitem()
            request.cancel_from_peer()
        while self.unconfirmed:
            _, on_confirmed = self.unconfirmed.popitem()
            run_guarded(on_confirmed, False)

    def take(self, message: Message) -> None:
        """A message about a request that one of the two has made."""
        kind, ident = message.envelope.kind, message.envelope.ident
        if kind == framing.CANCEL:
            self._take_cancel(ident)
        elif kind == framing.CONFIRMED:
            self._confirm(ident, taken=True)
        else:
            self._take_answer(kind, ident, message)

    def _take_answer(self, kind: int, ident: int, message: Message) -> None:
        future = self.pending.pop(ident, None)
        # Cancelled: its server hears of that, now or already.
        if future is None:
            return
        if future.timer is not None:
            future.timer.cancel()
        if kind == framing.FAIL:
            future.set_exception(self._error_of(message))
            return
        future.take(message)
        if kind == framing.REPLY_TO_CONFIRM:
            if future.cancelled():
                self.send(framing.pack(framing.CANCEL, ident, "", None))
            else:
                # Nobody waits for it. Sent at once it would meet the next request on its way, and take its time.
                self.send(framing.pack(framing.CONFIRMED, ident, "", None), late=True)

    def _error_of(self, message: Message) -> BaseException:
        try:
            return load_failure(message.frames[0]).error(self.title)
        except (IndexError, msgspec.DecodeError) as error:
            return CommError(f"'{self.title}' failed, and why has another shape: {error}")

    def _take_cancel(self, ident: int) -> None:
        request = self.incoming.pop(ident, None)
        if request is not None:
            request.cancel_from_peer()
        self._confirm(ident, taken=False)

    def _confirm(self, ident: int, *, taken: bool) -> None:
        on_confirmed = self.unconfirmed.pop(ident, None)
        if on_confirmed is not None:
            run_guarded(on_confirmed, taken)


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
