"""Subscriptions whose last member has left. Without them each item goes to one consumer."""

from __future__ import annotations

from functools import partial

from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.runtime import timer
from rlinf_scheduler.queueing import Over, Tapped, Vacate
from rlinf_scheduler.queueing.taps import GiveUpTap, Taps

logger = Reporter(__name__)


class SubscriptionsFeature:
    """How long the last member of each subscription of one server may be succeeded."""

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._taps = server.state.policy(Taps)
        server.handlers[Vacate] = self._vacate

    def _vacate(self, vacated: Vacate) -> None:
        if vacated.failed:
            self._wait(vacated.name, vacated.vacancy)
        else:
            self._give_up(vacated.name, vacated.vacancy)

    def resume(self) -> None:
        """Wait for the successors that another server has waited for, or of those who read before a restart."""
        for name, vacancy in self._taps.vacant():
            self._wait(name, vacancy)

    def _wait(self, name: str, vacancy: int) -> None:
        self._server.runtime.call_later(self._server.spec.successor_s, partial(self._give_up, name, vacancy))

    @timer("subscription")
    def _give_up(self, name: str, vacancy: int) -> None:
        num_left = self._server.state.queues.num_items(Tapped(name))
        try:
            out = self._server.state.apply(GiveUpTap(name, vacancy))
        except Over:
            return  # somebody has succeeded its last member
        if num_left:
            logger.warning(
                "channel '%s': nobody reads subscription '%s' any more; %d items that it has not given out are dropped",
                self._server.spec.name,
                name,
                num_left,
            )
        self._server.carry_out(out)
