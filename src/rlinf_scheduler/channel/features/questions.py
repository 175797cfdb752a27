"""Questions. Without them an asker waits for a question that became a dead letter, or that it has given up."""

from __future__ import annotations

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.question import ANSWER, Unanswerable
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.comm.failure import sendable
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.queueing import Bury


class QuestionsFeature:
    """The handlers of questions at one server."""

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        server.handlers |= {control_wire.Retract: self._retract, Bury: self._tell_asker}

    def _retract(self, request: Request) -> None:
        message: control_wire.Retract = request.head
        self._server.tick()
        queue = wire.as_name(message.queue)
        self._server.carry_out(self._server.state.retract(request.peer_id, queue, message.number))
        request.reply(None)

    def _tell_asker(self, buried: Bury) -> None:
        """Nobody will answer a question."""
        known = self._server.clients.get(buried.client)
        if known is not None:
            reason = sendable(buried.reason)
            notice = Unanswerable(buried.ticket, buried.attempts, buried.consumer, reason)
            self._server.runtime.notify(known.endpoint, ANSWER, notice)
