"""Broken shortcuts of threads: what is done when, and what is said of what went by one."""

from __future__ import annotations

from product_mutants import Mutant

from rlinf_scheduler.channel import client, clients
from rlinf_scheduler.channel.clients import DirectOperations
from rlinf_scheduler.queueing.client import ClientState, SendOutcomeQuery, SendWithdraw
from rlinf_scheduler.queueing.messages import Accept, Reason, Refuse


class IgnoresWhatStandsBefore(DirectOperations):
    """What comes by a shortcut is done when it comes."""

    def arrive(self, way, ticket, operation, after):
        return super().arrive(way, ticket, operation, 0)


class CountsOneTooMany(DirectOperations):
    """A message is counted as read before it is."""

    def arrive(self, way, ticket, operation, after):
        return super().arrive(way, ticket, operation, after - 1)


class ForgetsTheEarly(DirectOperations):
    """What comes too early is never done."""

    def read(self):
        super().read()
        return []


class SaysAcceptedToEveryRecall(DirectOperations):
    """A put that nobody withdrew in time is held for accepted."""

    def query_outcome(self, client, ticket, state, read_all):
        out = super().query_outcome(client, ticket, state, read_all)
        return [Accept(client, ticket)] if out == [Refuse(client, ticket, Reason.CANCELLED, "")] else out


class ForgetsWhatItAccepted(DirectOperations):
    """A put that is recalled when its item is in the queue has put nothing."""

    def accept(self, ticket):
        return self.end(ticket)


class RecallsWithoutReading(DirectOperations):
    """What lies unread in a shortcut when it is recalled is done later."""

    def query_outcome(self, client, ticket, state, read_all):
        return super().query_outcome(client, ticket, state, lambda _client: None)


class SaysNothingToARecall(DirectOperations):
    """A recall is a withdrawal, which is not answered when it is too late."""

    def query_outcome(self, client, ticket, state, read_all):
        out = super().query_outcome(client, ticket, state, read_all)
        return [] if out == [Refuse(client, ticket, Reason.CANCELLED, "")] else out


class AnswersTheUsualWay(DirectOperations):
    """An answer goes as news, though a thread waits for it at its shortcut."""

    def accept(self, ticket):
        super().accept(ticket)


class KnowsNoDirectGets(ClientState):
    """What a thread gets by itself is its own business."""

    def direct(self, ticket, queue_name, *, is_get):
        if not is_get:
            super().direct(ticket, queue_name, is_get=is_get)


class WithdrawsInsteadOfRecalling(ClientState):
    """What went by a shortcut is withdrawn like anything else."""

    def _leave(self, ticket, ending):
        return [
            SendWithdraw(i.ticket) if type(i) is SendOutcomeQuery else i
            for i in super()._leave(ticket, ending)
        ]


def _server(direct):
    return Mutant(clients, "DirectOperations", lambda _whole: direct)


def _client(state):
    return Mutant(client, "ClientState", lambda _whole: state)


SHORTCUT_MUTANTS = {
    "ignores what stands before": _server(IgnoresWhatStandsBefore),
    "counts one too many": _server(CountsOneTooMany),
    "forgets the early": _server(ForgetsTheEarly),
    "says accepted to every recall": _server(SaysAcceptedToEveryRecall),
    "forgets what it accepted": _server(ForgetsWhatItAccepted),
    "recalls without reading": _server(RecallsWithoutReading),
    "says nothing to a recall": _server(SaysNothingToARecall),
    "answers the usual way": _server(AnswersTheUsualWay),
    "knows no direct gets": _client(KnowsNoDirectGets),
    "withdraws instead of recalling": _client(WithdrawsInsteadOfRecalling),
}
