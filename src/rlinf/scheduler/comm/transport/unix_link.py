"""One connection over a Unix socket, between two processes of one machine.

First comes the handshake (see `handshake`), until whose end no other byte is looked at, then HELLO, then
messages (see `framing`). A thread that sends hands its message to the kernel itself if nothing is queued
before it; what the kernel does not take at once is left to the I/O thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rlinf.scheduler.comm import framing
from rlinf.scheduler.comm.framing import Buffer, Message, ProtocolError, StreamReader
from rlinf.scheduler.comm.loop import FINISHED, READABLE, WRITABLE, IoLoop, Timer
from rlinf.scheduler.comm.transport.handshake import Handshake, HandshakeError
from rlinf.scheduler.comm.transport.link import HANDSHAKE_TIMEOUT_S, Identity, LinkEvents, parse_hello

logger = logging.getLogger(__name__)

CONNECT_RETRY_S = 0.01
SOCKET_BUFFER_BYTES = 4 << 20
SCRATCH_BYTES = 256 << 10
# The kernel takes 1024 (IOV_MAX) pieces a call.
MAX_PIECES = 512
# One connection may take this much of the thread's time before the others get their turn.
MAX_BYTES_PER_TURN = 16 << 20


class UnixLink:
    """One connection over a Unix socket; see the module's text for the protocol."""

    transport = "unix"

    def __init__(self, loop: IoLoop, identity: Identity, events: LinkEvents, scratch: memoryview) -> None:
        self.peer: Any = None
        self.dialled = False
        self._loop = loop
        self._identity = identity
        self._events = events
        self._scratch = scratch
        self._lock = threading.Lock()
        self._backlog: deque[Buffer] = deque()
        self._open = False  # the handshake is done, and messages may go
        self._closed = False
        self._broken = False  # writing failed; what can still be read is read first
        self._flush_submitted = False
        self._watching_writes = False
        self._socket: socket.socket | None = None
        self._reader = StreamReader()
        self._greeted = False
        self._handshake: Handshake | None = None
        self._partial = b""
        self._deadline: Timer | None = None
        self._dialled = ("", 0.0)  # which path, and when; "" if the other side dialled
        self._on_settled: Callable[[], None] | None = None

    # -- connecting ------------------------------------------------------------------------------

    def connect(self, path: str) -> None:
        """Connect to the socket at `path`; on the I/O thread.

        The handshake has no deadline on this side: whose process has the socket open is alive, however busy.
        """
        if self._closed:
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connection.connect(path)
        except BlockingIOError:  # its queue of new connections is full
            connection.close()
            self._loop.call_later(CONNECT_RETRY_S, lambda: self.connect(path))
        except OSError as error:
            connection.close()
            self._lose(f"nobody listens at its socket ({_code(error)})")
        else:
            self._dialled = (path, time.monotonic())
            self._adopt(connection)
            if not self._closed:
                self._handshake = Handshake(self._identity.secret, dials=True)
                self._write(self._handshake.begin())

    def accepted(self, connection: socket.socket, on_settled: Callable[[], None]) -> None:
        """Serve a connection that somebody made to us; on the I/O thread."""
        self._on_settled = on_settled
        connection.setblocking(False)
        self._start_deadline()
        self._handshake = Handshake(self._identity.secret, dials=False)
        self._adopt(connection)

    def _start_deadline(self) -> None:
        self._deadline = self._loop.call_later(
            HANDSHAKE_TIMEOUT_S, lambda: self._refuse(f"no handshake within {HANDSHAKE_TIMEOUT_S:.0f} s")
        )

    def _adopt(self, connection: socket.socket) -> None:
        self._socket = connection
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        self._loop.register(connection.fileno(), READABLE, self._on_ready)
        size = struct.calcsize("3i")
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        if uid not in (os.getuid(), 0):
            self._refuse(f"it belongs to user {uid}")

    # -- handshake -------------------------------------------------------------------------------

    def _receive_handshake(self, handshake: Handshake) -> None:
        path, since = self._dialled
        if path and time.monotonic() - since > HANDSHAKE_TIMEOUT_S / 2:
            # If it was this process that was held up, the other one has given up, or is about to.
            self._dial_again(path)
            return
        while handshake.wants_bytes and self._socket is not None:
            try:
                data = self._socket.recv(handshake.wants_bytes - len(self._partial))
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._lose(f"its connection broke ({_code(error)})")
                return
            if not data:
                self._lose("its connection closed during the handshake")
                return
            self._partial += data
            if len(self._partial) == handshake.wants_bytes:
                self._take_handshake(handshake)

    def _dial_again(self, path: str) -> None:
        with self._lock:
            self._drop_socket()
        self._partial = b""
        self.connect(path)

    def _take_handshake(self, handshake: Handshake) -> None:
        data, self._partial = self._partial, b""
        try:
            answer = handshake.take(data)
        except HandshakeError as error:
            self._refuse(str(error))
            return
        self._write(answer)
        if not handshake.wants_bytes:
            self._start_messages()

    def _start_messages(self) -> None:
        self._handshake = None
        with self._lock:
            self._backlog.extendleft(reversed(self._identity.hello))
            self._open = True
        self._flush()

    def _refuse(self, reason: str) -> None:
        if not self._closed:
            logger.warning("a connection is refused: %s", reason)
            self._lose(reason)

    def _write(self, data: bytes) -> None:
        """Send a part of the handshake: it fits into the empty buffer of a new socket."""
        if self._socket is not None and data:
            with contextlib.suppress(OSError):
                self._socket.send(data)

    # -- sending ---------------------------------------------------------------------------------

    def send(self, pieces: list[Buffer], snapshot: bool) -> None:
        """See `Link.send`."""
        with self._lock:
            if self._broken or self._closed:
                return
            if self._backlog or not self._open:
                self._queue(pieces, snapshot)
            elif len(pieces) == 1 and self._loop.batching:
                # What is sent while a batch of messages is served leaves together when that is done.
                self._backlog.append(pieces[0])
            else:
                rest = self._send_now(pieces)
                if not rest:
                    return
                self._queue(rest, snapshot)
                self._watch_writes()
                return
            if self._open and not self._watching_writes and not self._flush_submitted:
                self._flush_submitted = True
                self._loop.submit(self._flush)

    def _queue(self, pieces: list[Buffer], snapshot: bool) -> None:
        self._backlog.extend(map(framing.detached, pieces) if snapshot else pieces)

    def _send_now(self, pieces: list[Buffer]) -> list[Buffer]:
        """Hand to the kernel what it takes; what is left comes back. Under the lock."""
        if self._socket is None:
            return []
        try:
            sent = (
                self._socket.send(pieces[0])
                if len(pieces) == 1
                else self._socket.sendmsg(pieces[:MAX_PIECES])
            )
        except (BlockingIOError, InterruptedError):
            return pieces
        except OSError as error:
            self._broken = True
            self._backlog.clear()
            # Not every error shows on the descriptor too.
            reason = f"writing to it failed ({_code(error)})"
            self._loop.submit(lambda: self.finish(reason))
            return []
        for index, piece in enumerate(pieces):
            if sent < len(piece):
                return [memoryview(piece)[sent:] if sent else piece, *pieces[index + 1 :]]
            sent -= len(piece)
        return []

    def _watch_writes(self) -> None:
        if self._socket is not None and not self._watching_writes:
            self._watching_writes = True
            self._loop.modify(self._socket.fileno(), READABLE | WRITABLE)

    def _flush(self) -> None:
        """Send what is queued until the kernel takes no more; on the I/O thread."""
        with self._lock:
            self._flush_submitted = False
            while self._backlog and not self._closed:
                batch = [self._backlog.popleft() for _ in range(min(len(self._backlog), MAX_PIECES))]
                rest = self._send_now(batch)
                if rest:
                    self._backlog.extendleft(reversed(rest))
                    self._watch_writes()
                    return
            if self._watching_writes and self._socket is not None and not self._closed:
                self._watching_writes = False
                self._loop.modify(self._socket.fileno(), READABLE)

    def idle(self) -> bool:
        """See `Link.idle`."""
        return not self._backlog or self._broken

    # -- receiving -------------------------------------------------------------------------------

    def _on_ready(self, events: int) -> None:
        if events & WRITABLE:
            self._flush()
        if events & (READABLE | FINISHED):
            self._receive()

    def _receive(self, budget_bytes: float = MAX_BYTES_PER_TURN) -> None:
        if self._handshake is not None:
            self._receive_handshake(self._handshake)
            return
        messages: list[Message] = []
        reason = ""
        try:
            reason = self._read(messages, budget_bytes)
        except ProtocolError as error:
            reason = f"it sent bytes that are no message: {error}"
            logger.warning("a connection is dropped: %s", reason)
        except (MemoryError, ValueError) as error:  # numpy's, of a size that nothing could have
            reason = f"it sent more than there is room for: {error}"
            logger.warning("a connection is dropped: %s", reason)
        if messages:
            self._deliver(messages)
        if reason:
            self._lose(reason)

    def _read(self, messages: list[Message], budget_bytes: float) -> str:
        """Read what there is; the reason of the end, if it is one."""
        while budget_bytes > 0 and self._socket is not None:
            target = self._reader.target()
            memory = self._scratch if target is None else target
            try:
                count = self._socket.recv_into(memory)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                return f"its connection broke ({_code(error)})"
            if count == 0:
                return "its connection closed"
            budget_bytes -= count
            if target is not None:
                self._reader.advance(count, messages)
            else:
                self._reader.feed(self._scratch[:count], messages)
                if count < SCRATCH_BYTES and self._reader.target() is None:
                    break
        return ""

    def _deliver(self, messages: list[Message]) -> None:
        if not self._greeted:
            try:
                endpoint, name = parse_hello(messages[0])
            except ProtocolError as error:
                self._refuse(str(error))
                return
            self._greeted = True
            self._settle()
            self._events.on_hello(self, endpoint, name)
            del messages[0]
        if messages:
            self._events.on_messages(self, messages)

    # -- ending ----------------------------------------------------------------------------------

    def _settle(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._on_settled is not None:
            self._on_settled()
            self._on_settled = None

    def _lose(self, reason: str) -> None:
        if not self._closed:
            self.close()
            self._events.on_lost(self, reason)

    def finish(self, reason: str) -> None:
        """See `Link.finish`."""
        self.receive_rest()
        self._lose(reason)

    def receive_rest(self) -> None:
        """Read everything that has arrived."""
        if self._handshake is not None:
            self._receive()
        if self._handshake is None and not self._closed:
            self._receive(math.inf)

    def close(self) -> None:
        """See `Link.close`."""
        self._settle()
        with self._lock:
            self._closed = True
            self._backlog.clear()
            self._drop_socket()

    def abandon(self) -> None:
        """Close the descriptor in a forked child; its parent's connection goes on."""
        self._closed = True
        self._lock = threading.Lock()
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._loop.unregister(self._socket.fileno())
            self._socket.close()
            self._socket = None


def _code(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error))
