"""What the network carries between two machines: a bounded probe over a socket of its own, that is closed afterwards.

One end opens a listener for one guest, who shows the token that both were told; then a few bytes go to and fro, and a
block each way. What is said means nothing, so it is neither encrypted nor kept.
"""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import statistics
import time
from collections.abc import Iterable

from rlinf_scheduler.comm.port_range import PortRange
from rlinf_scheduler.comm.transport.sockets import listen_tcp
from rlinf_scheduler.doctor.facts import LinkSpeed

PROBE_BYTES = 4 << 20
PROBE_TIMEOUT_S = 10.0
TOKEN_BYTES = 32
_ROUND_TRIPS = 8
# So many may be at a listener at a time.
_MAX_GUESTS = 16
# Who cannot be let in is tried again so much later.
_PAUSE_S = 0.1
_PIECE = bytes(256 << 10)


class ProbeListener:
    """Where one probe comes in.

    Args:
        host: the address to listen on.
        token: what the guest has to show.
        ports: the job's, if they are fixed.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, host: str, token: bytes, ports: PortRange | None) -> None:
        self._token = token
        self._bound_socket = listen_tcp(host, ports)
        self._bound_socket.listen()
        self.port = int(self._bound_socket.getsockname()[1])

    def serve(self) -> None:
        """Take part in the probe of the guest who shows the token; others are turned away. Returns when it is over."""
        until = time.monotonic() + PROBE_TIMEOUT_S
        with self._bound_socket:
            guest = self._admitted(until)
        if guest is not None:
            with guest, contextlib.suppress(OSError):
                _answer(_Line(guest, until))

    def _admitted(self, until: float) -> socket.socket | None:
        """The guest who shows the token. Who says nothing, or the wrong thing, keeps nobody waiting."""
        shown: dict[socket.socket, bytes] = {}
        self._bound_socket.setblocking(False)
        with contextlib.ExitStack() as strangers, selectors.DefaultSelector() as ready:
            strangers.callback(_close_all, shown)
            ready.register(self._bound_socket, selectors.EVENT_READ)
            while (left_s := until - time.monotonic()) > 0:
                for guest in [key.fileobj for key, _ in ready.select(left_s)]:
                    if guest is self._bound_socket:
                        self._let_speak(shown, ready)
                    elif isinstance(guest, socket.socket) and self._heard_out(guest, shown, ready):
                        del shown[guest]
                        return guest
        return None

    def _let_speak(self, shown: dict[socket.socket, bytes], ready: selectors.BaseSelector) -> None:
        if len(shown) == _MAX_GUESTS:  # the one that has said nothing for longest
            _turn_away(next(iter(shown)), shown, ready)
        try:
            guest, _ = self._bound_socket.accept()
        except (BlockingIOError, ConnectionError):  # it has gone again
            return
        except OSError:  # out of descriptors, most likely: it stays in the queue, and others may go meanwhile
            if shown:
                _turn_away(next(iter(shown)), shown, ready)
            else:
                time.sleep(_PAUSE_S)
            return
        guest.setblocking(False)
        shown[guest] = b""
        ready.register(guest, selectors.EVENT_READ)

    def _heard_out(
        self, guest: socket.socket, shown: dict[socket.socket, bytes], ready: selectors.BaseSelector
    ) -> bool:
        """Whether a guest has shown the token; one that cannot any more is turned away."""
        if guest not in shown:  # turned away just now
            return False
        said = b""
        with contextlib.suppress(OSError):
            said = guest.recv(TOKEN_BYTES - len(shown[guest]))
        shown[guest] += said
        if said and len(shown[guest]) < TOKEN_BYTES:
            return False
        if hmac.compare_digest(shown[guest], self._token):
            return True
        _turn_away(guest, shown, ready)
        return False


def _close_all(guests: Iterable[socket.socket]) -> None:
    for guest in guests:
        guest.close()


def _turn_away(
    guest: socket.socket, shown: dict[socket.socket, bytes], ready: selectors.BaseSelector
) -> None:
    del shown[guest]
    ready.unregister(guest)
    guest.close()


def probe_link(host: str, port: int, token: bytes) -> LinkSpeed:
    """Measure the way to a listener and back.

    Raises:
        OSError: there is no way, or it takes longer than `PROBE_TIMEOUT_S`.
    """
    until = time.monotonic() + PROBE_TIMEOUT_S
    with socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S) as connection:
        line = _Line(connection, until)
        line.send(token)
        trips = []
        for _ in range(_ROUND_TRIPS):
            began = time.perf_counter()
            line.send(b".")
            line.receive(1)
            trips.append(time.perf_counter() - began)
        round_trip_s = statistics.median(trips)
        began = time.perf_counter()
        line.send_block()
        line.receive(1)
        sent_s = time.perf_counter() - began
        began = time.perf_counter()
        line.send(b".")
        line.receive_block()
        received_s = time.perf_counter() - began
    return LinkSpeed(round_trip_s, PROBE_BYTES / sent_s, PROBE_BYTES / received_s)


def _answer(line: _Line) -> None:
    for _ in range(_ROUND_TRIPS):
        line.receive(1)
        line.send(b".")
    line.receive_block()
    line.send(b".")
    line.receive(1)
    line.send_block()


class _Line:
    """A connection on which everything is over at a deadline."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection = connection
        self._until = until
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        self._look_at_clock()
        self._connection.sendall(data)

    def receive(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            got += self._some(size - len(got))
        return got

    def send_block(self) -> None:
        for _ in range(0, PROBE_BYTES, len(_PIECE)):
            self.send(_PIECE)

    def receive_block(self) -> None:
        left = PROBE_BYTES
        while left:
            left -= len(self._some(min(left, len(_PIECE))))

    def _some(self, size: int) -> bytes:
        self._look_at_clock()
        data = self._connection.recv(size)
        if not data:
            raise ConnectionResetError("the other end closed the connection")
        return data

    def _look_at_clock(self) -> None:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"not done after {PROBE_TIMEOUT_S:.0f} s")
        self._connection.settimeout(left_s)
