"""Durable channels that forget one rule each."""

from __future__ import annotations

from rlinf_scheduler.queueing import Resumption, ServerStreams, Stream
from simulator import Machines
from simulator.durable import SimulatedJournal


class _AnswersFirst(SimulatedJournal):
    """What happens is written when it was answered: the last of it is not there after a death."""

    def __init__(self):
        super().__init__()
        self._late = []

    def append(self, turn):
        for late in self._late:
            super().append(late)
        self._late = [turn]


class _BeginsToCountAnew(SimulatedJournal):
    """Leases have numbers again that others have had."""

    def write_whole(self, image, num_turns):
        ((record, payloads), *known), *rest = image
        super().write_whole((((record._replace(last_number=0), payloads), *known), *rest), num_turns)


class _ForgetsNumbers(ServerStreams):
    """What clients have said is not counted."""

    def apply(self, client, number, heard):
        known = client in self._streams
        if known:
            self._taken[client] = number
            self._streams[client].confirm(heard)
        return known


class _SaysNothingAgain(ServerStreams):
    def resume(self, client, heard, *, begun):
        resumption = super().resume(client, heard, begun=begun)
        return resumption and Resumption(resumption.heard, [])


class _BelievesTheLost(ServerStreams):
    """Who was given up, and all that it had begun undone, goes on as if nothing had been."""

    def resume(self, client, heard, *, begun):
        return super().resume(client, heard, begun=False)


class _KeepsNothing(Stream):
    def after(self, number):
        return []


DURABLE_MUTANTS = {
    "answers before it writes": Machines(journal=_AnswersFirst),
    "counts leases anew": Machines(journal=_BeginsToCountAnew),
    "forgets what clients have said": Machines(streams=_ForgetsNumbers),
    "says nothing again after a death": Machines(streams=_SaysNothingAgain),
    "believes a client that was given up": Machines(streams=_BelievesTheLost),
    "keeps nothing of what it has said": Machines(stream=_KeepsNothing),
}
