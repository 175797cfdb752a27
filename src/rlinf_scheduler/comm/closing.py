"""The end of a messenger: what is queued is sent and read, then every connection is dropped. On the I/O thread."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_scheduler.comm import framing
from rlinf_scheduler.comm.loop import IoLoop
from rlinf_scheduler.comm.peers import Peers
from rlinf_scheduler.comm.transport.peer_session import State
from rlinf_scheduler.comm.transport.peer_transport import PeerTransport

# What was handed to the kernel is acknowledged at once by whoever is not too busy to.
LINGER_S = 1.0


class Closing:
    """The end of a messenger that has that loop and these peers.

    Attributes:
        busy: each says whether something here is still to be fetched by others; that is waited for, too.
    """

    def __init__(self, loop: IoLoop, peers: Peers) -> None:
        self.busy: list[Callable[[], bool]] = []
        self._loop = loop
        self._peers = peers

    def begin(self, deadline: float, reason: str) -> None:
        """Begin to leave, for that reason, and end the loop at the deadline at the latest."""
        if self._peers.closed:
            return
        self._peers.closed = reason
        self._close_when_sent(deadline)

    def _close_when_sent(self, deadline: float) -> None:
        now = self._loop.now()
        if now < deadline and (
            any(busy() for busy in tuple(self.busy)) or not all(map(_is_idle, self._peers.transports()))
        ):
            self._loop.call_later(0.005, lambda: self._close_when_sent(deadline))
            return
        goodbye = framing.pack(framing.GOODBYE, 0, "", None)
        for transport in self._peers.transports():
            if transport.session.state is State.CONNECTED:
                transport.leave(goodbye)
        self._stop_when_settled(min(deadline, now + LINGER_S))

    def _stop_when_settled(self, deadline: float) -> None:
        """Wait until the others have read to the end: closing before that may destroy what lies unread there."""
        waits = [
            transport
            for transport in self._peers.transports()
            if transport.session.state is State.CONNECTED and not transport.is_settled
        ]
        if waits and self._loop.now() < deadline:
            self._loop.call_later(0.002, lambda: self._stop_when_settled(deadline))
        else:
            self._loop.stop()


def _is_idle(transport: PeerTransport) -> bool:
    """Whether everything was handed to the kernel."""
    return transport.session.state is State.DEAD or (
        transport.session.idle and (transport.link is None or transport.link.idle)
    )
