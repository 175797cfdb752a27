"""Broken machines: each forgets one rule of the protocol, as somebody might by mistake."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from admission_mutants import ADMISSION_MUTANTS
from checkpoint_mutants import CHECKPOINT_MUTANTS, MERGE_MUTANTS
from device_mutants import DEVICE_MUTANTS, ITEM_MUTANTS
from durable_mutants import DURABLE_MUTANTS
from feeding_mutants import FEEDING_MUTANTS, with_queue
from harder import (
    of_late_first_contacts,
    of_lost_servers,
    of_marks,
    of_ranks_that_produce,
    of_resizes,
    with_absences,
    with_bursts,
    with_looks,
    with_lost_nodes,
    with_members,
    with_pauses_of_the_server,
    with_slow_nodes,
    with_slow_takers,
)
from holder_mutants import HOLDER_MUTANTS, LOSS_MUTANTS
from lease_mutants import LEASE_MUTANTS
from mailbox_mutants import MAILBOX_MUTANTS
from pinning_mutants import PINNING_MUTANTS
from product_mutants import PRODUCT_MUTANTS
from resize_mutants import GROUP_PRODUCER_MUTANTS, RESIZE_MUTANTS
from shortcut_mutants import SHORTCUT_MUTANTS
from tap_mutants import TAP_MUTANTS
from weights_mutants import WEIGHTS_MUTANTS

from rlinf_scheduler.comm.transport.peer_session import PeerSession
from rlinf_scheduler.queueing.gate import Gate
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.state import ChannelState
from simulator import Machines, Report, Script, draw_script, run_script
from simulator.admission import AdmissionPart
from simulator.cluster import Part
from simulator.device_items import DeviceItemsPart
from simulator.devices import DevicePart
from simulator.mailbox import MailboxPart
from simulator.pinning import PinningPart
from simulator.run import PRODUCT

# -- the channel's server -------------------------------------------------------------------------


class ConfirmsWhatArrived(ChannelState):
    """Items are the client's as soon as they are in its process, taken or not."""

    def _arrive(self, arrive, client):
        return self.confirm(client, (arrive.ticket,))


class ForgetsTheDead(ChannelState):
    """What was in delivery to a dead client stays so."""

    def _lose(self, lose, client):
        return []


class IgnoresWithdrawalOfDelivered(ChannelState):
    """Withdrawing comes too late once items are under way."""

    def _withdraw(self, withdraw, client):
        is_delivered = self.queues.delivery(client, withdraw.ticket) is not None
        return [] if is_delivered else super()._withdraw(withdraw, client)


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

    def _let_enter(self, out):
        return not self.is_open and super()._let_enter(out)


class _StreamlessQueue(Queue):
    def may_push(self, client, size_bytes):
        return not self.putters and self.has_room(size_bytes)

    def _enter(self, putter, out):
        if putter.complete:
            self.push(putter.client, putter.ticket, putter.item, out)
        else:
            super()._enter(putter, out)


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


_MACHINES = {
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
    "acknowledges one too many": replace(Machines(), session=AcknowledgesOneTooMany),
    "drops what was under way": replace(Machines(), session=DropsWhatWasUnderWay),
    "sends again what arrived": replace(Machines(), session=SendsAgainWhatArrived),
    "gives up at the first cut": replace(Machines(), session=GivesUpAtTheFirstCut),
    "never gives up": replace(Machines(), session=NeverGivesUp),
}

_MAILBOXES = {
    "gives letters back to the tail": replace(Machines(), receiver=with_queue(_TailQueue)),
    "holds letters without end": replace(Machines(), receiver=with_queue(_BoundlessQueue)),
}


class BrokenMachine(NamedTuple):
    """A machine that is broken for the stories of the parts that run it."""

    machines: Machines
    parts: tuple[Callable[..., Part], ...]
    script: Callable[[int], Script] = draw_script

    def story(self, seed: int) -> Report:
        """The story of a seed, told by it."""
        return run_script(self.script(seed), self.machines, self.parts)

    def whole_story(self, seed: int) -> Report:
        """The same, told by what is not broken."""
        return run_script(self.script(seed), None, self.parts)


def _in(*parts, of):
    return {name: BrokenMachine(machines, parts) for name, machines in of.items()}


# These are rare in what is drawn for all.
_HARDER = {
    "believes every mark": of_marks,
    "delivers what is lost": with_lost_nodes,
    "forgets losses": with_lost_nodes,
    "loses what consumers have": with_lost_nodes,
    "tells everybody of a loss": with_lost_nodes,
    "tells nobody of a loss": with_lost_nodes,
    "tells no holder that it was given up": of_late_first_contacts,
    "shows what has not come yet": with_looks,
    "shows what it saw before": with_looks,
    "keeps items of a channel that is gone": of_lost_servers,
    "forgets claims": with_slow_nodes,
    "keeps the items of failed puts": with_slow_nodes,
    "lets items die with their producers": with_slow_nodes,
    "counts one too many": with_pauses_of_the_server,
    "ignores what stands before": with_pauses_of_the_server,
    "recalls without reading": with_pauses_of_the_server,
    "says accepted to every recall": with_pauses_of_the_server,
    "gives the items of a run to each other's gets": with_bursts,
    "lets a run pass those in line": with_bursts,
    "lets others pass a put that is not ready": with_bursts,
    "lets small puts pass": with_bursts,
    "believes a client that was given up": with_absences,
    "moves on before all is settled": with_slow_takers,
    "never moves on later": with_slow_takers,
    "forgets vacancies of subscriptions": with_members,
    "leaves readers of a subscription that is gone": with_members,
    **dict.fromkeys(RESIZE_MUTANTS, of_resizes),
    **dict.fromkeys(GROUP_PRODUCER_MUTANTS, of_ranks_that_produce),
}

MUTANTS = {
    **_in(*PRODUCT, of=_MACHINES | FEEDING_MUTANTS | HOLDER_MUTANTS | LEASE_MUTANTS),
    **_in(*PRODUCT, of=TAP_MUTANTS | CHECKPOINT_MUTANTS | RESIZE_MUTANTS | GROUP_PRODUCER_MUTANTS),
    **_in(MailboxPart, of=_MAILBOXES),
    **_in(AdmissionPart, of=ADMISSION_MUTANTS),
    **_in(DevicePart, DeviceItemsPart, of=DEVICE_MUTANTS),
    **_in(DeviceItemsPart, of=ITEM_MUTANTS),
    **_in(PinningPart, of=PINNING_MUTANTS),
    **PRODUCT_MUTANTS,
    **SHORTCUT_MUTANTS,
    **DURABLE_MUTANTS,
    **MERGE_MUTANTS,
    **LOSS_MUTANTS,
    **MAILBOX_MUTANTS,
    **WEIGHTS_MUTANTS,
}
MUTANTS |= {
    name: MUTANTS[name]._replace(script=lambda seed, change=change: change(draw_script(seed)))
    for name, change in _HARDER.items()
}
