"""Links over TCP, between machines: ZeroMQ with CURVE, driven by the messenger's I/O thread.

A process sends on the connections that it dialled and receives on those that it accepted, so that a pair of
peers has two. Two ROUTER sockets carry them all, whatever the number of peers: `dialer` (CURVE client) and
`listener` (CURVE server). The client knows the server's key from the cluster's secret; the server asks our
ZAP handler, which lets nobody in but the holder of the cluster's client key. Until then ZeroMQ hands us
nothing.

Over a connection runs the same stream of bytes as over a Unix socket (see `framing`), cut into chunks. A
message of ZeroMQ is

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
import threading
from collections.abc import Callable

import zmq

from rlinf.scheduler.comm.curve import CurveKeys
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.forking import close_tcp_sockets
from rlinf.scheduler.comm.framing import Buffer, Message, ProtocolError, StreamReader
from rlinf.scheduler.comm.link import HANDSHAKE_TIMEOUT_S, Identity, LinkEvents, parse_hello
from rlinf.scheduler.comm.loop import READABLE, IoLoop
from rlinf.scheduler.comm.secret import ClusterSecret
from rlinf.scheduler.comm.tcp_gate import TcpGate, monitored
from rlinf.scheduler.comm.tcp_link import CHUNK_BYTES, WINDOW_BYTES, TcpLink
from rlinf.scheduler.errors import CommError

logger = logging.getLogger(__name__)

# A process may be busy for long (a library's import that holds the GIL) before it answers the first time.
GREETING_TIMEOUT_S = 120.0
HEARTBEAT_MS = 1000
SILENCE_MS = 4000
# A dead peer's last words may still be on their way when the connection to it breaks: they come on the other
# one.
LAST_WORDS_S = 0.1
LINGER_MS = 1000
MAX_CHUNKS_PER_TURN = 64
# Hundreds of peers may dial at the same moment.
BACKLOG = 1024
_NEVER_CONNECTED_BACK = (
    f"it has not connected back within {GREETING_TIMEOUT_S:.0f} s: it is stuck, "
    "or cannot reach this process's address"
)
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
        self._lock = threading.Lock()
        self._links: dict[str, TcpLink] = {}
        self._by_address: dict[str, TcpLink] = {}
        self._inbound: dict[bytes, _Inbound] = {}
        self._by_descriptor: dict[int, _Inbound] = {}
        self._context = zmq.Context()
        self._listener = self._router(process_id)
        self._listener.router_handover = True
        self._listener.curve_server = True
        self._listener.curve_secretkey = self._keys.server_secret
        self._listener.zap_domain = b"rlinf"
        self._listener.maxmsgsize = CHUNK_BYTES + 1024
        self._listener.ipv6 = ":" in host
        self._listener.backlog = BACKLOG
        self._dialer = self._router(process_id)
        self._dialer.router_mandatory = True
        self._dialer.reconnect_ivl = -1
        self._dialer.connect_timeout = int(HANDSHAKE_TIMEOUT_S * 1000)
        self._dialer.curve_serverkey = self._keys.server_public
        self._dialer.curve_publickey = self._keys.client_public
        self._dialer.curve_secretkey = self._keys.client_secret
        self._dialer.ipv6 = True
        self._gate = TcpGate(self._context, self._listener, self._keys, loop, self._note_closed)
        self._dialer_monitor = self._dialer.get_monitor_socket(_BROKEN | _REFUSED)
        self.address = self._bind(host)
        self._watched: list[tuple[zmq.Socket[bytes], int]] = []
        self._watch(self._gate.zap, self._gate.answer)
        self._watch(self._listener, self._receive)
        self._watch(self._dialer, self._process_commands)
        self._watch(self._gate.monitor, self._gate.watch)
        self._watch(self._dialer_monitor, self._note_broken)

    def _router(self, process_id: str) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        router.routing_id = process_id.encode()
        router.sndhwm = router.rcvhwm = 0
        router.linger = LINGER_MS
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
        self._watched.append((socket, descriptor))
        self._loop.register(descriptor, READABLE, lambda _events: handler())
        # What happened before the descriptor was watched does not show on it.
        self._loop.submit(handler)

    def link_to(self, endpoint: Endpoint) -> TcpLink:
        """The link to a process, made now if there is none; from any thread."""
        with self._lock:
            link = self._links.get(endpoint.process_id)
            if link is None:
                link = self._links[endpoint.process_id] = TcpLink(self, self._loop, endpoint)
                self._loop.submit(lambda: self._dial(link))
        return link

    def close(self) -> None:
        """Close every socket; what was sent to the living leaves within the linger time."""
        # Who has gone is not waited for: when a cluster ends, its processes close at about the same time.
        self._receive_everything()
        self._note_broken()
        with self._lock:
            links, self._links = list(self._links.values()), {}
        living = [link for link in links if not link.broken]
        for link in living:
            self._say_goodbye(link)
        for link in links:
            link.end()
        for _, descriptor in self._watched:
            self._loop.unregister(descriptor)
        self._gate.close()
        self._dialer.disable_monitor()
        for socket in (self._listener, self._dialer_monitor):
            socket.close(linger=0)
        self._dialer.close(linger=LINGER_MS if living else 0)
        self._context.term()

    def abandon(self) -> None:
        """Close every connection in a forked child, where ZeroMQ has no thread; its objects stay unused."""
        close_tcp_sockets(self.address, set(self._by_address))

    # -- dialled connections ---------------------------------------------------------------------

    def _dial(self, link: TcpLink) -> None:
        address = link.endpoint.tcp_address
        self._by_address[address] = link
        try:
            self._dialer.setsockopt(zmq.CONNECT_ROUTING_ID, link.stream)
            self._dialer.connect(address)
        except zmq.ZMQError as error:
            self.lose(link, f"its address {address} cannot be used ({error.strerror})")
            return
        link.start(self._identity().hello)
        inbound = self._inbound.get(link.endpoint.process_id.encode())
        if inbound is not None:
            self._tell_taken(inbound)
        self._loop.call_later(
            GREETING_TIMEOUT_S, lambda: None if link.greeted else self.lose(link, _NEVER_CONNECTED_BACK)
        )

    def send_part(self, stream: bytes, tag: bytes, body: Buffer) -> bool:
        """Hand one message to ZeroMQ, which copies it; False if the connection is gone."""
        try:
            self._dialer.send_multipart([stream, tag, body], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def _process_commands(self) -> None:
        self._dialer.getsockopt(zmq.EVENTS)

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

    def _lose_soon(self, link: TcpLink) -> None:
        if not link.broken:
            link.broken = True
            self._loop.call_later(LAST_WORDS_S, lambda: self._lose_after_last_words(link))

    def _lose_after_last_words(self, link: TcpLink) -> None:
        self._receive_everything()
        self.lose(link, "its connection closed, or it was silent for too long")

    def lose(self, link: TcpLink, reason: str) -> None:
        """Drop a link and report it, once."""
        if self.forget(link):
            self._events.on_lost(link, reason)

    def forget(self, link: TcpLink) -> bool:
        """Drop a link; False if that was done before."""
        process_id = link.endpoint.process_id
        with self._lock:
            if self._links.get(process_id) is not link:
                return False
            del self._links[process_id]
        link.end()
        self._inbound.pop(process_id.encode(), None)
        if self._by_address.get(link.endpoint.tcp_address) is link:
            del self._by_address[link.endpoint.tcp_address]
            try:
                self._dialer.disconnect(link.endpoint.tcp_address)
            except zmq.ZMQError:  # ZeroMQ has dropped it already
                logger.debug("the connection to %s was gone", link.endpoint.tcp_address)
        return True

    def _say_goodbye(self, link: TcpLink) -> None:
        """Tell the other side, if it is still there, that this link is over: it has another connection to us."""
        inbound = self._inbound.get(link.endpoint.process_id.encode())
        if inbound is not None and link.started:
            self.send_part(link.stream, b"X" + inbound.stream, b"")

    # -- accepted connections --------------------------------------------------------------------

    def _note_closed(self, descriptor: int) -> None:
        """A connection to us is gone: so is its process, or it has given us up. Either way its link is over."""
        inbound = self._by_descriptor.pop(descriptor, None)
        if inbound is not None and inbound.link is not None:
            self._lose_soon(inbound.link)

    def _receive(self) -> None:
        for _ in range(MAX_CHUNKS_PER_TURN):
            if not self._receive_one():
                return
        self._loop.submit(self._receive)

    def _receive_everything(self) -> None:
        while self._receive_one():
            pass

    def _receive_one(self) -> bool:
        try:
            sender = self._listener.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        tag, body = self._listener.recv_multipart()
        try:
            self._take(sender, tag, body)
        except (ProtocolError, TypeError, ValueError) as error:
            logger.warning("bytes that are no message are dropped: %s", error)
            self._drop_stream(sender.bytes)
        return True

    def _drop_stream(self, sender: bytes) -> None:
        inbound = self._inbound.get(sender)
        if inbound is not None and inbound.link is not None:
            self._say_goodbye(inbound.link)
            self.lose(inbound.link, "it sent bytes that are no message")
        self._inbound.pop(sender, None)

    def _take(self, frame: zmq.Frame, tag: bytes, body: bytes) -> None:
        sender, kind, stream = frame.bytes, tag[:1], tag[1:]
        if kind == b"B":
            self._begin(sender, stream, int(frame.get(zmq.SRCFD)))
        elif kind != b"D":
            self._take_news(sender, kind, stream, body)
            return
        inbound = self._inbound.get(sender)
        if inbound is None or inbound.stream != stream:
            return  # we have given it up, and its sender hears of that
        messages: list[Message] = []
        inbound.reader.feed(memoryview(body), messages)
        if messages:
            self._deliver(inbound, messages)
        inbound.untold_bytes += len(body)
        if inbound.untold_bytes >= WINDOW_BYTES // 4:
            self._tell_taken(inbound)

    def _begin(self, sender: bytes, stream: bytes, descriptor: int) -> None:
        self._gate.prove(descriptor)
        before = self._inbound.get(sender)
        if before is not None and before.link is not None:
            self.lose(before.link, "it lost this process and came back")
        self._inbound[sender] = self._by_descriptor[descriptor] = _Inbound(stream)

    def _take_news(self, sender: bytes, kind: bytes, stream: bytes, body: bytes) -> None:
        link = self._links.get(sender.decode())
        if link is None or link.stream != stream:
            return
        if kind == b"W":
            link.note_taken(*struct.unpack("<Q", body))
        else:
            self.lose(link, "it closed the connection")

    def _tell_taken(self, inbound: _Inbound) -> None:
        """Let the sender send more; if the connection to it is not dialled yet, it is told when that is done."""
        if inbound.link is not None and inbound.link.started:
            count, inbound.untold_bytes = inbound.untold_bytes, 0
            self.send_part(inbound.link.stream, b"W" + inbound.stream, struct.pack("<Q", count))

    def _deliver(self, inbound: _Inbound, messages: list[Message]) -> None:
        if inbound.link is None:
            endpoint, name = parse_hello(messages.pop(0))
            inbound.link = self.link_to(endpoint)
            inbound.link.greeted = True
            self._events.on_hello(inbound.link, endpoint, name)
        if messages:
            self._events.on_messages(inbound.link, messages)


class _Inbound:
    """The stream that a process sends to us."""

    __slots__ = ("link", "reader", "stream", "untold_bytes")

    def __init__(self, stream: bytes) -> None:
        self.stream = stream
        self.reader = StreamReader()
        self.link: TcpLink | None = None
        self.untold_bytes = 0
