"""A connection that one thread uses by itself: what it waits for, it reads itself.

Usually the I/O thread reads everything and wakes who waits. Between two processes that ask and answer, those wakings
are half of the time. A thread that blocks often may have a connection of its own instead: to the other side it
looks like another process, with an id of its own and the same secret. If the thread is interrupted in the middle
(Ctrl-C), the connection is dropped, and the other side sees what it sees when a process dies.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.comm import framing
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.framing import Buffer, Message, ProtocolError, StreamReader
from rlinf.scheduler.comm.parcels import OFFER, SERVICE
from rlinf.scheduler.comm.transport.handshake import HandshakeError
from rlinf.scheduler.errors import CommError

if TYPE_CHECKING:
    from rlinf.scheduler.comm.messenger import Messenger

SOCKET_BUFFER_BYTES = 4 << 20
SCRATCH_BYTES = 64 << 10


class BlockingLink:
    """A connection to a process of this machine, for one thread at a time.

    Args:
        messenger: the process's messenger; the link has its name and its secret.
        peer: whom to connect to.
        timeout_s: how long connecting may take.

    Attributes:
        endpoint: what the other side knows it as.

    Raises:
        CommError: it cannot be connected.
    """

    def __init__(self, messenger: Messenger, peer: Endpoint, timeout_s: float) -> None:
        self._messenger = messenger
        self._peer = peer
        self.endpoint = Endpoint(secrets.token_hex(16), peer.machine_id, "", "")
        self._reader = StreamReader()
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._messages: list[Message] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(time.monotonic() + timeout_s)
        except (OSError, HandshakeError) as error:
            self._socket.close()
            message = f"no connection of its own for a thread: {error}"
            raise CommError(message) from error
        except BaseException:
            self._socket.close()
            raise

    def _connect(self, deadline: float) -> None:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        self._socket.connect(self._peer.unix_path)
        handshake = self._messenger.new_handshake()
        self._socket.sendall(handshake.begin())
        while handshake.wants_bytes:
            data = b""
            while len(data) < handshake.wants_bytes:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                part = self._socket.recv(handshake.wants_bytes - len(data))
                if not part:
                    raise HandshakeError("it closed the connection during the handshake")
                data += part
            self._socket.sendall(handshake.take(data))
        hello = framing.pack(framing.HELLO, 0, self._messenger.name, self.endpoint.to_wire())
        self._socket.sendall(b"".join(hello))

    def request(self, service: str, head: Any, timeout_s: float) -> Any:
        """Ask for something before anything else is under way; the head of the answer.

        Raises:
            CommError: no answer, or a failure.
        """
        self.send(framing.pack(framing.REQUEST, 1, service, head))
        deadline = time.monotonic() + timeout_s
        while True:
            message = self.receive(max(0.0, deadline - time.monotonic()))
            if message is None:
                raise CommError(f"no answer within {timeout_s:.1f} s")
            kind, _, _, answer, _ = message
            if kind == framing.FAIL:
                raise CommError(str(answer))
            if kind in (framing.REPLY, framing.REPLY_SETTLE):
                return answer

    def send(self, pieces: Sequence[Buffer]) -> None:
        """Send a small message: one that the other side's buffer takes at once, if it reads at all.

        Raises:
            CommError: the connection is gone, or the other side has long not read from it.
        """
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        try:
            sent = self._socket.send(data, socket.MSG_DONTWAIT)
        except OSError as error:
            raise CommError(f"the connection broke: {error}") from error
        if sent < len(data):
            raise CommError("the other side does not read")

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None after `timeout_s` seconds.

        Raises:
            CommError: the connection is gone.
        """
        while not self._messages:
            if not self._read(timeout_s):
                return None
            self._serve_itself()
        return self._messages.pop(0)

    def _read(self, timeout_s: float | None) -> bool:
        target = self._reader.target()
        try:
            if timeout_s != self._socket.gettimeout():
                self._socket.settimeout(timeout_s)
            count = self._socket.recv_into(self._scratch if target is None else target)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError as error:
            raise CommError(f"the connection broke: {error}") from error
        if count == 0:
            raise CommError("the connection closed")
        try:
            if target is None:
                self._reader.feed(self._scratch[:count], self._messages)
            else:
                self._reader.advance(count, self._messages)
        except ProtocolError as error:
            raise CommError(f"what came is no message: {error}") from error
        return True

    def _serve_itself(self) -> None:
        """Answer what every process answers."""
        messages, self._messages = self._messages, []
        for message in messages:
            kind, _, service, head, _ = message
            if kind == framing.NOTIFY and service == SERVICE:
                if head[0] == OFFER:
                    answer = self._messenger.parcels.answer(self._peer.process_id, head)
                    self.send(framing.pack(framing.NOTIFY, 0, SERVICE, answer))
            elif kind != framing.HELLO:
                self._messages.append(message)

    def shut(self) -> None:
        """End the connection from any thread: who waits on it is woken."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Close the connection; not while another thread waits on it."""
        self._socket.close()
