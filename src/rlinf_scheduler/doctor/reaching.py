"""Whether one node reaches another: a listener that says what time it is, and tries to connect to it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from rlinf_scheduler.comm.port_range import PortRange
from rlinf_scheduler.comm.transport.sockets import listen_tcp
from rlinf_scheduler.doctor.facts import Reach

TRY_S = 3.0
_TRIES_AT_ONCE = 32
_LOOKS = 3  # at a clock: the quickest counts
_TIME = struct.Struct("!d")


class Place(msgspec.Struct, frozen=True):
    """A place to connect to.

    Attributes:
        node: Ray's id of the node.
        ip: its address.
        port: on which something listens there.
        service: what that is, in words.
        tells_time: whether it is a `NodeListener`.
    """

    node: str
    ip: str
    port: int
    service: str
    tells_time: bool = False


class NodeListener:
    """Says what time it is to everybody who connects, as long as this process lives or until it is closed.

    Args:
        ip: the address to listen on.
        ports: those that jobs take, if they are fixed.
    """

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
