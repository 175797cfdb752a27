"""Questions. Without them an asker waits for a question that became a dead letter."""

from __future__ import annotations

from rlinf_scheduler.channel.question import ANSWER, Unanswerable
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.comm.failure import sendable
from rlinf_scheduler.queueing import Bury


class QuestionsFeature:
    """The handlers of questions at one server."""

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        server.handlers[Bury] = self._tell_asker

    def _tell_asker(self, buried: Bury) -> None:
        """Nobody will answer a question."""
        known = self._server.clients.get(buried.client)
        if known is not None:
            reason = sendable(buried.reason)
            notice = Unanswerable(buried.ticket, buried.attempts, buried.consumer, reason)
            self._server.runtime.notify(known.endpoint, ANSWER, notice)
