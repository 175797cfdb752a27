"""A shortcut in a simulated world: what the kernel of one machine keeps between a user's thread and a server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from simulator.host import Host

# Mostly at once; sometimes long after what goes the usual way.
SLOW_SHARE = 0.3
SLOW_US = 5_000


class Way:
    """Two ends; what was sent can be read even if the sender has closed its own, not if the reader has.

    Args:
        client: the process whose thread uses it.
        server: the process at its other end.
        on_calls: called in the server when there is something to read, or nothing more will come.

    Attributes:
        calls: what the server has not read.
        answers: what the thread has not read.
        left: the thread has closed its end.
        broken: the server has closed its own.
        on_answers: called in the client when there is something to read, or nothing more will come.
    """

    def __init__(self, client: Host, server: Host, on_calls: Callable[[Way], None]) -> None:
        self.client = client.name
        self.calls: deque[Any] = deque()
        self.answers: deque[Any] = deque()
        self.left = self.broken = False
        self.on_answers: Callable[[Way], None] = _nobody
        self._on_calls = on_calls
        self._client = client
        self._server = server
        self._draw = client.world.randomness("way", client.name, server.name)

    def call(self, call: Any) -> None:
        """The thread sends."""
        if self.broken:
            self._client.later(0, self._read_answers)
        else:
            self.calls.append(call)
            self._server.later(self._delay_us(), self._on_calls, self)

    def answer(self, answer: Any) -> bool:
        """The server sends; False if nobody is there."""
        if self.left or self.broken:
            return False
        self.answers.append(answer)
        self._client.later(self._delay_us(), self._read_answers)
        return True

    def leave(self) -> None:
        """The thread, or its process, has gone."""
        if not self.left:
            self.left = True
            self.answers.clear()
            self._server.later(self._delay_us(), self._on_calls, self)

    def break_off(self) -> None:
        """The server, or its process, has closed it."""
        if not self.broken:
            self.broken = True
            self.calls.clear()
            self._client.later(self._delay_us(), self._read_answers)

    def _read_answers(self) -> None:
        self.on_answers(self)

    def _delay_us(self) -> int:
        slow = self._draw.random() < SLOW_SHARE
        return self._draw.randrange(SLOW_US if slow else 60)


def _nobody(_way: Way) -> None:
    return None
