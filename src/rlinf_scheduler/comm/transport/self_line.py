"""The line of a process to itself: no socket, but the same order, threads and independence of memory."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_scheduler.comm.framing import Buffer, Message, StreamReader


class SelfLine:
    """Hands a message to the I/O thread as if it had come from outside.

    The bytes pass through the same framing as everywhere, so that a receiver gets memory of its own and a
    head that looks the same (tuples have become lists) whoever the sender is.

    Args:
        submit: runs a callback on the I/O thread.
        deliver: takes the messages there.
    """

    transport = "self"

    def __init__(
        self, submit: Callable[[Callable[[], None]], None], deliver: Callable[[list[Message]], None]
    ) -> None:
        self._submit = submit
        self._deliver = deliver

    def send(self, pieces: list[Buffer], *, late: bool = False) -> None:
        """Deliver the pieces of a message in a later round."""
        messages: list[Message] = []
        reader = StreamReader()
        for piece in pieces:
            reader.feed(memoryview(piece), messages)
        self._submit(lambda: self._deliver(messages))

    def close(self) -> None:
        """Nothing is held."""

    def abandon(self) -> None:
        """Nothing is held."""
