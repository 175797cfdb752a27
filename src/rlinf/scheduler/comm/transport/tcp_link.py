"""One connection to one process of another machine."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from typing import Any, Protocol

from rlinf.scheduler.comm import framing
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.framing import Buffer, StreamReader
from rlinf.scheduler.comm.loop import IoLoop

# Large enough that the wake-ups of threads between chunks do not count; the next message waits for what is under
# way.
CHUNK_BYTES = 512 << 10
WINDOW_BYTES = 8 << 20


class Carrier(Protocol):
    """What a link needs of the transport that it belongs to; on the I/O thread."""

    def send_part(self, link: TcpLink, tag: bytes, body: Buffer) -> bool:
        """Hand one message to ZeroMQ, which copies it; False if the connection is gone."""

    def finish(self, link: TcpLink, reason: str) -> None:
        """Deliver what has arrived, then drop a link and report it."""

    def forget(self, link: TcpLink) -> bool:
        """Drop a link; False if that was done before."""


class TcpLink:
    """One connection to one process of another machine.

    Args:
        transport: what it belongs to.
        loop: the I/O thread.
        endpoint: whom it is dialled to; None if the other side dialled.
        route: what ZeroMQ calls the other side, if it dialled.

    Attributes:
        dialled: whether we made the connection.
        address: where it is dialled to.
        route: what ZeroMQ calls the other side.
        stream: the id of what we send on it; new for every link.
        incoming: the id of what we receive on it; empty until something has come.
        reader: reads it.
        untold_bytes: how much was taken of it since its sender was told.
        greeted: whether the other side has said who it is.
        broken: whether the connection is gone, so that nothing can be sent any more.
    """

    transport = "tcp+curve"

    def __init__(
        self, transport: Carrier, loop: IoLoop, endpoint: Endpoint | None, route: bytes = b""
    ) -> None:
        self.peer: Any = None
        self.dialled = endpoint is not None
        self.address = endpoint.tcp_address if endpoint is not None else ""
        self.stream = secrets.token_hex(8).encode()
        self.route = route or self.stream
        self.incoming = b""
        self.reader = StreamReader()
        self.untold_bytes = 0
        self.greeted = False
        self.broken = False
        self._endpoint = endpoint
        self._transport = transport
        self._loop = loop
        self._lock = threading.Lock()
        self._queue: deque[Buffer] = deque()
        self._offset = 0  # how much of the first piece has left
        self._untaken_bytes = 0
        self._started = False
        self._begun = False
        self._ended = False
        self._flush_submitted = False

    def expected(self, endpoint: Endpoint) -> Endpoint:
        """Who must be at the other end, where `endpoint` says that it is: whom we dialled, else anybody."""
        return self._endpoint or endpoint

    def wants_telling(self) -> bool:
        """Whether so much was taken that the sender should hear of it."""
        return self.untold_bytes >= WINDOW_BYTES // 4

    def start(self, hello: list[Buffer]) -> None:
        """Send, now that the connection is dialled: who we are, then what was queued."""
        with self._lock:
            self._queue.extendleft(reversed(hello))
            self._started = True
        self._flush()

    def send(self, pieces: list[Buffer], snapshot: bool) -> None:
        """See `Link.send`. Nothing goes at once here, so a snapshot is always a copy."""
        with self._lock:
            if self._ended:
                return
            self._queue.extend(map(framing.detached, pieces) if snapshot else pieces)
            if self._flush_submitted or not self._started:
                return
            self._flush_submitted = True
        self._loop.submit(self._flush)

    def note_taken(self, count: int) -> None:
        """The other side took `count` more bytes."""
        self._untaken_bytes -= count
        self._flush()

    def _flush(self) -> None:
        with self._lock:
            self._flush_submitted = False
            while self._queue and self._untaken_bytes < WINDOW_BYTES and not self._ended:
                chunk = self._next_chunk()
                self._untaken_bytes += len(chunk)
                tag = b"D" if self._begun else b"B"
                self._begun = True
                if not self._transport.send_part(self, tag + self.stream, chunk):
                    # Its end was or will be reported by the monitor; until then nothing can be done with it.
                    self._queue.clear()
                    return

    def _next_chunk(self) -> Buffer:
        """The next bytes to send: a part of a large piece, or many small pieces joined; under the lock."""
        piece = self._queue[0]
        left = len(piece) - self._offset
        if left > CHUNK_BYTES:
            chunk = memoryview(piece)[self._offset : self._offset + CHUNK_BYTES]
            self._offset += CHUNK_BYTES
            return chunk
        parts: list[Buffer] = [memoryview(self._queue.popleft())[self._offset :]]
        self._offset = 0
        size = left
        while self._queue and size + len(self._queue[0]) <= CHUNK_BYTES:
            parts.append(self._queue.popleft())
            size += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def idle(self) -> bool:
        """See `Link.idle`."""
        return not self._queue

    def end(self) -> None:
        """Drop what is queued and take no more."""
        with self._lock:
            self._ended = True
            self._queue.clear()

    def finish(self, reason: str) -> None:
        """See `Link.finish`."""
        self._transport.finish(self, reason)

    def close(self) -> None:
        """See `Link.close`."""
        self._transport.forget(self)
