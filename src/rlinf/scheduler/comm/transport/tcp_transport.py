"""Links over TCP, between machines: ZeroMQ with CURVE, driven by the messenger's I/O thread.

Two ROUTER sockets carry all connections, whatever the number of peers: `dialer` (CURVE client) those that this
process made, `listener` (CURVE server) those that were made to it. Every connection carries messages in both
directions, so that a pair of peers has one, or two if each dialled the other at the same moment. The client
knows the server's key from the cluster's secret; the server lets nobody in but the holder of the cluster's
client key (see `tcp_gate`). Until then ZeroMQ hands us nothing.

In each direction of a connection runs the same stream of bytes as over a Unix socket (see `framing`), cut into
chunks. A message of ZeroMQ is

    tag     b"B" and the id of the stream: the first chunk of it
            b"D" and the id of the stream: the next chunk of it
            b"W" and the id of a stream of yours: how many more bytes of it were taken
            b"X" and the id of a stream of yours: it is not received any more
    body    the chunk, or the number, or nothing

The taken bytes bound what lies in ZeroMQ's own queues, which is why those need no high-water mark.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable

import zmq

from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.forking import close_tcp_sockets
from rlinf.scheduler.comm.framing import Buffer, Message, ProtocolError
from rlinf.scheduler.comm.loop import READABLE, IoLoop
from rlinf.scheduler.comm.secret import ClusterSecret
from rlinf.scheduler.comm.transport.curve import CurveKeys
from rlinf.scheduler.comm.transport.link import HANDSHAKE_TIMEOUT_S, Identity, LinkEvents, parse_hello
from rlinf.scheduler.comm.transport.tcp_gate import TcpGate, monitored
from rlinf.scheduler.comm.transport.tcp_link import CHUNK_BYTES, TcpLink
from rlinf.scheduler.errors import CommError

logger = logging.getLogger(__name__)

# A process may be busy for long (a library's import that holds the GIL) before it answers the first time.
GREETING_TIMEOUT_S = 120.0
HEARTBEAT_MS = 1000
SILENCE_MS = 4000
# A dead peer's last words may still be on their way to us when ZeroMQ says that the connection is gone.
LAST_WORDS_S = 0.1
LINGER_MS = 1000
MAX_CHUNKS_PER_TURN = 64
# Hundreds of peers may dial at the same moment.
BACKLOG = 1024
_NEVER_ANSWERED = f"it has not answered within {GREETING_TIMEOUT_S:.0f} s: it is stuck"
_BROKEN = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
_REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class TcpTransport:
    """All TCP connections of one process.

    Args:
        host: the address to listen on, and no other.
        process_id: this process's id.
        secret: the cluster's secret.
        loop: the I/O thread; everything but `link_to` happens there.
        identity: gives who we are.
        events: who hears of the links.

    Attributes:
        address: where others reach it.
    """

    def __init__(
        self,
        host: str,
        process_id: str,
        secret: ClusterSecret,
        loop: IoLoop,
        identity: Callable[[], Identity],
        events: LinkEvents,
    ) -> None:
        self._loop = loop
        self._identity = identity
        self._events = events
        self._keys = CurveKeys(secret)
        # By what ZeroMQ calls the other side: the stream of a link that we dialled, the id of a process that
        # dialled us.
        self._dialled: dict[bytes, TcpLink] = {}
        self._accepted: dict[bytes, TcpLink] = {}
        self._by_address: dict[str, TcpLink] = {}
        self._by_descriptor: dict[int, TcpLink] = {}
        self._look_submitted = False
        self._accepting = False
        # One thread of ZeroMQ's: with more, its monitor could report a connection's end before its beginning.
        self._context = zmq.Context(io_threads=1)
        self._listener = self._router(process_id)
        self._listener.router_handover = True
        self._listener.curve_server = True
        self._listener.curve_secretkey = self._keys.server_secret
        self._listener.zap_domain = b"rlinf"
        self._listener.ipv6 = ":" in host
        self._listener.backlog = BACKLOG
        self._dialer = self._router(process_id)
        self._dialer.reconnect_ivl = -1
        self._dialer.connect_timeout = int(HANDSHAKE_TIMEOUT_S * 1000)
        self._dialer.curve_serverkey = self._keys.server_public
        self._dialer.curve_publickey = self._keys.client_public
        self._dialer.curve_secretkey = self._keys.client_secret
        self._dialer.ipv6 = True
        self._gate = TcpGate(self._context, self._listener, self._keys, loop, self._note_closed)
        self._dialer_monitor = self._dialer.get_monitor_socket(_BROKEN | _REFUSED)
        self.address = self._bind(host)
        self._watched: list[int] = []
        self._watch(self._gate.zap, self._gate.answer)
        self._watch(self._listener, lambda: self._receive(self._listener, self._accepted))
        self._watch(self._dialer, lambda: self._receive(self._dialer, self._dialled))
        self._watch(self._gate.monitor, self._gate.watch)
        self._watch(self._dialer_monitor, self._note_broken)

    def _router(self, process_id: str) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        router.routing_id = process_id.encode()
        router.router_mandatory = True
        router.sndhwm = router.rcvhwm = 0
        router.linger = LINGER_MS
        router.maxmsgsize = CHUNK_BYTES + 1024
        router.heartbeat_ivl = HEARTBEAT_MS
        router.heartbeat_timeout = SILENCE_MS
        # On both sides: a listener's clock runs on while its own process cannot answer ZeroMQ's question.
        router.handshake_ivl = int(GREETING_TIMEOUT_S * 1000)
        return router

    def _bind(self, host: str) -> str:
        shown = f"[{host}]" if ":" in host else host
        try:
            self._listener.bind(f"tcp://{shown}:*")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise CommError(f"cannot listen on TCP at '{host}': {error.strerror}") from error
        last_endpoint: bytes = self._listener.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
        return last_endpoint.rstrip(b"\0").decode()

    def _watch(self, socket: zmq.Socket[bytes], handler: Callable[[], None]) -> None:
        descriptor = int(socket.FD)
        self._watched.append(descriptor)
        self._loop.register(descriptor, READABLE, lambda _events: handler())
        # What happened before the descriptor was watched does not show on it.
        self._loop.submit(handler)

    def link_to(self, endpoint: Endpoint) -> TcpLink:
        """A link that connects to a process as soon as the I/O thread gets to it; from any thread."""
        link = TcpLink(self, self._loop, endpoint)
        self._loop.submit(lambda: self._dial(link))
        return link

    def close(self) -> None:
        """Close every socket; what was sent to the living leaves within the linger time."""
        # Who has gone is not waited for: when a cluster ends, its processes close at about the same time.
        self._receive_everything()
        self._gate.watch()
        self._note_broken()
        links = self._links()
        for link in links:
            self._say_goodbye(link)
            link.end()
        self._wait_for_goodbyes()
        for descriptor in self._watched:
            self._loop.unregister(descriptor)
        self._gate.close()
        self._dialer.disable_monitor()
        self._dialer_monitor.close(linger=0)
        linger = LINGER_MS if any(not link.broken for link in links) else 0
        self._listener.close(linger=linger)
        self._dialer.close(linger=linger)
        self._context.term()

    def _wait_for_goodbyes(self) -> None:
        """Wait until the others have read to the end, which they say by a goodbye of their own.

        A connection that is closed while something from the other side lies unread is reset by the kernel, and what
        the other side has not read yet is lost.
        """
        poller = zmq.Poller()
        for socket in (self._listener, self._dialer, self._dialer_monitor, self._gate.monitor):
            poller.register(socket, zmq.POLLIN)
        deadline = time.monotonic() + LINGER_MS / 1000
        while any(link.incoming and not link.broken for link in self._links()):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            poller.poll(int(left_s * 1000) + 1)
            self._receive_everything()
            self._gate.watch()
            self._note_broken()

    def _links(self) -> list[TcpLink]:
        return [*self._dialled.values(), *self._accepted.values()]

    def abandon(self) -> None:
        """Close every connection in a forked child, where ZeroMQ has no thread; its objects stay unused."""
        close_tcp_sockets(self.address, set(self._by_address))

    # -- sending ---------------------------------------------------------------------------------

    def send_part(self, link: TcpLink, tag: bytes, body: Buffer) -> bool:
        """Hand one message to ZeroMQ, which copies it; False if the connection is gone."""
        socket = self._dialer if link.dialled else self._listener
        try:
            socket.send_multipart([link.route, tag, body], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        # Sending may take note of what has come too; that does not show on the descriptor any more.
        if not self._look_submitted:
            self._look_submitted = True
            self._loop.submit(self._look)
        return True

    def _look(self) -> None:
        self._look_submitted = False
        for socket, links in ((self._listener, self._accepted), (self._dialer, self._dialled)):
            if int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                self._receive(socket, links)

    def _tell_taken(self, link: TcpLink) -> None:
        """Let the sender send more."""
        count, link.untold_bytes = link.untold_bytes, 0
        self.send_part(link, b"W" + link.incoming, struct.pack("<Q", count))

    def _say_goodbye(self, link: TcpLink) -> None:
        """Tell the other side, if it is still there, that this link is over."""
        if link.incoming and not link.broken:
            self.send_part(link, b"X" + link.incoming, b"")

    # -- links come and go -----------------------------------------------------------------------

    def _dial(self, link: TcpLink) -> None:
        address = link.address
        self._dialled[link.route] = self._by_address[address] = link
        try:
            self._dialer.setsockopt(zmq.CONNECT_ROUTING_ID, link.route)
            self._dialer.connect(address)
        except zmq.ZMQError as error:
            self.lose(link, f"its address {address} cannot be used ({error.strerror})")
            return
        link.start(self._identity().hello)
        self._loop.call_later(
            GREETING_TIMEOUT_S, lambda: None if link.greeted else self.lose(link, _NEVER_ANSWERED)
        )

    def _note_broken(self) -> None:
        for event, _, address in monitored(self._dialer_monitor):
            link = self._by_address.get(address)
            if link is None:
                continue
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.lose(link, "it does not accept this process's key")
            elif event & _REFUSED:
                self.lose(link, "the handshake failed: it ended meanwhile, or belongs to another cluster")
            elif event == zmq.EVENT_DISCONNECTED:
                self._lose_soon(link)
            else:
                self.lose(link, "nobody listens at its address")

    def _note_closed(self, descriptor: int) -> None:
        link = self._by_descriptor.pop(descriptor, None)
        if link is not None:
            self._lose_soon(link)

    def _lose_soon(self, link: TcpLink) -> None:
        if not link.broken:
            link.broken = True
            self._loop.call_later(
                LAST_WORDS_S, lambda: self.finish(link, "its connection closed or fell silent")
            )

    def finish(self, link: TcpLink, reason: str) -> None:
        """Deliver what has arrived, then drop a link and report it."""
        self._receive_everything()
        self.lose(link, reason)

    def lose(self, link: TcpLink, reason: str) -> None:
        """Drop a link and report it, once."""
        if self.forget(link):
            self._events.on_lost(link, reason)

    def forget(self, link: TcpLink) -> bool:
        """Drop a link; False if that was done before."""
        links = self._dialled if link.dialled else self._accepted
        if links.get(link.route) is not link:
            return False
        self._say_goodbye(link)
        del links[link.route]
        link.end()
        if link.dialled and self._by_address.get(link.address) is link:
            del self._by_address[link.address]
            try:
                self._dialer.disconnect(link.address)
            except zmq.ZMQError:  # ZeroMQ has dropped it already
                logger.debug("the connection to %s was gone", link.address)
        return True

    # -- receiving -------------------------------------------------------------------------------

    def _receive(self, socket: zmq.Socket[bytes], links: dict[bytes, TcpLink]) -> None:
        for _ in range(MAX_CHUNKS_PER_TURN):
            if not self._receive_one(socket, links):
                return
        self._loop.submit(lambda: self._receive(socket, links))

    def _receive_everything(self) -> None:
        for socket, links in ((self._listener, self._accepted), (self._dialer, self._dialled)):
            while not self._accepting and self._receive_one(socket, links):
                pass

    def _receive_one(self, socket: zmq.Socket[bytes], links: dict[bytes, TcpLink]) -> bool:
        try:
            route = socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return False
        tag = socket.recv()
        body = socket.recv(copy=False)
        kind, stream = tag[:1], tag[1:]
        if kind == b"B" and socket is self._listener:
            self._accept(route, int(body.get(zmq.SRCFD)))
        link = links.get(route)
        if link is not None:
            try:
                self._take(link, kind, stream, body.buffer)
            except (ProtocolError, TypeError, ValueError) as error:
                logger.warning("bytes that are no message are dropped: %s", error)
                self.lose(link, "it sent bytes that are no message")
            except MemoryError as error:
                logger.warning("a connection is dropped: %s", error)
                self.lose(link, f"it sent more than there is room for: {error}")
        return True

    def _accept(self, route: bytes, descriptor: int) -> None:
        """Somebody who holds the key has dialled us."""
        self._gate.prove(descriptor)
        before = self._accepted.get(route)
        if before is not None:
            before.broken = True  # its name now means the new connection
            self._accepting = True  # what follows is for a link that is not there yet
            self.lose(before, "it lost this process and came back")
            self._accepting = False
        link = TcpLink(self, self._loop, None, route)
        self._accepted[route] = self._by_descriptor[descriptor] = link
        link.start(self._identity().hello)

    def _take(self, link: TcpLink, kind: bytes, stream: bytes, body: memoryview) -> None:
        if kind == b"B":
            link.incoming = stream
        elif kind != b"D":
            self._take_news(link, kind, stream, body)
            return
        if link.incoming != stream:
            return  # of a link that we have given up; its sender hears of that
        messages: list[Message] = []
        link.reader.feed(body, messages)
        if messages:
            self._deliver(link, messages)
        link.untold_bytes += len(body)
        if link.wants_telling():
            self._tell_taken(link)

    def _take_news(self, link: TcpLink, kind: bytes, stream: bytes, body: memoryview) -> None:
        if link.stream != stream:
            return
        if kind == b"W":
            link.note_taken(*struct.unpack("<Q", body))
        else:
            self.lose(link, "it closed the connection")

    def _deliver(self, link: TcpLink, messages: list[Message]) -> None:
        if not link.greeted:
            endpoint, name = parse_hello(messages.pop(0))
            if endpoint.process_id != link.expected(endpoint).process_id:
                self.lose(link, f"at its address is another process, '{name}'")
                return
            link.greeted = True
            self._events.on_hello(link, endpoint, name)
        if messages:
            self._events.on_messages(link, messages)
