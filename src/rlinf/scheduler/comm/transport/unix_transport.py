"""Links over Unix sockets: the listener that accepts them and dials others."""

from __future__ import annotations

import logging
import socket
import weakref
from collections.abc import Callable
from pathlib import Path

from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.loop import READABLE, IoLoop
from rlinf.scheduler.comm.transport.link import Identity, LinkEvents
from rlinf.scheduler.comm.transport.unix_link import SCRATCH_BYTES, UnixLink

logger = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPT_PAUSE_S = 0.1


class UnixListener:
    """Accepts connections on a Unix socket.

    Args:
        path: where the socket is made.
        loop: the I/O thread.
        identity: gives who we are.
        events: who hears of the links.
    """

    def __init__(
        self, path: Path, loop: IoLoop, identity: Callable[[], Identity], events: LinkEvents
    ) -> None:
        self._loop = loop
        self._identity = identity
        self._events = events
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._unproven: set[UnixLink] = set()
        self._links: weakref.WeakSet[UnixLink] = weakref.WeakSet()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))
        self._socket.listen(BACKLOG)
        loop.register(self._socket.fileno(), READABLE, self._accept)

    def dial(self, endpoint: Endpoint) -> UnixLink:
        """A link that connects to `endpoint` as soon as the I/O thread gets to it; from any thread."""
        link = self._new_link()
        # Now, and not when the I/O thread gets to it: the other side may dial us meanwhile.
        link.dialled = True
        self._loop.submit(lambda: link.connect(endpoint.unix_path))
        return link

    def _new_link(self) -> UnixLink:
        link = UnixLink(self._loop, self._identity(), self._events, self._scratch)
        self._links.add(link)
        return link

    def receive_unproven(self) -> None:
        """Read what has arrived on connections whose other side is not known yet."""
        for link in list(self._unproven):
            link.receive_rest()

    def close(self) -> None:
        """Stop listening and drop who has not proved himself; on the I/O thread."""
        self._loop.unregister(self._socket.fileno())
        self._socket.close()
        for link in list(self._unproven):
            link.close()

    def abandon(self) -> None:
        """Close every descriptor in a forked child."""
        self._socket.close()
        for link in list(self._links):
            link.abandon()

    def _accept_again(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.modify(self._socket.fileno(), READABLE)

    def _accept(self, _events: int) -> None:
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of descriptors, most likely: the connection stays in the queue, and we would be called at
            # once.
            logger.warning("cannot accept a connection for now: %s", error)
            self._loop.modify(self._socket.fileno(), 0)
            self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again)
            return
        link = self._new_link()
        self._unproven.add(link)
        link.accepted(connection, on_settled=lambda: self._unproven.discard(link))
