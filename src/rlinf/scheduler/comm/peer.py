"""What one process knows of another: its link, the requests to it and the requests from it."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

from rlinf.scheduler.comm import framing
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.loop import Timer
from rlinf.scheduler.comm.transport.link import Link
from rlinf.scheduler.errors import CommError, PeerDied

logger = logging.getLogger(__name__)

MAX_TEXT = 100_000


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request.

    Attributes:
        head: what the server gave, after msgpack (tuples have become lists).
        frames: its buffers; writable, and nobody else's.
    """

    head: Any
    frames: list[Buffer]


class RequestFuture(Future[Reply]):
    """The reply to come. `cancel()` tells the server that nobody waits any more."""

    def __init__(self, peer: Peer, ident: int) -> None:
        super().__init__()
        self._peer = peer
        self._ident = ident
        self.timer: Timer | None = None

    def cancel(self) -> bool:
        """Give the request up, unless its answer is already here; the server is told."""
        # Whoever takes the entry out of the table decides the request's fate.
        if self._peer.pending.pop(self._ident, None) is None:
            return self.cancelled()
        super().cancel()
        self.set_running_or_notify_cancel()
        self._peer.send(framing.pack(framing.CANCEL, self._ident, "", None))
        return True


class Request:
    """A request from another process, or a one-way notice (then replies go nowhere).

    Attributes:
        peer_id: the process id of the sender.
        head: what the sender gave, after msgpack.
        frames: its buffers; writable, and nobody else's.
    """

    __slots__ = ("_cancel_callbacks", "_cancelled", "_ident", "_peer", "frames", "head", "peer_id")

    def __init__(self, peer: Peer, ident: int, head: Any, frames: list[Buffer]) -> None:
        self._peer = peer
        self._ident = ident
        self._cancelled = False
        self._cancel_callbacks: list[Callable[[], None]] | None = None
        self.peer_id = peer.process_id
        self.head = head
        self.frames = frames

    @property
    def peer_name(self) -> str:
        """The name that the sender's messenger was given, or its process id."""
        return self._peer.title

    @property
    def is_cancelled(self) -> bool:
        """Whether the sender gave up or died before it was answered."""
        return self._cancelled

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the I/O thread when the sender gives up or dies before it was answered."""
        callbacks = self._cancel_callbacks
        if callbacks is None:
            callbacks = self._cancel_callbacks = []
        callbacks.append(callback)
        if self._cancelled:
            self._peer.submit(self._run_cancel_callbacks)

    def reply(
        self,
        head: Any,
        frames: Sequence[Buffer] = (),
        *,
        snapshot: bool = True,
        settled: Callable[[bool], None] | None = None,
    ) -> bool:
        """Answer; from any thread, at any time, once.

        Args:
            head: a small object that msgpack can carry.
            frames: opaque buffers.
            snapshot: False if nobody will change `frames` any more; saves a copy of what cannot go at once.
            settled: called once, on the I/O thread: True when the sender's future has taken the answer, False
                when it had been cancelled or the process died before. It costs one small message.

        Returns:
            False if nobody waits for the answer (cancelled, dead, answered before); `settled` is then not
            called.
        """
        if self._ident not in self._peer.incoming:
            return False
        # Packed while the request is still open: a head that cannot be packed leaves it to `fail`.
        kind = framing.REPLY if settled is None else framing.REPLY_SETTLE
        pieces = framing.pack(kind, self._ident, "", head, frames)
        if self._peer.incoming.pop(self._ident, None) is None:
            return False
        if settled is not None:
            self._peer.settling[self._ident] = settled
        self._peer.send(pieces, snapshot=snapshot)
        self._peer.settle_if_lost(self._ident)
        return True

    def fail(self, error: BaseException) -> bool:
        """Answer with an error, which the sender's future raises; False if nobody waits for it."""
        if self._peer.incoming.pop(self._ident, None) is None:
            return False
        self._peer.send(framing.pack(framing.FAIL, self._ident, "", _sendable(error), [dump_error(error)]))
        return True

    def cancel_from_peer(self) -> None:
        """The sender gave up or died; on the I/O thread."""
        self._cancelled = True
        self._run_cancel_callbacks()

    def _run_cancel_callbacks(self) -> None:
        callbacks, self._cancel_callbacks = self._cancel_callbacks, None
        for callback in callbacks or ():
            run_guarded(callback)


