"""Requests between two processes, in both directions: what is asked and not answered yet. On the I/O thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rlinf_scheduler.comm import framing
from rlinf_scheduler.comm.failure import dump_failure, load_failure
from rlinf_scheduler.comm.framing import Buffer, Envelope, Message
from rlinf_scheduler.comm.loop import Timer, run_guarded
from rlinf_scheduler.comm.peer import BasePeer, Reply, Request, decode_head
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import CommError, PeerDied


class RequestFuture(Promise[Reply]):
    """The reply to come. `cancel()` tells the server that nobody waits any more.

    Args:
        withdraw: called by the thread that cancels it, once.
        reply_type: what the answer's head is, and an attribute.

    Attributes:
        places: where the frames of the answer go, if they are of these sizes.
        number: which of the messages to the peer it is, as its `num_sent` counts; 0 until it is handed over.
    """

    def __init__(self, withdraw: Callable[[], None], reply_type: Any) -> None:
        super().__init__(withdraw)
        self.reply_type = reply_type
        self.timer: Timer | None = None
        self.places: Sequence[memoryview] = ()
        self.number = 0

    def take(self, message: Message) -> None:
        """The answer has come."""
        try:
            head = decode_head(message.envelope.head, self.reply_type)
        except msgspec.DecodeError as error:
            self.set_exception(CommError(f"the answer has another shape: {error}"))
        else:
            self.set_result(Reply(head, message.frames))


class OpenRequest(Request):
    """A request from another process: one of its `incoming` ones, until it is answered or given up.

    Args:
        peer: the sender.
        ident: under which number it waits for the answer.
        frames: its buffers.
    """

    __slots__ = ("_cancel_callbacks", "_ident", "_is_open", "_requests")

    def __init__(self, peer: Peer, ident: int, frames: list[Buffer]) -> None:
        Request.__init__(self, peer, frames)
        self._requests = peer.requests
        self._ident = ident
        self._requests.incoming[ident] = self
        self._is_open = True
        self._cancel_callbacks: list[Callable[[], None]] | None = None

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the I/O thread when the sender gives up or dies."""
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
        """Answer."""
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
        """Answer with an error."""
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
        self._requests.answer(self._ident, pieces, on_confirmed)

    def cancel_from_peer(self) -> None:
        """The sender gave up or died."""
        self._is_open, self.is_cancelled = False, True
        callbacks, self._cancel_callbacks = self._cancel_callbacks, None
        for callback in callbacks or ():
            run_guarded(callback)


class Peer(BasePeer):
    """Another process (or this one), as long as it is not dead.

    Attributes:
        requests: those to it and from it.
    """

    def __init__(
        self,
        process_id: str,
        submit: Callable[[Callable[[], None]], None],
        run_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__(process_id, submit, run_soon)
        self.requests = PeerRequests(self)


class PeerRequests:
    """The requests between this process and a peer.

    Attributes:
        pending: ours that it has not answered.
        incoming: its that we have not answered.
    """

    def __init__(self, peer: BasePeer) -> None:
        self.pending: dict[int, RequestFuture] = {}
        self.incoming: dict[int, OpenRequest] = {}
        # Answers of which somebody wants to know whether they were taken.
        self._unconfirmed: dict[int, Callable[[bool], None]] = {}
        self._peer = peer

    def places_for(self, envelope: Envelope) -> Sequence[memoryview]:
        """Where the frames of a message go; nothing if it is no answer, wanted still, with places for these."""
        future = self.pending.get(envelope.ident) if envelope.kind == framing.REPLY else None
        if future is None or [*map(len, future.places)] != envelope.sizes or future.done():
            return ()
        return future.places

    def ask(self, ident: int, pieces: list[Buffer], future: RequestFuture) -> None:
        """Send a request; `future` gets its answer."""
        if self._peer.lost:
            future.set_exception(PeerDied(self._peer.title, self._peer.lost))
            return
        self.pending[ident] = future
        future.number = self._peer.num_sent + 1
        self._peer.send(pieces)

    def withdraw(self, ident: int, error: BaseException | None = None) -> None:
        """Give up one of our requests, if it is still open, and tell the peer."""
        future = self.pending.pop(ident, None)
        if future is None:
            return
        if future.timer is not None:
            future.timer.cancel()
        if error is not None:
            future.set_exception(error)
        self._peer.send(framing.pack(framing.CANCEL, ident, "", None))

    def answer(self, ident: int, pieces: list[Buffer], on_confirmed: Callable[[bool], None] | None) -> None:
        """Answer one of its requests."""
        self.incoming.pop(ident, None)
        if on_confirmed is not None:
            if self._peer.lost:
                run_guarded(on_confirmed, False)
                return
            self._unconfirmed[ident] = on_confirmed
        self._peer.send(pieces)

    def lose(self, reason: str, *, closing: bool = False) -> None:
        """End everything that waits for this peer."""
        while self.pending:
            # In the order in which they were asked: of several calls the peer was at the first.
            asked, self.pending = self.pending, {}
            for future in asked.values():
                if future.timer is not None:
                    future.timer.cancel()
                future.set_exception(CommError(reason) if closing else PeerDied(self._peer.title, reason))
        while self.incoming:
            _, request = self.incoming.popitem()
            request.cancel_from_peer()
        while self._unconfirmed:
            _, on_confirmed = self._unconfirmed.popitem()
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
                self._peer.send(framing.pack(framing.CANCEL, ident, "", None))
            else:
                # Nobody waits for it. Sent at once it would meet the next request on its way, and take its time.
                self._peer.send(framing.pack(framing.CONFIRMED, ident, "", None), late=True)

    def _error_of(self, message: Message) -> BaseException:
        try:
            return load_failure(message.frames[0]).error(self._peer.title)
        except (IndexError, msgspec.DecodeError) as error:
            return CommError(f"'{self._peer.title}' failed, and why has another shape: {error}")

    def _take_cancel(self, ident: int) -> None:
        request = self.incoming.pop(ident, None)
        if request is not None:
            request.cancel_from_peer()
        self._confirm(ident, taken=False)

    def _confirm(self, ident: int, *, taken: bool) -> None:
        on_confirmed = self._unconfirmed.pop(ident, None)
        if on_confirmed is not None:
            run_guarded(on_confirmed, taken)
