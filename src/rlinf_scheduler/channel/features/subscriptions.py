"""Subscriptions. Without them each item goes to one consumer."""

from __future__ import annotations

from functools import partial

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.runtime import timer
from rlinf_scheduler.queueing import Tapped, TapTerms

logger = Reporter(__name__)

# Unless it is said, a subscription holds such a share of what its channel may hold.
SHARE = 4


class SubscriptionsFeature:
    """The handlers of subscriptions at one server, and how long the last member of one may be succeeded."""

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._state = server.state
        server.handlers |= {
            control_wire.Subscribe: self._subscribe,
            control_wire.Unsubscribe: self._unsubscribe,
        }
        server.on_lost.append(self.lose)

    def _subscribe(self, request: Request) -> None:
        message: control_wire.Subscribe = request.head
        queue = None if message.queue is None else wire.as_name(message.queue)
        max_bytes = self._max_bytes_of(message.name) if message.max_bytes is None else message.max_bytes
        terms = TapTerms(queue, message.maxsize, max_bytes)
        problem = self._state.subscribe(request.peer_id, message.number, message.name, terms)
        request.reply(control_wire.Joined(problem))

    def _unsubscribe(self, request: Request) -> None:
        message: control_wire.Unsubscribe = request.head
        vacancy = self._state.leave_subscription(request.peer_id, message.number, message.name)
        if vacancy is not None and message.failed:
            self._wait(message.name, vacancy)
        elif vacancy is not None:
            self._give_up(message.name, vacancy)
        request.reply(None)

    def _max_bytes_of(self, name: str) -> int:
        """What a member means that does not say it: what there is, for its share may be of another machine's memory."""
        known = self._state.terms_of(name)
        return -(-self._server.max_bytes // SHARE) if known is None else known.max_bytes

    def lose(self, client: str) -> None:
        """A client is gone."""
        for name, vacancy in self._state.lose_member(client):
            self._wait(name, vacancy)

    def resume(self) -> None:
        """Wait for the successors that another server has waited for, or of those who read before a restart."""
        for name, vacancy in self._state.vacant_subscriptions():
            self._wait(name, vacancy)

    def _wait(self, name: str, vacancy: int) -> None:
        self._server.runtime.call_later(self._server.spec.successor_s, partial(self._give_up, name, vacancy))

    @timer("subscription")
    def _give_up(self, name: str, vacancy: int) -> None:
        num_left = self._state.queues.num_items(Tapped(name))
        out = self._state.give_up_subscription(name, vacancy)
        if out is None:
            return
        if num_left:
            logger.warning(
                "channel '%s': nobody reads subscription '%s' any more; %d items that it has not given out are dropped",
                self._server.spec.name,
                name,
                num_left,
            )
        self._server.carry_out(out)
