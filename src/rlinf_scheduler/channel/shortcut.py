"""A shortcut: a thread's own socket to a channel's process, for operations that block.

The usual way of an operation leads over the I/O threads of two processes and through the lock that its caller waits
for. A thread that does nothing else meanwhile may as well write to the server and read its answer itself. A shortcut
has no protocol of its own to be broken by an interruption: one datagram goes, one comes, each by a single system call.
Whoever is interrupted in between drops the socket, and the I/O thread asks the server what became of the operation.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

import msgspec

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.comm.codec.interruptions import raised_by_signal_handler
from rlinf_scheduler.comm.forking import on_fork_in_child
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import SLICE_S, Promise

# Larger calls and answers go the usual way. The kernel takes datagrams up to its default size of a buffer, 208 KiB.
MAX_DATAGRAM_BYTES = 160 << 10
# Items up to here travel in it: two copies more cost less than a block of shared memory.
DIRECT_BYTES = 128 << 10
# The first operations of a thread go the usual way: it may not stay.
MIN_OPERATIONS = 4
# After an answer that came elsewhere, so many gets go the usual way at once.
NUM_SKIPPED = 15
# The server's first word: only then anything is sent that would have to be found again.
WELCOME = b"welcome"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(wire.DirectAnswer).decode


class ShortcutBroken(Exception):
    """The other side has closed it, or has said what cannot be."""


class OwnedSocket(socket.socket):
    """A datagram socket of this machine that closes without a warning when nobody has it any more.

    A thread that ends, or is interrupted, just drops its own; the other side sees that.
    """

    def __init__(self, fileno: int | None = None) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=fileno)
        self.setblocking(False)
        _owned.add(self)
        on_fork_in_child(_close_inherited)

    def __del__(self) -> None:
        self.close()


_owned: WeakSet[OwnedSocket] = WeakSet()


def _close_inherited() -> None:
    """In a forked child: the parent's go on, and whoever is at their other ends sees when it closes them."""
    for connection in list(_owned):
        connection.close()


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

    def is_welcome(self) -> bool:
        """Whether the server's first word is here and is what it should be; from the I/O thread."""
        with suppress(OSError):
            return self._connection.recv(len(WELCOME), socket.MSG_DONTWAIT) == WELCOME
        return False

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
        connection: the socket.
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


class ShortcutRequest:
    """A thread's request for a shortcut to its I/O thread.

    Attributes:
        num_operations: how often it would have been of use.
        shortcut: it, when it is there.
    """

    __slots__ = ("__weakref__", "num_operations", "shortcut")

    def __init__(self) -> None:
        self.num_operations = 0
        self.shortcut: Shortcut | None = None


def dial(invitation: control_wire.Invitation) -> Shortcut | None:
    """Follow an invitation; None if nobody is there. Never blocks."""
    connection = OwnedSocket()
    try:
        connection.connect(invitation.path)
        connection.send(invitation.token)
    except OSError:
        return None
    return Shortcut(connection)


class ShortcutOpening:
    """Opens shortcuts. On the I/O thread only.

    Args:
        messenger: this process's.
        invite: asks the server where it takes one.
    """

    def __init__(self, messenger: Messenger, invite: Callable[[], Promise[Reply]]) -> None:
        self._messenger = messenger
        self._invite = invite
        self._is_over = False
        self._open: WeakSet[Shortcut] = WeakSet()

    def begin(self, request: ShortcutRequest) -> None:
        """Get a shortcut for a thread, unless what arrives here is held back: nothing would be on its way past that."""
        if self._is_over or self._messenger.arrivals is not None:
            return
        self._invite().add_done_callback(partial(self._on_invited, request))

    def end(self) -> None:
        """The server is gone: break all of them, and open no more."""
        self._is_over = True
        for shortcut in list(self._open):
            shortcut.end()

    def _on_invited(self, request: ShortcutRequest, reply: Promise[Reply]) -> None:
        if self._is_over or reply.exception() is not None or not reply.result().head.path:
            return
        shortcut = dial(reply.result().head)
        if shortcut is not None:
            self._open.add(shortcut)
            # It hears the server's first word, or its end, soon.
            self._messenger.watch(shortcut.fileno(), partial(self._on_welcome, shortcut, request))

    def _on_welcome(self, shortcut: Shortcut, request: ShortcutRequest) -> None:
        self._messenger.unwatch(shortcut.fileno())
        if shortcut.is_welcome():
            request.shortcut = shortcut


def encode_call(after: int, operation: wire.Put | wire.Get, frames: list[Any]) -> bytes:
    """The datagram of an operation: what `after` counts, see `wire.Direct`."""
    return _encode(wire.Direct(after, operation, frames))
