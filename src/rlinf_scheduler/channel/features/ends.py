"""Ends of queues and of the channel, and how long an end waits for items that are on their way to a slow consumer.

Nobody else may have these: a consumer that was only stopped takes them when it goes on. But the others need not wait
for that. If it dies instead, they come back to their queue, and are there for whoever asks.
"""

from __future__ import annotations

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.runtime import timer
from rlinf_scheduler.queueing.messages import Arrive, EndAll
from rlinf_scheduler.queueing.operations import Getter
from rlinf_scheduler.queueing.queue_set import QueueSet

logger = Reporter(__name__)

ARRIVAL_S = 30.0
LOOKS = 4


class EndsFeature:
    """The handlers of ends at one server. Once a queue has ended, it looks for what is on its way for too long.

    Attributes:
        since: since when each delivery is on its way, as far as it has looked; None as long as no queue has ended.
    """

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._state = server.state
        self.since: dict[tuple[str, int], float] | None = None
        self._timer: Timer | None = None
        server.handlers |= {
            control_wire.Close: self._end,
            control_wire.EndQueue: self._end,
        }
        server.on_stop.append(self._close)

    def _end(self, request: Request) -> None:
        self.begin()
        self._server.apply_request(request)

    def end_all(self) -> None:
        """End every queue."""
        self.begin()
        self._server.carry_out(self._state.apply(EndAll()))

    # -- on the way --------------------------------------------------------------------------------

    def begin(self, since: dict[tuple[str, int], float] | None = None) -> None:
        """Look from now on, for a queue has ended; `since` is what another server knew."""
        if self.since is None:
            self.since = since or {}
            self._server.on_delivery.append(self._look_later)  # perhaps of a queue that has ended
        self._look_later()

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = self._server.runtime.call_later(ARRIVAL_S / LOOKS, self._look)

    @timer("arrivals")
    def _look(self) -> None:
        now = self._server.runtime.now()
        since = self.since or {}
        self.since = {delivery: since.get(delivery, now) for delivery in on_the_way(self._state.queues)}
        for (client, ticket), began in self.since.items():
            if now - began >= ARRIVAL_S:
                logger.warning(
                    "channel '%s': an item is on its way to a consumer that has not answered for %.0f s; the end of "
                    "its queue does not wait for that",
                    self._server.spec.name,
                    now - began,
                )
                self._server.carry_out(self._state.apply(Arrive(ticket), client))
        self._timer = None
        if self.since:
            self._look_later()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def on_the_way(queues: QueueSet) -> list[tuple[str, int]]:
    """Return the deliveries for which the end of a queue waits, by client and ticket."""
    return [
        (client.name, operation.ticket)
        for client in queues.clients.values()
        for operation in client.operations.values()
        if isinstance(operation, Getter) and operation.queue.waits_for(operation, queues.closed)
    ]
