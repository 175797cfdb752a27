"""One of a channel's producers, as long as a `with` block lasts."""

from __future__ import annotations

import itertools
from contextlib import suppress

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.errors import ChannelArgumentError, ChannelError, CommError

_next_number = itertools.count(1).__next__


class Producer:
    """A place among the producers of a channel that counts them; left as done when the block ends without an error.

    Whoever is interrupted, also on the way in or out, drops the object, and so leaves the place as one who failed.
    """

    def __init__(self, connection: ChannelConnection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._number = _next_number()
        self._is_in = False

    def __enter__(self) -> Producer:
        """Take a place.

        Raises:
            ChannelArgumentError: the channel does not count its producers, or all have come.
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        self._is_in = True
        joined = self._connection.ask(control_wire.Join(self._number, self._name), control_wire.Joined)
        if joined.problem:
            raise ChannelArgumentError(self._connection.ref.spec.name, joined.problem)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._connection.finish_puts("producer", None)
            self._connection.ask(control_wire.Leave(self._number, False))
            self._is_in = False
            return
        with suppress(ChannelError):  # what has failed is more important
            self._connection.ask(control_wire.Leave(self._number, True))

    def __del__(self) -> None:
        if self._is_in:
            with suppress(CommError):  # a forked child has none of its parent's places
                self._connection.tell(control_wire.Leave(self._number, True))
