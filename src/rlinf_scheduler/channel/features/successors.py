"""Places that are kept for successors: of producers that are counted, and of the last member of a subscription.

Without producers a channel ends when somebody says so; without subscriptions each item goes to one consumer.
"""

from __future__ import annotations

from functools import partial

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.features.ends import EndsFeature
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.runtime import timer
from rlinf_scheduler.queueing.item import SubscriptionName
from rlinf_scheduler.queueing.members import Resize
from rlinf_scheduler.queueing.policy import OperationOver
from rlinf_scheduler.queueing.producers import GroupProducers, ProducerPlaces, Producers
from rlinf_scheduler.queueing.surveying import QueueSurvey
from rlinf_scheduler.queueing.taps import GiveUpTap, Taps, Vacate

logger = Reporter(__name__)


class ProducersFeature:
    """The handlers of producers at one server, and the time that `queueing.Producers` does not know.

    Attributes:
        producers: those of the channel.
    """

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._spec = server.spec
        group = server.spec.producer_group
        self.producers = GroupProducers(group) if group else Producers(server.spec.producers)
        server.handlers |= {control_wire.Join: self._join, control_wire.Leave: self._leave}
        server.on_lost.append(self.lose)
        if server.spec.producers or group:
            server.describe_producers = self.producers.describe
        if group:
            server.handlers[Resize] = self._resize

    def _join(self, request: Request) -> None:
        join: control_wire.Join = request.head
        request.reply(control_wire.Done(self._why_refused(request.peer_id, join)))

    def _leave(self, request: Request) -> None:
        leave: control_wire.Leave = request.head
        vacancy = self.producers.leave(request.peer_id, leave.number, failed=leave.failed)
        self._after_leaving([] if vacancy is None else [vacancy])
        request.reply(None)

    def _resize(self, request: Request) -> None:
        self._after_leaving(self.producers.resize(request.head.members))
        self._server.apply_request(request)

    def lose(self, client: str) -> None:
        """A client is gone."""
        self._after_leaving(self.producers.lose(client))

    def resume(self, saved: ProducerPlaces) -> None:
        """Go on with what another server knew, and keep the places for successors that it has kept."""
        self.producers.resume(saved)
        for vacancy in self.producers.vacancies:
            self._server.runtime.call_later(self._spec.successor_s, partial(self._give_up, vacancy))

    def _why_refused(self, client: str, message: control_wire.Join) -> str:
        group = self._spec.producer_group
        if not self._spec.producers and not group:
            return "its producers are not counted; create it with producers=n"
        vacancies = [] if message.members is None else self.producers.resize(message.members)
        is_in = self.producers.join(client, message.number, message.name, message.members)
        self._after_leaving(vacancies)
        if is_in:
            return ""
        if group and message.members is None:
            return f"its producers are the ranks of '{group}', and '{message.name}' is none of them"
        return f"there is no place for another producer: {self.producers.describe()}"

    def _after_leaving(self, vacancies: list[int]) -> None:
        for vacancy in vacancies:
            self._server.runtime.call_later(self._spec.successor_s, partial(self._give_up, vacancy))
        if self.producers.over:
            self._server.feature(EndsFeature).end_all()

    @timer("producer")
    def _give_up(self, vacancy: int) -> None:
        name = self.producers.give_up(vacancy)
        if name is not None and not self._server.state.queues.closed:
            problem = "channel '%s': producer '%s' has had no successor for %g s, and counts as done: %s"
            logger.warning(problem, self._spec.name, name, self._spec.successor_s, self.producers.describe())
        self._after_leaving([])


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
        num_left = QueueSurvey(self._server.state).num_items(SubscriptionName(name))
        try:
            out = self._server.state.apply(GiveUpTap(name, vacancy))
        except OperationOver:
            return  # somebody has succeeded its last member
        if num_left:
            logger.warning(
                "channel '%s': nobody reads subscription '%s' any more; %d items that it has not given out are dropped",
                self._server.spec.name,
                name,
                num_left,
            )
        self._server.carry_out(out)
