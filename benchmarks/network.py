"""Requests between two machines against a bare TCP socket over the same cable, in turn in one run.

The machines are network namespaces with a veth pair between them. Ours is TCP with CURVE: everything is encrypted and
authenticated. The bare socket sends with `sendall` and receives with `recv_into` into warm memory, in the clear.
Beside them stands what the cipher itself does on one core, to seal and to open.

    python benchmarks/network.py
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import multiprocessing
import os
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import zmq

from rlinf.scheduler.comm import ClusterSecret, Endpoint, Messenger
from rlinf.testing.machines import Machine, MachinePair, MachinesUnavailable

ROUNDS = 5
DEADLINE_S = 60.0
# size of a message, how many, how many under way at a time
WORKLOADS = ((1 << 10, 20_000, 256), (1 << 20, 200, 16), (16 << 20, 20, 4), (256 << 20, 2, 1))
ROUND_TRIPS = 1000
CIPHER_BLOCK = 64 << 10


def serve(machine: Machine, secret: ClusterSecret, pipe: Connection) -> None:
    """The other machine: a messenger that acknowledges what it gets, and a socket that does."""
    machine.enter()
    messenger = Messenger(secret, name="server:0", host=machine.address, tcp=True)
    messenger.serve("sink", lambda request: request.reply(None))
    listener = socket.create_server((machine.address, 0))
    threading.Thread(target=drain, args=(listener,), daemon=True).start()
    pipe.send((messenger.endpoint, listener.getsockname()))
    with contextlib.suppress(EOFError):
        pipe.recv()
    messenger.close()


def drain(listener: socket.socket) -> None:
    """Receive messages of announced sizes; answer with a byte after as many as were announced."""
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    memory = memoryview(bytearray(max(size for size, _, _ in WORKLOADS)))
    while head := connection.recv(16, socket.MSG_WAITALL):
        size, count = struct.unpack("<QQ", head)
        for _ in range(count):
            left = size
            while left:
                left -= connection.recv_into(memory[size - left : size])
        connection.sendall(b"!")


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
    """A TCP socket."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

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


def cipher_rates() -> tuple[float, float] | None:
    """Bytes a second that libsodium seals and opens on one core; None if this pyzmq brings none."""
    folder = os.path.join(os.path.dirname(zmq.__file__), "..", "pyzmq.libs", "libsodium*")
    found = glob.glob(folder)
    if not found:
        return None
    sodium = ctypes.CDLL(found[0])
    plain, sealed = ctypes.create_string_buffer(CIPHER_BLOCK), ctypes.create_string_buffer(CIPHER_BLOCK + 16)
    nonce, key, length = bytes(24), bytes(32), ctypes.c_ulonglong(CIPHER_BLOCK)

    def rate(function: Callable[..., int], target: object, source: object, size: ctypes.c_ulonglong) -> float:
        times = [seconds(lambda: function(target, source, size, nonce, key)) for _ in range(1000)]
        return CIPHER_BLOCK / statistics.median(times)

    seal = rate(sodium.crypto_secretbox_easy, sealed, plain, length)
    whole = ctypes.c_ulonglong(CIPHER_BLOCK + 16)
    return seal, rate(sodium.crypto_secretbox_open_easy, plain, sealed, whole)


def report(ours: Ours, bare: Bare) -> None:
    """Print the table."""
    our_s, bare_s = compare(ours, bare, 1, ROUND_TRIPS, 1)
    print(f"{'':24}{'TCP + CURVE':>14}{'bare TCP':>14}{'ratio':>9}")
    micros = 1e6 / ROUND_TRIPS
    print(f"{'round trip, 1 B, µs':24}{our_s * micros:14.0f}{bare_s * micros:14.0f}{our_s / bare_s:8.2f}x")
    for size, count, window in WORKLOADS:
        our_s, bare_s = compare(ours, bare, size, count, window)
        name = f"{size >> 10} KB, MB/s" if size < 1 << 20 else f"{size >> 20} MB, MB/s"
        megabytes = size * count / 1e6
        print(f"{name:24}{megabytes / our_s:14.0f}{megabytes / bare_s:14.0f}{bare_s / our_s:8.2f}x")
    rates = cipher_rates()
    if rates is not None:
        print(f"the cipher alone, one core, MB/s: {rates[0] / 1e6:.0f} to seal, {rates[1] / 1e6:.0f} to open")


def main() -> int:
    """Print one line a workload."""
    context = multiprocessing.get_context("spawn")
    try:
        pair = MachinePair()
    except MachinesUnavailable as error:
        print(f"nothing is measured: {error}")
        return 0
    secret = ClusterSecret.generate()
    with pair:
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(pair.right, secret, there), daemon=True)
        process.start()
        there.close()
        server, address = here.recv()
        with pair.left.entered():
            messenger = Messenger(secret, name="client:0", host=pair.left.address, tcp=True)
            report(Ours(messenger, server), Bare(address))
            messenger.close()
        here.close()
        process.join(DEADLINE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
