"""The door of the TCP listener: who may come in, who said nothing, who has left. On the I/O thread.

ZeroMQ accepts connections and shakes hands by itself. It asks us (ZAP) whether a key may come in, and its
monitor says which descriptors were accepted and closed, but of a finished handshake it does not say whose it
was. So a connection counts as a stranger's until a message has come from it: ZeroMQ hands over nothing that
has not passed the handshake.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable

import zmq

from rlinf.scheduler.comm.loop import IoLoop, Timer
from rlinf.scheduler.comm.transport.curve import ZAP_ADDRESS, CurveKeys, judge
from rlinf.scheduler.comm.transport.knocks import KnockLog

# From when this process saw it. A friend needs a round trip or two, however busy its interpreter: ZeroMQ's
# thread shakes hands.
SILENT_TIMEOUT_S = 30.0
# So long when there are so many that they would use up the descriptors.
CROWDED_TIMEOUT_S = 1.0
MAX_STRANGERS = 1024

_ACCEPTED_OR_CLOSED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED


class TcpGate:
    """Watches the connections that a listening socket accepts.

    Args:
        context: where the listener lives, and ZeroMQ asks its question.
        listener: the socket; not yet bound.
        keys: who may come in.
        loop: the I/O thread.
        on_closed: hears of the end of a connection that has proved itself, by its descriptor.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        listener: zmq.Socket[bytes],
        keys: CurveKeys,
        loop: IoLoop,
        on_closed: Callable[[int], None],
    ) -> None:
        self._keys = keys
        self._loop = loop
        self._on_closed = on_closed
        self._strangers: dict[int, _Stranger] = {}
        self._denied: Counter[str] = Counter()
        self._crowd = _crowd()
        self._timer: Timer | None = None
        self._log = KnockLog()
        self._listener = listener
        self.zap = context.socket(zmq.REP)
        self.zap.bind(ZAP_ADDRESS)
        self.monitor = listener.get_monitor_socket(_ACCEPTED_OR_CLOSED)

    def close(self) -> None:
        """Close the sockets; the listener is its owner's."""
        self._listener.disable_monitor()
        self.zap.close(linger=0)
        self.monitor.close(linger=0)

    def answer(self) -> None:
        """Answer ZeroMQ's questions."""
        self.watch()  # whose key is denied is gone at once, and his address with him
        while (question := receive_parts(self.zap)) is not None:
            allowed, host, answer = judge(question, self._keys)
            if not allowed:
                self._denied[host] += 1
                self._log.warn(host, host, "it does not hold the cluster's key")
            self.zap.send_multipart(answer)

    def prove(self, descriptor: int) -> None:
        """A message came from this connection."""
        # What happened before the message is read first: descriptors are used again.
        self.watch()
        self._strangers.pop(descriptor, None)

    def watch(self) -> None:
        """Take note of who came and who left."""
        for event, descriptor, _ in monitored(self.monitor):
            if event == zmq.EVENT_ACCEPTED:
                self._strangers[descriptor] = _Stranger(descriptor)
            elif (stranger := self._strangers.pop(descriptor, None)) is not None:
                self._report(stranger, "it did not finish the handshake")
            else:
                self._on_closed(descriptor)
        if self._strangers and (self._timer is None or self._crowded()):
            self._drop_silent()

    def _crowded(self) -> bool:
        return len(self._strangers) > self._crowd

    def _report(self, stranger: _Stranger, reason: str) -> None:
        if self._denied[stranger.host] > 0:  # that was its end, and it has been told of
            self._denied[stranger.host] -= 1
        else:
            self._log.warn(stranger.host, stranger.where, reason)
        if not self._strangers:
            self._denied.clear()

    def _drop_silent(self) -> None:
        """Drop strangers whose time is over; come back when that of the next one is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.monotonic()
        while self._strangers:
            stranger = next(iter(self._strangers.values()))  # they lie in the order in which they came
            patience_s = CROWDED_TIMEOUT_S if self._crowded() else SILENT_TIMEOUT_S
            left_s = stranger.since + patience_s - now
            if left_s > 0:
                self._timer = self._loop.call_later(left_s, self._drop_silent)
                return
            del self._strangers[stranger.descriptor]
            self._report(stranger, "it did not begin to talk in time")
            stranger.shut_down()


class _Stranger:
    """An accepted connection from which nothing has come that ZeroMQ lets through."""

    __slots__ = ("descriptor", "host", "since", "where")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.since = time.monotonic()
        self.host, self.where = "", ""
        connection = _borrowed(descriptor)
        if connection is not None:
            with connection:
                self.host, self.where = _name(connection)

    def shut_down(self) -> None:
        """End the connection, which ZeroMQ then notices."""
        connection = _borrowed(self.descriptor)
        if connection is None:
            return
        with connection:
            # The descriptor may have been closed and used again, for a friend even.
            if self.where and _name(connection)[1] == self.where:
                connection.shutdown(socket.SHUT_RDWR)


def _borrowed(descriptor: int) -> socket.socket | None:
    """The socket behind a descriptor of ZeroMQ's, under a descriptor of our own; None if it is gone."""
    try:
        connection = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return None
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        return connection
    connection.close()
    return None


def _name(connection: socket.socket) -> tuple[str, str]:
    """The other side's host and full address; empty if it is gone."""
    try:
        host, port, *_ = connection.getpeername()
    except OSError:
        return "", ""
    return host, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _crowd() -> int:
    """How many strangers are too many: a quarter of the descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_STRANGERS if soft == resource.RLIM_INFINITY else max(1, min(MAX_STRANGERS, soft // 4))


def receive_parts(socket: zmq.Socket[bytes]) -> list[bytes] | None:
    """The next message, or None if there is none now."""
    try:
        return socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None


def monitored(monitor: zmq.Socket[bytes]) -> list[tuple[int, int, str]]:
    """What a monitor reports: event, value (a descriptor, for those we want it of) and address.

    The format is version 1 of `zmq_socket_monitor(3)`.
    """
    events = []
    while (parts := receive_parts(monitor)) is not None:
        event, value = struct.unpack("=HI", parts[0])
        events.append((event, value, parts[1].decode()))
    return events
