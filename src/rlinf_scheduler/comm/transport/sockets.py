"""The sockets of one process: where it listens, how it dials, and what is known of connections over TCP."""

from __future__ import annotations

import errno
import secrets
import socket
import ssl
import struct
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.loop import IoLoop, Timer, run_guarded
from rlinf_scheduler.comm.port_range import PortRange, in_turn, listening_ports
from rlinf_scheduler.comm.transport import handshake
from rlinf_scheduler.comm.transport.handshake import Introduction
from rlinf_scheduler.comm.transport.identity import Identity
from rlinf_scheduler.comm.transport.listener import Judge, Listener
from rlinf_scheduler.comm.transport.opening import PROBE_S, Opening
from rlinf_scheduler.comm.transport.peer_session import Hello, PeerSession
from rlinf_scheduler.comm.transport.receive_buffers import ReceiveBuffers
from rlinf_scheduler.comm.transport.stream_link import StreamLink
from rlinf_scheduler.errors import CommError

SILENCE_S = 4.0
# struct tcp_info of Linux: eight bytes, then words; those with the ms since data and an acknowledgement came.
_LAST_DATA_RECV, _LAST_ACK_RECV = 11, 12
_TCP_INFO_WORDS = 13


class Watched(Protocol):
    """What has connections over TCP, which may fall silent."""

    def look(self) -> bool:
        """Look whether they have; False if there are none any more."""


