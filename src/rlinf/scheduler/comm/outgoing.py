"""A request on its way out: prepared by any thread, begun by the I/O thread."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.loop import IoLoop
from rlinf.scheduler.comm.peer import RequestFuture
from rlinf.scheduler.comm.peers import Peers
from rlinf.scheduler.comm.transport.handed_message import HandedMessage
from rlinf.scheduler.errors import CommError


class Outgoing:
    """One request to one process.

    Args:
        loop: the I/O thread.
        peers: whom this process talks with.
        endpoint: whom is asked.
        ident: the request's number.
        pieces: the message.
        reply_type: what the answer's head is.

    Attributes:
        endpoint, ident: see above.
        future: its reply.
        message: what is sent.
        written_at: when its thread wrote it, if it did, on the monotonic clock.
    """

    __slots__ = ("_peers", "endpoint", "future", "ident", "message", "written_at")

    def __init__(
        self,
        loop: IoLoop,
        peers: Peers,
        endpoint: Endpoint,
        ident: int,
        pieces: list[Buffer],
        reply_type: Any,
    ) -> None:
        self._peers = peers
        self.ident = ident
        self.endpoint = endpoint
        self.message = HandedMessage(pieces)
        self.written_at = 0.0
        # It keeps nothing of the message: it may be kept for as long as anybody likes.
        withdraw = partial(peers.withdraw, endpoint.process_id, ident)
        self.future = RequestFuture(partial(loop.run_soon, withdraw), reply_type)

    def write(self) -> bool:
        """See `IoLoop.hand_over`."""
        self.written_at = time.monotonic()
        peer = self._peers.by_id.get(self.endpoint.process_id)
        return peer is not None and not self._peers.closed and peer.write_handed(self.message)

    def begin(self) -> None:
        """Send it, unless that was done; the message is settled, and this is on the I/O thread."""
        # Cancelled before it began: nobody is to hear of it.
        if self.future.done() and not self.message.is_written:
            return
        if self._peers.closed:
            self.future.set_exception(CommError(self._peers.closed))
            return
        self._peers.at(self.endpoint).ask(self.ident, self.message, self.future)
