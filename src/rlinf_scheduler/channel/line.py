"""What leads from a process to the server of a channel. On the I/O thread only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.spec import ChannelRef
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ChannelLost


class ServerLine(Protocol):
    """How a client's shell talks to its server."""

    def begin(self, on_news: Callable[[Request], None], on_lost: Callable[[ChannelLost], None]) -> None:
        """Hear news from now on; `on_lost` is called if the server is found to be gone for good."""

    def tell(self, message: wire.EncodedOperations, frames: Sequence[Buffer]) -> None:
        """Send operations; nobody changes the frames any more. What raises has said nothing."""

    def ask(
        self, message: control_wire.Control, timeout_s: float | None = None, reply_type: Any = Any
    ) -> Promise[Reply]:
        """Send a request; the promise of the reply, which fails as `Messenger.request`'s."""

    def end(self) -> None:
        """Hear nothing any more."""

    @property
    def condition(self) -> str:
        """Why nothing comes through it now, in a phrase; "" if nothing is known to be wrong."""


class DirectLine:
    """Leads to the process that holds the channel, as long as that lives.

    Args:
        messenger: this process's messenger.
        ref: the channel.
    """

    condition = ""

    def __init__(self, messenger: Messenger, ref: ChannelRef) -> None:
        self._messenger = messenger
        self._server = ref.endpoint
        self._operations = wire.service(ref.spec.channel_id, wire.OPERATIONS)
        self._control = wire.service(ref.spec.channel_id, wire.CONTROL)
        self._news = wire.service(ref.spec.channel_id, wire.NEWS)

    def begin(self, on_news: Callable[[Request], None], _on_lost: Callable[[ChannelLost], None]) -> None:
        """See `ServerLine`; whoever owns the line hears of lost peers."""
        self._messenger.unserve(self._news)
        self._messenger.serve(self._news, on_news, wire.News)

    def tell(self, message: wire.EncodedOperations, frames: Sequence[Buffer]) -> None:
        """See `ServerLine`."""
        self._messenger.notify(self._server, self._operations, message, frames, snapshot=False)

    def ask(
        self, message: control_wire.Control, timeout_s: float | None = None, reply_type: Any = Any
    ) -> Promise[Reply]:
        """See `ServerLine`."""
        return self._messenger.request(
            self._server, self._control, message, timeout_s=timeout_s, reply_type=reply_type
        )

    def end(self) -> None:
        """See `ServerLine`."""
        self._messenger.unserve(self._news)