class Peer:
    """Another process (or this one), as long as it is connected.

    Attributes:
        process_id: whose it is.
        name: what its messenger calls itself; "" until it said so.
        link: the connection that everything to it goes through, which keeps the order.
        pending: our requests that it has not answered; taking one out is the right to complete it.
        incoming: its requests that we have not answered.
        settling: answers whose fate somebody wants to know.
        lost: why it is gone, "" as long as it is there.
    """

    def __init__(self, process_id: str, submit: Callable[[Callable[[], None]], None]) -> None:
        self.process_id = process_id
        self.name = ""
        self.link: Link | None = None
        self.links: list[Link] = []
        self.pending: dict[int, RequestFuture] = {}
        self.incoming: dict[int, Request] = {}
        self.settling: dict[int, Callable[[bool], None]] = {}
        self.lost = ""
        self.submit = submit

    @property
    def title(self) -> str:
        """How the peer is called in messages to people."""
        return self.name or self.process_id

    def send(self, pieces: list[Buffer], *, snapshot: bool = True) -> None:
        """Send the pieces of a message; what goes to a lost peer is dropped."""
        if self.link is not None and not self.lost:
            self.link.send(pieces, snapshot)

    def give_up(self, ident: int, error: BaseException) -> None:
        """Fail one of our requests, if it is still open, and tell the peer."""
        future = self.pending.pop(ident, None)
        if future is not None:
            complete(future, error=error)
            self.send(framing.pack(framing.CANCEL, ident, "", None))

    def ask(self, ident: int, pieces: list[Buffer], *, snapshot: bool) -> RequestFuture:
        """Send a request and give the future of its answer."""
        future = RequestFuture(self, ident)
        self.pending[ident] = future
        self.send(pieces, snapshot=snapshot)
        # The peer may have been lost between the look-up and the entry; then nobody else fails this request.
        if self.lost and self.pending.pop(ident, None) is not None:
            future.set_exception(PeerDied(self.title, self.lost))
        return future

    def settle_if_lost(self, ident: int) -> None:
        """Report an answer that was sent while the peer was being lost as not taken."""
        if self.lost:
            settled = self.settling.pop(ident, None)
            if settled is not None:
                self.submit(lambda: settled(False))

    def lose(self, reason: str, *, closing: bool = False) -> None:
        """End everything that waits for this peer; on the I/O thread."""
        self.lost = reason
        while self.pending:
            _, future = self.pending.popitem()
            error = CommError(reason) if closing else PeerDied(self.title, reason)
            complete(future, error=error)
        while self.incoming:
            _, request = self.incoming.popitem()
            request.cancel_from_peer()
        while self.settling:
            _, settled = self.settling.popitem()
            run_guarded(settled, False)

    def take_answer(self, kind: int, ident: int, head: Any, frames: list[Buffer]) -> None:
        """Complete the request that an answer is for; on the I/O thread."""
        future = self.pending.pop(ident, None)
        if future is None:
            return
        if future.timer is not None:
            future.timer.cancel()
        if kind == framing.FAIL:
            complete(future, error=load_error(head, frames, self.title))
            return
        complete(future, Reply(head, frames))
        if kind == framing.REPLY_SETTLE:
            self.send(framing.pack(framing.SETTLED, ident, "", None))

    def take_cancel(self, ident: int) -> None:
        """The peer gave a request up, answered or not; on the I/O thread."""
        request = self.incoming.pop(ident, None)
        if request is not None:
            request.cancel_from_peer()
        settled = self.settling.pop(ident, None)
        if settled is not None:
            run_guarded(settled, False)

    def take_settled(self, ident: int) -> None:
        """The peer's future took an answer; on the I/O thread."""
        settled = self.settling.pop(ident, None)
        if settled is not None:
            run_guarded(settled, True)


def complete(future: Future[Any], result: Any = None, *, error: BaseException | None = None) -> None:
    """Complete a future unless that was done already."""
    try:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    except InvalidStateError:
        logger.debug("a future was completed twice")


def run_guarded(callback: Callable[..., None], *args: Any) -> None:
    """Run somebody's callback; its mistake is reported and goes no further."""
    try:
        callback(*args)
    except Exception:
        logger.exception("a callback on the I/O thread failed")


def _sendable(error: BaseException) -> str:
    """The error's text as a head can carry it: not too long, and without halves of surrogate pairs."""
    return str(error)[:MAX_TEXT].encode(errors="backslashreplace").decode()


def dump_error(error: BaseException) -> bytes:
    """An exception as bytes; one that pickle cannot carry becomes a CommError with its text."""
    try:
        data = pickle.dumps(error, protocol=5)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - whatever a foreign exception's own pickling raises
        return pickle.dumps(CommError(f"{type(error).__qualname__}: {error}"), protocol=5)
    return data


def load_error(text: Any, frames: list[Buffer], title: str) -> BaseException:
    """The exception that `dump_error` wrote; its text alone if its class is not to be had here."""
    try:
        error = pickle.loads(frames[0])
    except Exception as problem:  # noqa: BLE001 - whatever a foreign exception's own unpickling raises
        return CommError(f"'{title}' failed with an error that cannot be read here ({problem!r}): {text}")
    return error if isinstance(error, BaseException) else CommError(f"'{title}' failed: {text}")
