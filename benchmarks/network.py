"""Requests between two machines against bare sockets over the same cable, in turn in one run.

The machines are two network namespaces at one switch. Ours is measured with encryption, beside a bare TLS
socket, and without, beside a bare TCP socket. A bare socket sends with `sendall` and receives with `recv_into` into
warm memory.

    python benchmarks/network.py
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import ssl
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from rlinf.testing.machines import Machine, MachineStar, MachinesUnavailable
from rlinf_scheduler.comm import ClusterSecret, Endpoint, Messenger
from rlinf_scheduler.comm.transport.identity import ClusterTls

ROUNDS = 5
DEADLINE_S = 60.0
# size of a message, how many, how many under way at a time
WORKLOADS = ((1 << 10, 20_000, 256), (1 << 20, 200, 16), (16 << 20, 20, 4), (256 << 20, 2, 1))
ROUND_TRIPS = 1000


def serve(machine: Machine, secret: ClusterSecret, pipe: Connection) -> None:
    """The other machine: messengers that acknowledge what they get, and sockets that do."""
    machine.enter()
    messengers = [
        Messenger(secret, name="server:0", host=machine.address, tcp=True, encryption=encryption)
        for encryption in (True, False)
    ]
    listeners = []
    for messenger, tls in zip(messengers, (ClusterTls(secret).server, None), strict=True):
        messenger.serve("sink", lambda request: request.reply(None))
        listener = socket.create_server((machine.address, 0))
        threading.Thread(target=drain, args=(listener, tls), daemon=True).start()
        listeners.append(listener.getsockname())
    pipe.send(([messenger.endpoint for messenger in messengers], listeners))
    with contextlib.suppress(EOFError):
        pipe.recv()
    for messenger in messengers:
        messenger.close()


def drain(listener: socket.socket, tls: ssl.SSLContext | None) -> None:
    """Receive messages of announced sizes; answer with a byte after as many as were announced."""
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is not None:
        connection = tls.wrap_socket(connection, server_side=True)
    memory = memoryview(bytearray(max(size for size, _, _ in WORKLOADS)))
    while receive(connection, memory[:16]):
        size, count = struct.unpack("<QQ", memory[:16])
        for _ in range(count):
            receive(connection, memory[:size])
        connection.sendall(b"!")


def receive(connection: socket.socket, memory: memoryview) -> bool:
    """Fill the memory; False at the end of the stream."""
    position = 0
    while position < len(memory):
        count = connection.recv_into(memory[position:])
        if not count:
            return False
        position += count
    return True


class Ours:
    """Requests of a messenger."""

    def __init__(self, messenger: Messenger, server: Endpoint) -> None:
        self._messenger = messenger
        self._server = server

    def send(self, payload: bytearray, count: int, window: int) -> None:
        """Send the payload `count` times, up to `window` at a time under way; until all have arrived."""
        free = threading.Semaphore(window)
        for _ in range(count):
            free.acquire(timeout=DEADLINE_S)
            future = self._messenger.request(self._server, "sink", None, [payload], snapshot=False)
            future.add_done_callback(lambda _: free.release())
        for _ in range(window):
            free.acquire(timeout=DEADLINE_S)


class Bare:
    """A TCP socket, or a TLS socket."""

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None) -> None:
        self._socket = socket.create_connection(address, DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket)

    def send(self, payload: bytearray, count: int, window: int) -> None:
        """Send the payload `count` times, until all have arrived; each one before the next if `window` is 1."""
        turns, batch = (count, 1) if window == 1 else (1, count)
        for _ in range(turns):
            self._socket.sendall(struct.pack("<QQ", len(payload), batch))
            for _ in range(batch):
                self._socket.sendall(payload)
            self._socket.recv(1)


def seconds(action: Callable[[], None]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def compare(ours: Ours, bare: Bare, size: int, count: int, window: int) -> tuple[float, float]:
    """Median seconds of both, in turn."""
    payload = bytearray(size)
    sides = [lambda side=side: side.send(payload, count, window) for side in (ours, bare)]  # type: ignore[misc]
    for side in (ours, bare):
        side.send(payload, max(1, count // 10), window)
    pairs = [[seconds(side) for side in sides] for _ in range(ROUNDS)]
    our_s, bare_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    return our_s, bare_s


def report(ours: Ours, bare: Bare, title: str, bare_title: str) -> None:
    """Print a table."""
    our_s, bare_s = compare(ours, bare, 1, ROUND_TRIPS, 1)
    print(f"{'':24}{title:>14}{bare_title:>14}{'ratio':>9}")
    micros = 1e6 / ROUND_TRIPS
    print(f"{'round trip, 1 B, µs':24}{our_s * micros:14.0f}{bare_s * micros:14.0f}{our_s / bare_s:8.2f}x")
    for size, count, window in WORKLOADS:
        our_s, bare_s = compare(ours, bare, size, count, window)
        name = f"{size >> 10} KB, MB/s" if size < 1 << 20 else f"{size >> 20} MB, MB/s"
        megabytes = size * count / 1e6
        print(f"{name:24}{megabytes / our_s:14.0f}{megabytes / bare_s:14.0f}{bare_s / our_s:8.2f}x")


def main() -> int:
    """Print one line a workload."""
    context = multiprocessing.get_context("spawn")
    try:
        pair = MachineStar(2)
    except MachinesUnavailable as error:
        print(f"nothing is measured: {error}")
        return 0
    secret = ClusterSecret.generate()
    with pair:
        left, right = pair.machines
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(right, secret, there), daemon=True)
        process.start()
        there.close()
        servers, addresses = here.recv()
        with left.entered():
            for encryption, server, address in zip((True, False), servers, addresses, strict=True):
                messenger = Messenger(
                    secret, name="client:0", host=left.address, tcp=True, encryption=encryption
                )
                bare = Bare(address, ClusterTls(secret).client if encryption else None)
                titles = ("TLS", "bare TLS") if encryption else ("unencrypted", "bare TCP")
                report(Ours(messenger, server), bare, *titles)
                messenger.close()
        here.close()
        process.join(DEADLINE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
