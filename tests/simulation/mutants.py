"""Broken machines: each forgets one rule of the protocol, as somebody might by mistake."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from admission_mutants import ADMISSION_MUTANTS
from checkpoint_mutants import CHECKPOINT_MUTANTS
from device_mutants import DEVICE_MUTANTS, ITEM_MUTANTS
from durable_mutants import DURABLE_MUTANTS
from feeding_mutants import FEEDING_MUTANTS, with_queue
from holder_mutants import HOLDER_MUTANTS
from lease_mutants import LEASE_MUTANTS
from pinning_mutants import PINNING_MUTANTS
from tap_mutants import TAP_MUTANTS

from rlinf_scheduler.comm.replication.publication import Publication
from rlinf_scheduler.comm.transport.peer_session import PeerSession
from rlinf_scheduler.queueing import Accept, ChannelState, DirectOperations, Reason, Refuse
from rlinf_scheduler.queueing.client import ClientState, End, Ending, SendOutcomeQuery, SendWithdraw
from rlinf_scheduler.queueing.gate import Gate
from rlinf_scheduler.queueing.queue import Queue
from simulator import Machines

# -- the channel's server -------------------------------------------------------------------------


class ConfirmsWhatArrived(ChannelState):
    """Items are the client's as soon as they are in its process, taken or not."""

    def arrive(self, client, ticket):
        return self.confirm(client, ticket)


class ForgetsTheDead(ChannelState):
    """What was in delivery to a dead client stays so."""

    def lose(self, client, taken=()):
        return []


class IgnoresWithdrawalOfDelivered(ChannelState):
    """Withdrawing comes too late once items are under way."""

    def withdraw(self, client, ticket):
        return [] if self.deliver_again(client, ticket) else super().withdraw(client, ticket)


class _TailQueue(Queue):
    def give_back(self, getters):
        for getter in getters:
            self.confirm(getter)
            for item in getter.items:
                self.fifo.push(item)


class _LatestFirstQueue(Queue):
    def _serve(self, closed, out):
        if self.getters:
            self.getters.move_to_end(next(reversed(self.getters)), last=False)
        super()._serve(closed, out)


class _RoomyQueue(Queue):
    def has_room(self, size_bytes):
        return super().has_room(size_bytes) or len(self.fifo) + self.reserved <= self.gate.maxsize


class _HandsToTheLatestQueue(Queue):
    def _hand_over(self, client, puts, out):
        self.getters.move_to_end(next(reversed(self.getters)), last=False)
        return super()._hand_over(client, puts, out)


class _Boundless(Gate):
    def free(self, queue):
        return math.inf, math.inf


class _BoundlessQueue(Queue):
    gate_type = _Boundless


class _OvertakingQueue(Queue):
    def put_run(self, client, puts, out):
        if self.putters and not self.getters and self.held_bytes:
            return self._push_run(client, puts, out)
        return super().put_run(client, puts, out)


class _ForgetfulQueue(Queue):
    """Gets of a run let no put enter."""

    def _admit(self, out):
        return not self.is_open and super()._admit(out)


class _StreamlessQueue(Queue):
    def may_push(self, client, size_bytes):
        return not self.putters and self.has_room(size_bytes)

    def _enter(self, putter, out):
        if putter.complete:
            self.push(putter.client, putter.ticket, putter.item, out)
        else:
            super()._enter(putter, out)


# -- the client's side ----------------------------------------------------------------------------


class ForgetsToWithdraw(ClientState):
    """An expired operation is over here; the server is not told."""

    def expire(self, ticket):
        return [
            End(ticket, Ending.TIMED_OUT) if type(i) is SendWithdraw else i for i in super().expire(ticket)
        ]


class TakesWhatItWithdrew(ClientState):
    """Items that come after all are welcome."""

    def delivered(self, ticket, items):
        operation = self._operations.get(ticket)
        if operation is not None:
            operation.phase = type(operation.phase).SENT
        return super().delivered(ticket, items)


class SpendsWithoutEnd(ClientState):
    """Credit is not looked at."""

    def __init__(self, credit_bytes=0):
        super().__init__(1 << 60)


class ForgetsToRepay(ClientState):
    """A refused put keeps its credit."""

    def refused(self, ticket, detail, *, withdrawn=False):
        operation = self._operations.get(ticket)
        if operation is not None and operation.phase.name == "SENT":
            operation.inline_bytes = 0
        return super().refused(ticket, detail, withdrawn=withdrawn)


class LetsSmallPutsPass(ClientState):
    """What carries no bytes need not stand behind what is held."""

    def put(self, ticket, queue_name, inline_bytes):
        return super().put(ticket, queue_name if inline_bytes else (queue_name, "announced"), inline_bytes)


# -- shortcuts --------------------------------------------------------------------------------------


class IgnoresWhatStandsBefore(DirectOperations):
    """What comes by a shortcut is done when it comes."""

    def arrive(self, way, ticket, operation, after):
        return super().arrive(way, ticket, operation, 0)


class CountsOneTooMany(DirectOperations):
    """A message is counted as read before it is."""

    def __init__(self):
        super().__init__()
        self._num_read = 1


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
        return [] if is_get else super().direct(ticket, queue_name, is_get=is_get)


class WithdrawsInsteadOfRecalling(ClientState):
    """What went by a shortcut is withdrawn like anything else."""

    def _leave(self, ticket, ending):
        return [
            SendWithdraw(i.ticket) if type(i) is SendOutcomeQuery else i
            for i in super()._leave(ticket, ending)
        ]


# -- the session ----------------------------------------------------------------------------------


