"""A message that a thread hands over to the I/O thread, and may write by itself while that thread sleeps."""

from __future__ import annotations

import socket
from itertools import repeat
from typing import Protocol

from rlinf.scheduler.comm.codec.interruptions import raised_by_signal_handler
from rlinf.scheduler.comm.framing import Buffer


class Writable(Protocol):
    """A connection, as its owner sees what another thread has written."""

    def note_written(self, message: HandedMessage) -> None:
        """A message was taken to be written here, and all that waited before it; on the I/O thread."""


class HandedMessage:
    """One message, written once: by the thread that hands it over, or by the I/O thread.

    Each of the two has one turn, and who takes it first writes. A thread takes its turn, writes and notes how much was
    written within one step of the interpreter: no signal handler comes in between.

    Args:
        pieces: the message.

    Attributes:
        pieces: see above.
        is_written: its thread was first; known once it is settled.
    """

    __slots__ = ("_counts", "_data", "_is_over", "_link", "_turns", "is_written", "pieces")

    def __init__(self, pieces: list[Buffer]) -> None:
        self.pieces = pieces
        self.is_written = False
        # The first one's is what `send` takes beside the bytes, the other's says that it came late.
        self._turns: list[int | None] = [None, socket.MSG_DONTWAIT]
        self._counts: list[int] = []
        self._is_over = False
        self._data = b""
        self._link: Writable | None = None

    def write(self, link: Writable, connection: socket.socket, data: bytes) -> bool:
        """Write `data`, which ends with the message, by the thread that hands it over, once; whether it did, wholly."""
        self._link, self._data = link, data
        sent = map(connection.send, repeat(data, 1), iter(self._turns.pop, None))
        try:
            try:
                self._counts.extend(sent)
            finally:
                self._is_over = True
        except OSError as error:  # full, or broken: the I/O thread goes on with it
            if raised_by_signal_handler(error):
                raise
        return self._counts == [len(data)]

    def settle(self) -> None:
        """The first act of what was handed over: nobody else writes it from here on; on the I/O thread, once."""
        if self._turns.pop() is None and self._link is not None:
            self.is_written = True
            self._link.note_written(self)

    def left(self) -> Buffer | None:
        """What its thread has not written of `data`; None while it is at it, for as long as one system call takes."""
        is_over = self._is_over  # read before the count: what is over has been counted
        if self._counts:
            return memoryview(self._data)[self._counts[0] :]
        return self._data if is_over else None
