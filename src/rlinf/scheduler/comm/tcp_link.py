"""The connections to and from one process of another machine."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from typing import Any, Protocol

from rlinf.scheduler.comm import framing
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.loop import IoLoop

CHUNK_BYTES = 1 << 20
WINDOW_BYTES = 8 << 20


class Carrier(Protocol):
    """What a link needs of the transport that it belongs to; on the I/O thread."""

    def send_part(self, stream: bytes, tag: bytes, body: Buffer) -> bool:
        """Hand one message to ZeroMQ, which copies it; False if the connection is gone."""

    def lose(self, link: TcpLink, reason: str) -> None:
        """Drop a link and report it, once."""

    def forget(self, link: TcpLink) -> bool:
        """Drop a link; False if that was done before."""


class TcpLink:
    """The connections to and from one process of another machine.

    Attributes:
        endpoint: whose it is.
        stream: the id of what we send on it; new for every link.
        greeted: whether the process has connected back and said who it is.
        broken: whether the connection that we dialled is gone.
        started: whether the connection is dialled, so that ZeroMQ takes what is sent on it.
    """

    transport = "tcp+curve"

    def __init__(self, transport: Carrier, loop: IoLoop, endpoint: Endpoint) -> None:
        self.peer: Any = None
        self.endpoint = endpoint
        self.stream = secrets.token_hex(8).encode()
        self.greeted = False
        self.broken = False
        self._transport = transport
        self._loop = loop
        self._lock = threading.Lock()
        self._queue: deque[Buffer] = deque()
        self._offset = 0  # how much of the first piece has left
        self._untaken_bytes = 0
        self.started = False
        self._ended = False
        self._begun = False
        self._flush_submitted = False

    def start(self, hello: list[Buffer]) -> None:
        """Send, now that the connection is dialled: who we are, then what was queued."""
        with self._lock:
            self._queue.extendleft(reversed(hello))
            self.started = True
        self._flush()

    def send(self, pieces: list[Buffer], snapshot: bool) -> None:
        """See `Link.send`. Nothing goes at once here, so a snapshot is always a copy."""
        with self._lock:
            if self._ended:
                return
            self._queue.extend(map(framing.detached, pieces) if snapshot else pieces)
            if self._flush_submitted or not self.started:
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
                if not self._transport.send_part(self.stream, tag + self.stream, chunk):
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
        self._transport.lose(self, reason)

    def close(self) -> None:
        """See `Link.close`."""
        self._transport.forget(self)
