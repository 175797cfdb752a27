"""Broken machines of items that stay on their nodes: what is lost, who is told, what a holder keeps."""

from __future__ import annotations

from dataclasses import replace

from feeding_mutants import with_queue
from product_mutants import Mutant

from rlinf_scheduler.channel.node_holder import HeldItemTable
from rlinf_scheduler.queueing.order import WeightedFifo
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.state import ChannelState
from simulator import Machines


class ForgetsLosses(ChannelState):
    """What is lost stays where it was."""

    def lose_items(self, why):
        return []


class LosesWhatConsumersHave(ChannelState):
    """What was given out is lost at once."""

    def lose_items(self, why):
        for client in self.queues.clients.values():
            for operation in list(client.operations.values()):
                items = getattr(operation, "items", None) or ()
                lost = [item for item in items if why(item.payload)]
                if lost and operation.counts:
                    self.queues.tally.num_lost += len(lost)
        return super().lose_items(why)


class DeliversWhatIsLost(ChannelState):
    """A delivery that cannot be fetched is sent again, whatever became of its items."""

    def _resend(self, resend, client):
        getter = self.queues.delivery(client, resend.ticket)
        for item in getter.items if getter is not None else ():
            item.lost = ""
        return super()._resend(resend, client)


def _tells_nobody(_tell_first_of_lost):
    """Who comes next gets what is left."""
    return lambda queue, out: queue.lost.clear()


def _tells_everybody(told):
    """A loss is told to every getter."""

    def tell_again(queue, getter):
        lost = queue.lost
        out = told(queue, getter)
        queue.lost = lost
        return out

    return tell_again


class _TakesBackWhatIsLost(WeightedFifo):
    def restore(self, items):
        for item in items:
            item.lost = ""
        super().restore(items)


class _TakesBackQueue(Queue):
    """What comes back is there, whatever became of its bytes."""

    def __init__(self, *args):
        super().__init__(*args)
        self.fifo = _TakesBackWhatIsLost()


class ForgetsClaims(HeldItemTable):
    """An item is its producer's, whoever has claimed it."""

    def claim(self, keeper, numbers):
        pass


class DiesWithProducers(HeldItemTable):
    """What a dead producer handed over goes at once."""

    def lose(self, process):
        self.expire(super().lose(process))
        return []


class NeverReleases(HeldItemTable):
    """What was held once is held for ever."""

    def release(self, keeper, numbers):
        pass


class OutlivesTheChannel(HeldItemTable):
    """The end of a channel is nothing to its items."""

    def lose(self, process):
        kept = {number: each for number, each in self._items.items() if each.keeper == process}
        out = super().lose(process)
        self._items.update(kept)
        return out


class KeepsFailedPuts(HeldItemTable):
    """Whether a put came to anything does not matter."""

    def drop(self, producer, number):
        pass


def _server(server):
    return replace(Machines(), server=server)


def _holder(oracle):
    return replace(Machines(), holder=oracle)


HOLDER_MUTANTS = {
    "forgets losses": _server(ForgetsLosses),
    "loses what consumers have": _server(LosesWhatConsumersHave),
    "delivers what is lost": _server(DeliversWhatIsLost),
    "takes back what is lost": _server(with_queue(_TakesBackQueue)),
    "forgets claims": _holder(ForgetsClaims),
    "lets items die with their producers": _holder(DiesWithProducers),
    "never releases a held item": _holder(NeverReleases),
    "keeps items of a channel that is gone": _holder(OutlivesTheChannel),
    "keeps the items of failed puts": _holder(KeepsFailedPuts),
}

LOSS_MUTANTS = {
    "tells nobody of a loss": Mutant(Queue, "_tell_first_of_lost", _tells_nobody),
    "tells everybody of a loss": Mutant(Queue, "_refused_for_lost", _tells_everybody),
}
