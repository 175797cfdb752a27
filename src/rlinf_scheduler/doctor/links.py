"""The ways between nodes: whether one reaches another, which pairs measure theirs, and which are slow."""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import statistics
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from rlinf_scheduler.comm.port_range import PortRange
from rlinf_scheduler.comm.transport.sockets import listen_tcp
from rlinf_scheduler.doctor.facts import LinkSpeed, Reach

TRY_S = 3.0
_TRIES_AT_ONCE = 32
_LOOKS = 3  # at a clock: the quickest counts
_TIME = struct.Struct("!d")


class Place(msgspec.Struct, frozen=True):
    """A place to connect to."""

    node: str
    ip: str
    port: int
    service: str
    tells_time: bool = False


class NodeListener:
    """Says what time it is to everybody who connects, as long as this process lives or until it is closed."""

    def __init__(self, ip: str, ports: PortRange | None = None) -> None:
        self._server = listen_tcp(ip, ports)
        self._server.setblocking(True)
        self._server.listen()
        threading.Thread(target=self._serve, name="rlinf-doctor", daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.getsockname()[1])

    def close(self) -> None:
        """Listen no more."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.sendall(_TIME.pack(time.time()))


def try_all(source: str, targets: Sequence[Place], timeout_s: float = TRY_S) -> list[Reach]:
    """Try to connect to every target, from the node `source`; several at once."""
    if not targets:
        return []
    with ThreadPoolExecutor(min(_TRIES_AT_ONCE, len(targets))) as pool:
        return list(pool.map(lambda target: try_to_reach(source, target, timeout_s), targets))


def try_to_reach(source: str, target: Place, timeout_s: float = TRY_S) -> Reach:
    """Connect once; to a listener a few times more, to read its clock."""
    reach = Reach(source, target.node, target.ip, target.port, target.service)
    try:
        if not target.tells_time:
            socket.create_connection((target.ip, target.port), timeout=timeout_s).close()
            return reach
        looks = [_look_at_clock(target, timeout_s) for _ in range(_LOOKS)]
    except TimeoutError:
        return msgspec.structs.replace(reach, error=f"no answer in {timeout_s:.0f} s")
    except OSError as error:
        return msgspec.structs.replace(reach, error=error.strerror or str(error))
    round_trip_s, offset_s = min(looks)
    return msgspec.structs.replace(reach, round_trip_s=round_trip_s, offset_s=offset_s)


def _look_at_clock(target: Place, timeout_s: float) -> tuple[float, float]:
    """How long it took, and how far the other clock is ahead."""
    begun, clock = time.monotonic(), time.time()
    with socket.create_connection((target.ip, target.port), timeout=timeout_s) as connection:
        said = connection.recv(_TIME.size, socket.MSG_WAITALL)
    took = time.monotonic() - begun
    if len(said) != _TIME.size:
        raise ConnectionResetError("it closed the connection")
    return took, _TIME.unpack(said)[0] - (clock + took / 2)


# -- which pairs, and which are slow -----------------------------------------------------------------


# So many times slower than the faster half is worth a word: noise of a busy machine is not.
SLOW_TIMES = 10.0

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SlowLinks:
    """Links that share an end and a direction, and are slow beside the others.

    Attributes:
        peers: their other ends, ascending.
        is_outgoing: whether they are slow from `node` to these; else the other way.
        bytes_per_s: how fast they are; the median.
        usual_bytes_per_s: how fast the faster half of all links is; the median.
    """

    node: int
    peers: tuple[int, ...]
    is_outgoing: bool
    bytes_per_s: float
    usual_bytes_per_s: float


def rounds_of(nodes: Sequence[int], partners: int) -> list[list[Pair]]:
    """Pair each node with so many others, or with all, in rounds in which no node takes part twice.

    The circle method of round-robin tournaments: one stays, the others move on by one place.

    >>> rounds_of([0, 1, 2, 3], partners=2)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)]]
    """
    seats: list[int | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    rounds: list[list[Pair]] = []
    for _ in range(min(len(seats) - 1, partners)):
        half = len(seats) // 2
        across = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append(
            [
                (min(one, other), max(one, other))
                for one, other in across
                if one is not None and other is not None
            ]
        )
        seats[1:] = [seats[-1], *seats[1:-1]]
    return rounds


def slow_links(bytes_per_s: Mapping[Pair, float]) -> list[SlowLinks]:
    """The links that are `SLOW_TIMES` slower than the median of the faster half; those of one node together.

    >>> fast = dict.fromkeys([(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)], 1e9)
    >>> slow_links(fast)
    []
    >>> slow_links(fast | {(2, 0): 1e7, (2, 1): 3e7})
    [SlowLinks(node=2, peers=(0, 1), is_outgoing=True, bytes_per_s=20000000.0, \
usual_bytes_per_s=1000000000.0)]
    """
    ordered = sorted(bytes_per_s.values())
    if len(ordered) < 2:
        return []
    usual = statistics.median(ordered[len(ordered) // 2 :])
    slow = {link for link, speed in bytes_per_s.items() if speed * SLOW_TIMES < usual}
    found = []
    while slow:
        # The end that most of them share is the likeliest culprit.
        ends = Counter((link[side], side) for link in slow for side in (0, 1))
        node, side = max(ends, key=lambda end: (ends[end], -end[1], -end[0]))
        links = sorted(link for link in slow if link[side] == node)
        slow.difference_update(links)
        peers = tuple(link[1 - side] for link in links)
        speed = statistics.median(bytes_per_s[link] for link in links)
        found.append(SlowLinks(node, peers, side == 0, speed, usual))
    return found


# -- measuring ---------------------------------------------------------------------------------------


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
