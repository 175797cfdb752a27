"""A connection until both sides know each other: runs the steps of a handshake over a socket that never blocks."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from rlinf_scheduler.comm.loop import READABLE, WRITABLE, IoLoop
from rlinf_scheduler.comm.transport.handshake import SECURE, HandshakeError, Steps

UNIX_BUFFER_BYTES = 4 << 20
# Who finds the queue of new connections of a process full tries again after so long, then after twice as long ...
_FIRST_RETRY_S, _LAST_RETRY_S = 0.02, 1.0
# The kernels of both sides ask each other at this pace as long as nothing is said.
PROBE_S = 1
# A connection is not given up by the kernel: how long that may take is the session's to say.
MAX_PROBES = 127

ResultT = TypeVar("ResultT")


class Opening(Generic[ResultT]):
    """One connection during its handshake; on the I/O thread.

    Args:
        connection: the socket, fresh; it is this object's until `on_done` gets it.
        steps: what is to be said.
        tls: what the steps secure the connection with; None if they do not.
        on_done: takes the socket, no longer watched, and what the steps gave.
        on_failed: takes why it ended, and whether trying again is of no use. The socket is closed.
    """

    def __init__(
        self,
        loop: IoLoop,
        connection: socket.socket,
        steps: Steps[ResultT],
        tls: ssl.SSLContext | None,
        on_done: Callable[[socket.socket, ResultT], None],
        on_failed: Callable[[str, bool], None],
    ) -> None:
        _set_up(connection)
        self.connection = connection
        self._loop = loop
        self._steps = steps
        self._tls = tls
        self._on_done = on_done
        self._on_failed = on_failed
        self._wanted = 0
        self._got = b""
        self._open = True
        self._where = "its address"

    def accepted(self) -> None:
        """Begin on a connection that somebody made to us."""
        self._loop.register(self.connection.fileno(), READABLE, self._on_ready)
        self._guarded(lambda: self._run(next(self._steps)))

    def dialled(self, address: str | tuple[str, int], on_reached: Callable[[], None]) -> None:
        """Begin by connecting.

        Args:
            address: whereto.
            on_reached: called when the other machine has answered, or the other process is seen to be there.
        """
        self._connect(address, on_reached, _FIRST_RETRY_S)

    def _connect(
        self, address: str | tuple[str, int], on_reached: Callable[[], None], retry_s: float
    ) -> None:
        if isinstance(address, tuple):
            self._where = f"{address[0]}:{address[1]}"

        def reached() -> None:
            on_reached()
            self._run(next(self._steps))

        def finish_connect(_events: int) -> None:
            self._loop.unregister(self.connection.fileno())
            self._guarded(self._check_connected)
            if self._open:
                self._loop.register(self.connection.fileno(), READABLE, self._on_ready)
                self._guarded(reached)

        try:
            self.connection.connect(address)
        except BlockingIOError as error:
            if error.errno == errno.EAGAIN:
                # A Unix socket whose queue of new connections is full: its process is there, and gets to them later.
                on_reached()
                again = partial(self._connect_again, address, min(2 * retry_s, _LAST_RETRY_S))
                self._loop.call_later(retry_s, again)
                return
            self._loop.register(self.connection.fileno(), WRITABLE, finish_connect)
        except OSError as error:
            self._fail_connect(error)
        else:
            self._loop.register(self.connection.fileno(), READABLE, self._on_ready)
            self._guarded(reached)

    def _connect_again(self, address: str | tuple[str, int], retry_s: float) -> None:
        if self._open:
            self._connect(address, _nothing, retry_s)

    def _check_connected(self) -> None:
        code = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail_connect(OSError(code, ""))

    def _fail_connect(self, error: OSError) -> None:
        if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
            gone = f"its process has ended: nothing listens at {self._where} any more ({code_of(error)})"
            self.fail(gone, final=True)
        else:
            self.fail(f"it cannot be connected to ({code_of(error)})")

    def is_answered(self) -> bool:
        """Return whether the other machine has taken or refused the connection, noticed or not."""
        return bool(self._loop.ready_now((self.connection.fileno(),), WRITABLE))

    def fail(self, reason: str, *, final: bool = False) -> None:
        """End it, and say why; `final`: trying again is of no use."""
        if self._open:
            self.close()
            self._on_failed(reason, final)

    def close(self) -> None:
        """Drop it without a word."""
        if self._open:
            self._open = False
            self._loop.unregister(self.connection.fileno())
            self.connection.close()
            self._steps.close()

    def abandon(self) -> None:
        """Close the descriptor in a forked child."""
        self._open = False
        close_quietly(self.connection)

    def _on_ready(self, _events: int) -> None:
        self._guarded(self._go_on)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (BlockingIOError, ssl.SSLWantReadError, InterruptedError):
            return
        except ssl.SSLWantWriteError:
            self._loop.modify(self.connection.fileno(), READABLE | WRITABLE)
        except HandshakeError as error:
            self.fail(str(error), final=error.final)
        except StopIteration as end:
            self._finish(end.value)
        except ssl.SSLError as error:
            self.fail(f"TLS could not be agreed on ({error.reason or error})")
        except OSError as error:
            self.fail(f"its connection broke during the handshake ({code_of(error)})")

    def _go_on(self) -> None:
        while self._open:
            if self._wanted == 0 and isinstance(self.connection, ssl.SSLSocket):
                self.connection.do_handshake()
                self._loop.modify(self.connection.fileno(), READABLE)
                self._run(self._steps.send(b""))
                continue
            data = self.connection.recv(self._wanted - len(self._got))
            if not data:
                raise HandshakeError("its connection closed during the handshake")
            self._got += data
            if len(self._got) == self._wanted:
                got, self._got = self._got, b""
                self._run(self._steps.send(got))

    def _run(self, step: object) -> None:
        """Write until something is to be read."""
        while isinstance(step, bytes):
            if self.connection.send(step) < len(step):
                raise HandshakeError("it does not read what it is sent")
            step = self._steps.send(b"")
        if isinstance(step, int):
            self._wanted = step
        elif step is SECURE and self._tls is not None:
            self._wanted = 0
            # The descriptor stays the same, and watched.
            self.connection = self._tls.wrap_socket(
                self.connection,
                server_side=self._tls.protocol is ssl.PROTOCOL_TLS_SERVER,
                do_handshake_on_connect=False,
            )

    def _finish(self, result: ResultT) -> None:
        self._open = False
        self._loop.unregister(self.connection.fileno())
        self._on_done(self.connection, result)


def _set_up(connection: socket.socket) -> None:
    if connection.family == socket.AF_UNIX:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, UNIX_BUFFER_BYTES)
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, MAX_PROBES)


def code_of(error: OSError) -> str:
    """The short name of an error of the system's."""
    return errno.errorcode.get(error.errno or 0, str(error))


def _nothing() -> None:
    """The other is known to be there."""


def close_quietly(connection: socket.socket) -> None:
    """Close a socket that may be broken in any way."""
    with contextlib.suppress(OSError):
        connection.close()
