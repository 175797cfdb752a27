"""A shortcut: a thread's own socket to a channel's process, for operations that block.

The usual way of an operation leads over the I/O threads of two processes and through the lock that its caller waits
for. A thread that does nothing else meanwhile may as well write to the server and read its answer itself. A shortcut
has no protocol of its own to be broken by an interruption: one datagram goes, one comes, each by a single system call.
Whoever is interrupted in between drops the socket, and the I/O thread asks the server what became of the operation.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Any

import msgspec

from rlinf_scheduler.channel import wire
from rlinf_scheduler.comm.codec.interruptions import raised_by_signal_handler
from rlinf_scheduler.comm.promise import SLICE_S

# Larger calls and answers go the usual way. The kernel takes datagrams up to its default size of a buffer, 208 KiB.
MAX_DATAGRAM_BYTES = 160 << 10
# Items up to here travel in it: two copies more cost less than a block of shared memory.
DIRECT_BYTES = 128 << 10
# After an answer that came elsewhere, so many gets go the usual way at once.
NUM_SKIPPED = 15

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(wire.DirectAnswer).decode


class ShortcutBroken(Exception):
    """The other side has closed it, or has said what cannot be."""


class Shortcut:
    """One end of it, in the hands of one thread at a time.

    Args:
        connection: a connected datagram socket on which the server knows this process.

    Attributes:
        skips: so many gets are still to go the usual way.
    """

    __slots__ = ("__weakref__", "_connection", "_memory", "_timeout_s", "skips")

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(SLICE_S), 0))
        self._connection = connection
        self._timeout_s: float | None = None
        self._memory = memoryview(bytearray(MAX_DATAGRAM_BYTES))
        self.skips = 0

    def exchange(self, call: bytes, ticket: int, timeout_s: float | None) -> wire.DirectAnswer:
        """Send a call and wait for its answer.

        Args:
            call: the datagram.
            ticket: of its operation.
            timeout_s: how long to wait, in seconds.

        Raises:
            TimeoutError: there is no answer yet.
            ShortcutBroken: there will be none.
        """
        connection = self._connection
        if timeout_s != self._timeout_s:
            # Zero would mean not to wait at all.
            connection.settimeout(timeout_s if timeout_s is None else max(timeout_s, 0.001))
            self._timeout_s = timeout_s
        try:
            connection.send(call)
            count = self._receive()
            answer = _decode(self._memory[:count])
        except (OSError, msgspec.DecodeError) as error:
            if isinstance(error, TimeoutError) or raised_by_signal_handler(error):
                raise
            raise ShortcutBroken(repr(error)) from error
        if answer.answer.ticket != ticket:
            message = f"it answered {answer.answer.ticket} instead of {ticket}"
            raise ShortcutBroken(message)
        return answer

    def _receive(self) -> int:
        while True:
            try:
                return self._connection.recv_into(self._memory)
            except BlockingIOError as error:  # a slice is over
                if self._timeout_s is not None or raised_by_signal_handler(error):
                    raise

    def first_word(self, size_bytes: int) -> bytes:
        """What the server has said before anything was sent; from the I/O thread."""
        with suppress(OSError):
            return self._connection.recv(size_bytes, socket.MSG_DONTWAIT)
        return b""

    def fileno(self) -> int:
        """Its descriptor."""
        return self._connection.fileno()

    def end(self) -> None:
        """End the wait of its thread: nothing will come; from any thread."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class ShortcutEnd:
    """The server's end of one thread's shortcut.

    Attributes:
        client: the process whose thread it is.
    """

    __slots__ = ("client", "connection")

    def __init__(self, client: str, connection: socket.socket) -> None:
        self.client = client
        self.connection = connection

    def answer(self, answer: wire.DirectAnswer) -> bool:
        """Send an answer; False if it does not go this way."""
        datagram = _encode(answer)
        return len(datagram) <= MAX_DATAGRAM_BYTES and is_sent(self.connection, datagram)


def is_sent(connection: socket.socket, datagram: bytes) -> bool:
    """Send a datagram; False if its reader is gone, or has not read an earlier one."""
    try:
        connection.send(datagram)
    except OSError:
        return False
    return True


def encode_call(after: int, operation: wire.Put | wire.AnyGet, frames: list[Any]) -> bytes:
    """The datagram of an operation: what `after` counts, see `wire.Direct`."""
    return _encode(wire.Direct(after, operation, frames))