class AcknowledgesOneTooMany(PeerSession):
    """Counts from the wrong end."""

    def acknowledgement(self):
        number = super().acknowledgement()
        return None if number is None else number + 1


class DropsWhatWasUnderWay(PeerSession):
    """What was written on a connection that is cut has gone."""

    def _drop_connection(self, *args):
        self._written.clear()
        super()._drop_connection(*args)


class SendsAgainWhatArrived(PeerSession):
    """After a cut everything that is not acknowledged is sent again."""

    def _begin(self, received, now):
        super()._begin(self.sent, now)


class GivesUpAtTheFirstCut(PeerSession):
    """A cut is a death."""

    def cut(self, now, why):
        super().cut(now, why)
        self.left(why)


class NeverGivesUp(PeerSession):
    """Whoever cannot be reached may come back one day."""

    def dial_failed(self, now, why, *, ended=False):
        super().dial_failed(now, why, ended=False)

    def _grace_ends(self, since):
        return super()._grace_ends(since) + 3600


# -- who gets weights from where --------------------------------------------------------------------


class NeverForgetsAReplica(Publication):
    """A replica stays one, whatever became of it."""

    def lost(self, process_id):
        return []


class ForgetsWhoWaits(Publication):
    """Who waits for the replica of its machine waits for ever."""

    def kept(self, process_id):
        instructions = super().kept(process_id)
        return None if instructions is None else []


class CountsCopiesForEver(Publication):
    """Who has given it to two machines gives it to no other, though they have it."""

    def _change_copies(self, source, by):
        super()._change_copies(source, max(by, 0))


class LeavesWhoCopiedFromTheLost(Publication):
    """Nobody is looked for in place of who was to copy from a replica that is gone."""

    def is_copying(self, _process_id):
        return False


MUTANTS = {
    **ADMISSION_MUTANTS,
    **DEVICE_MUTANTS,
    **ITEM_MUTANTS,
    **PINNING_MUTANTS,
    **DURABLE_MUTANTS,
    **FEEDING_MUTANTS,
    **HOLDER_MUTANTS,
    **LEASE_MUTANTS,
    **TAP_MUTANTS,
    **CHECKPOINT_MUTANTS,
    "never forgets a replica": replace(
        Machines(), publication=partial(NeverForgetsAReplica, replicated=True)
    ),
    "forgets who waits": replace(Machines(), publication=partial(ForgetsWhoWaits, replicated=True)),
    "counts copies for ever": replace(Machines(), publication=partial(CountsCopiesForEver, replicated=True)),
    "leaves who copied from the lost": replace(
        Machines(), publication=partial(LeavesWhoCopiedFromTheLost, replicated=True)
    ),
    "confirms what arrived": replace(Machines(), server=ConfirmsWhatArrived),
    "forgets the dead": replace(Machines(), server=ForgetsTheDead),
    "ignores the withdrawal of what was delivered": replace(Machines(), server=IgnoresWithdrawalOfDelivered),
    "gives back to the tail": replace(Machines(), server=with_queue(_TailQueue)),
    "serves the latest getter first": replace(Machines(), server=with_queue(_LatestFirstQueue)),
    "hands an item to the latest getter": replace(Machines(), server=with_queue(_HandsToTheLatestQueue)),
    "looks at no bound for a run": replace(Machines(), server=with_queue(_BoundlessQueue)),
    "lets a run pass those in line": replace(Machines(), server=with_queue(_OvertakingQueue)),
    "lets nobody enter after a run of gets": replace(Machines(), server=with_queue(_ForgetfulQueue)),
    "admits one too many": replace(Machines(), server=with_queue(_RoomyQueue)),
    "lets puts overtake an announced one": replace(Machines(), server=with_queue(_StreamlessQueue)),
    "gives letters back to the tail": replace(Machines(), receiver=partial(with_queue(_TailQueue), 0)),
    "holds letters without end": replace(Machines(), receiver=lambda _max_bytes: ChannelState()),
    "forgets to withdraw": replace(Machines(), client=ForgetsToWithdraw),
    "takes what it withdrew": replace(Machines(), client=TakesWhatItWithdrew),
    "spends without end": replace(Machines(), client=SpendsWithoutEnd),
    "forgets to repay": replace(Machines(), client=ForgetsToRepay),
    "lets small puts pass": replace(Machines(), client=LetsSmallPutsPass),
    "ignores what stands before": replace(Machines(), direct=IgnoresWhatStandsBefore),
    "counts one too many": replace(Machines(), direct=CountsOneTooMany),
    "forgets the early": replace(Machines(), direct=ForgetsTheEarly),
    "says accepted to every recall": replace(Machines(), direct=SaysAcceptedToEveryRecall),
    "forgets what it accepted": replace(Machines(), direct=ForgetsWhatItAccepted),
    "recalls without reading": replace(Machines(), direct=RecallsWithoutReading),
    "says nothing to a recall": replace(Machines(), direct=SaysNothingToARecall),
    "answers the usual way": replace(Machines(), direct=AnswersTheUsualWay),
    "knows no direct gets": replace(Machines(), client=KnowsNoDirectGets),
    "withdraws instead of recalling": replace(Machines(), client=WithdrawsInsteadOfRecalling),
    "acknowledges one too many": replace(Machines(), session=AcknowledgesOneTooMany),
    "drops what was under way": replace(Machines(), session=DropsWhatWasUnderWay),
    "sends again what arrived": replace(Machines(), session=SendsAgainWhatArrived),
    "gives up at the first cut": replace(Machines(), session=GivesUpAtTheFirstCut),
    "never gives up": replace(Machines(), session=NeverGivesUp),
}