class Sockets:
    """What makes connections and takes them in; on the I/O thread, but for its making.

    Args:
        me: who this process is.
        unix_path: where its Unix socket is made.
        host: the address that it listens on for TCP, and no other; None for no TCP.
        encrypts: whether what goes over TCP is encrypted.
        ports: the first and the last of the ports that the job takes; None: any that the kernel chooses.
        judge: what to make of who came.

    Attributes:
        tcp_address: where others reach it, e.g. "tcp://10.0.0.3:23456"; "" without TCP.
        buffers: what all links receive into.
        new_socket: makes a socket of a family and a type.

    Raises:
        CommError: it cannot listen there.
    """

    new_socket: Callable[..., socket.socket] = socket.socket

    def __init__(
        self,
        loop: IoLoop,
        me: Identity,
        unix_path: Path,
        host: str | None,
        *,
        encrypts: bool,
        ports: PortRange | None = None,
        judge: Judge,
    ) -> None:
        self.me = me
        self._loop = loop
        self._encrypts = encrypts
        self.buffers = ReceiveBuffers(loop)
        self._dirty: dict[StreamLink, None] = {}
        self._watched: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._watch_timer: Timer | None = None
        self._openings: weakref.WeakSet[Opening[Introduction]] = weakref.WeakSet()
        self.unix_listener = Listener(self._listen_unix(unix_path), loop, me, judge)
        self.tcp_listener: Listener | None = None
        self.tcp_address = ""
        self._client_tls: ssl.SSLContext | None = None
        if host is not None:
            self._open_tcp_listener(host, ports, judge)

    def _open_tcp_listener(self, host: str, ports: PortRange | None, judge: Judge) -> None:
        server_tls = None
        try:
            bound_socket = listen_tcp(host, ports, self.new_socket)
        except OSError as error:
            self.unix_listener.close()
            tried = listening_ports(ports) if ports else ()
            within = f", ports {tried[0]}-{tried[-1]}" if tried else ""
            why = error.strerror or str(error)
            if tried and error.errno == errno.EADDRINUSE:
                why = (
                    "each is in use; every process of a job on a node takes one: widen cluster.network.ports"
                )
            raise CommError(f"cannot listen on TCP at '{host}'{within}: {why}") from error
        if self._encrypts:
            # Loaded only here: most processes talk to their own machine alone.
            from rlinf_scheduler.comm.transport.identity import ClusterTls  # noqa: PLC0415

            tls = ClusterTls(self.me.secret)
            self._client_tls, server_tls = tls.client, tls.server
        name, port = bound_socket.getsockname()[:2]
        self.tcp_address = f"tcp://[{name}]:{port}" if ":" in name else f"tcp://{name}:{port}"
        self.tcp_listener = Listener(bound_socket, self._loop, self.me, judge, server_tls)

    def _listen_unix(self, path: Path) -> socket.socket:
        bound_socket = self.new_socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        bound_socket.bind(str(path))
        return bound_socket

    # -- dialling --------------------------------------------------------------------------------

    def new_session(self, process_id: str, grace_s: float) -> PeerSession[list[Buffer]]:
        """Return our half of a session with a process, of a number that no other has."""
        number = secrets.randbits(63) | 1
        return PeerSession(self.me.process_id, process_id, number, self._loop.now(), grace_s=grace_s)

    def kind(self, endpoint: Endpoint) -> str:
        """How a process is reached: "unix", "tcp+tls" or "tcp"."""
        if self._on_this_machine(endpoint):
            return "unix"
        return "tcp+tls" if self._encrypts else "tcp"

    def why_unreachable(self, endpoint: Endpoint) -> str:
        """Why there is no way to a process; "" if there is one."""
        if self._on_this_machine(endpoint) or (self.tcp_listener is not None and endpoint.tcp_address):
            return ""
        if endpoint.machine_id == self.me.endpoint.machine_id:
            return "it has no Unix socket"
        who = "it" if self.tcp_listener is not None else "this process"
        return f"it is on another machine, and {who} does not use TCP"

    def _on_this_machine(self, endpoint: Endpoint) -> bool:
        return endpoint.machine_id == self.me.endpoint.machine_id and bool(endpoint.unix_path)

    def opening(
        self,
        endpoint: Endpoint,
        hello: Callable[[], Hello],
        on_done: Callable[[socket.socket, Introduction], None],
        on_failed: Callable[[str, bool], None],
    ) -> Opening[Introduction]:
        """A connection to a process; `connect` begins it."""
        tls = None
        if self._on_this_machine(endpoint):
            family = socket.AF_UNIX
        else:
            tls = self._client_tls
            family = socket.AF_INET6 if "[" in endpoint.tcp_address else socket.AF_INET
        connection = self.new_socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        steps = handshake.dial(self.me, endpoint.process_id, hello, encrypts=tls is not None)
        opening = Opening(self._loop, connection, steps, tls, on_done, on_failed)
        self._openings.add(opening)
        return opening

    def connect(
        self, opening: Opening[Introduction], endpoint: Endpoint, on_reached: Callable[[], None]
    ) -> None:
        """Begin what `opening` gave; it may be over when this returns."""
        if opening.connection.family == socket.AF_UNIX:
            opening.dialled(endpoint.unix_path, on_reached)
        else:
            host, _, port = endpoint.tcp_address.removeprefix("tcp://").rpartition(":")
            opening.dialled((host.strip("[]"), int(port)), on_reached)

    # -- what stands -----------------------------------------------------------------------------

    def flush_soon(self, link: StreamLink) -> None:
        """Write what a link has at the end of this round."""
        if not self._dirty:
            self._loop.after_round(self._flush)
        self._dirty[link] = None

    def _flush(self) -> None:
        while self._dirty:
            link, _ = self._dirty.popitem()
            run_guarded(link.flush)

    def watch(self, transport: Watched) -> None:
        """Look after connections: the kernel notices when the other machine falls silent, and says so if asked."""
        self._watched.add(transport)
        if self._watch_timer is None:
            self._watch_timer = self._loop.call_later(PROBE_S, self._look)

    def _look(self) -> None:
        self._watch_timer = None
        for transport in list(self._watched):
            if not transport.look():
                self._watched.discard(transport)
        if self._watched:
            self._watch_timer = self._loop.call_later(PROBE_S, self._look)

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop listening, and drop who has not proved who he is."""
        for listener in (self.unix_listener, self.tcp_listener):
            if listener is not None:
                listener.close()
        for opening in list(self._openings):
            opening.close()

    def abandon(self) -> None:
        """Close every descriptor in a forked child."""
        for listener in (self.unix_listener, self.tcp_listener):
            if listener is not None:
                listener.abandon()
        for opening in list(self._openings):
            opening.abandon()


def silence_of(connection: socket.socket) -> float:
    """For how many seconds nothing has come from the other machine's kernel, which is asked all the while.

    0 for a Unix socket: there is no machine between.
    """
    if connection.family == socket.AF_UNIX:
        return 0.0
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8 + 4 * _TCP_INFO_WORDS)
    words = struct.unpack_from(f"{_TCP_INFO_WORDS}I", info, 8)
    return float(min(words[_LAST_DATA_RECV], words[_LAST_ACK_RECV])) / 1000


def listen_tcp(
    host: str, ports: PortRange | None, new_socket: Callable[..., socket.socket] = socket.socket
) -> socket.socket:
    """A socket bound to a port of the range, or without one to any port, at an address.

    Raises:
        OSError: what the kernel says.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound_socket = new_socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        _bind(bound_socket, host, [0] if ports is None else in_turn(listening_ports(ports)))
    except OSError:
        bound_socket.close()
        raise
    return bound_socket


def _bind(bound_socket: socket.socket, host: str, ports: Sequence[int]) -> None:
    # Without SO_REUSEADDR: with it, a port that is kept for somebody's rendezvous would be taken.
    for port in ports:
        try:
            bound_socket.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == ports[-1]:
                raise
        else:
            return
