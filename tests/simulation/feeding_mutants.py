"""Broken machines of what feeds consumers: ends, batches, priorities, bounds in bytes, shards, producers."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as replace_struct

from rlinf_scheduler.queueing.gate import Gate
from rlinf_scheduler.queueing.messages import EndQueue
from rlinf_scheduler.queueing.order import WeightedFifo
from rlinf_scheduler.queueing.out_of_turn import GroupIndex, QueueClock, RankedItems
from rlinf_scheduler.queueing.policies import POLICIES
from rlinf_scheduler.queueing.producers import Producers
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.sharding import Shardings, ShardingState
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.wanted import Wanted
from simulator import Machines


def with_queues(queues):
    """A server with another set of queues."""

    class WithQueues(ChannelState):
        queues_type = queues

    return WithQueues


def with_queue(queue):
    """A server whose queues are of another type."""

    class Queues(QueueSet):
        queue_type = queue

    return with_queues(Queues)


def with_policy(policy):
    """A server with another policy in the place of the one that it derives from."""

    class WithPolicy(ChannelState):
        policy_types = tuple(policy if issubclass(policy, each) else each for each in POLICIES)

    return WithPolicy


# -- ends -------------------------------------------------------------------------------------------


class TakesPutsAfterTheEnd(ChannelState):
    """Only getters are told that a queue has ended."""

    def apply(self, operation, client="", item=None):
        out = super().apply(operation, client, item)
        if isinstance(operation, EndQueue):
            self.queues.ended.pop(operation.queue, None)
        return out


class _EndsBeforeThePuts(Queue):
    """What waits for room when a queue ends does not count."""

    def is_last(self, closed):
        return closed or self.ended


class _EndsBeforeDeliveries(Queue):
    """What is on its way cannot come back."""

    def _hopeless(self, getter, closed):
        return self.why_over(closed) if self.is_last(closed) else super()._hopeless(getter, closed)


class _KeepsTheRest(Queue):
    """An end gives no batch that is not complete."""

    def _match_batch(self, getter, wanted, closed):
        return super()._match_batch(getter, wanted, False) if self.ended else None


class _FlushesNothing(Queue):
    """A flush is forgotten."""

    def flush(self):
        pass


class _FlushesForEver(Queue):
    """A flush concerns also what comes later."""

    def flush(self):
        self.flushed = 1 << 60


# -- batches ----------------------------------------------------------------------------------------


class _AlwaysComplete(Queue):
    """What is left is called complete."""

    def _match_batch(self, getter, wanted, closed):
        items = super()._match_batch(getter, wanted, closed)
        getter.complete = True
        return items


class _LimitsForgotten(Queue):
    """A batch has no bounds."""

    def _match_batch(self, getter, wanted, closed):
        limits = wanted.limits._replace(max_items=0, max_bytes=0)
        return super()._match_batch(getter, Wanted(wanted.weight, limits), closed)


class _OneMore(Queue):
    """A batch may have an item too many."""

    def _match_batch(self, getter, wanted, closed):
        max_items = wanted.limits.max_items
        limits = wanted.limits._replace(max_items=max_items and max_items + 1)
        return super()._match_batch(getter, Wanted(wanted.weight, limits), closed)


class NeverRipens(ChannelState):
    """How long a batch was to wait is forgotten."""

    def _linger(self, linger, client):
        return []


class _RipensAtOnce(Queue):
    """A batch that may wait does not."""

    def _match_batch(self, getter, wanted, closed):
        limits = wanted.limits
        waits = limits.max_wait_s is not None and self.fifo.num_items >= limits.min_items
        getter.waited = getter.waited or waits
        return super()._match_batch(getter, wanted, closed)


class _LeastForgotten(Queue):
    """A batch may have less than its least."""

    def _match_batch(self, getter, wanted, closed):
        limits = wanted.limits._replace(min_items=1)
        return super()._match_batch(getter, Wanted(wanted.weight, limits), closed)


class _WaitsThoughFull(Queue):
    """A full queue lets a batch wait for ever."""

    def is_stuck(self):
        return False


class _JoinsTheOversize(Queue):
    """An item that is more than a batch is to be is like any other."""

    def _match_batch(self, getter, wanted, closed):
        limits = wanted.limits._replace(oversize="")
        return super()._match_batch(getter, Wanted(wanted.weight, limits), closed)


# -- priorities -------------------------------------------------------------------------------------


class IgnoresPriorities(ChannelState):
    """Items come in their order."""

    def _put(self, put, client, item):
        item.priority = 0
        return super()._put(put, client, item)


class _Starving(RankedItems):
    """A lower one waits for all that are higher, however long."""

    def _next(self):
        clock, self._clock = self._clock, QueueClock()
        try:
            return super()._next()
        finally:
            self._clock = clock


class _OldestOfNine(RankedItems):
    """After eight that passed it, the oldest is next, though nobody has said for how long it may be passed over."""

    def __init__(self, clock):
        super().__init__(clock)
        self._passes = 0

    def _next(self):
        return self.oldest() if self._passes >= 8 else super()._next()

    def take(self):
        oldest, item = self.oldest(), super().take()
        self._passes = 0 if item.order == oldest else self._passes + 1
        return item


class _LatestOfItsPriority(RankedItems):
    def push(self, item):
        super().push(item)
        self._by_rank.sort(key=lambda entry: (entry[0], -entry[1]))


def _with_ranked(ranked_type):
    class Fifo(WeightedFifo):
        def _rank(self):
            self._ranked = ranked_type(self._clock)
            for item in self._items:
                self._ranked.push(item)
            self._items.clear()

    return _with_fifo(Fifo)


# -- groups -----------------------------------------------------------------------------------------


class _OneIsMissing(Queue):
    """A group is complete with one item less."""

    def _match_group(self, getter, wanted, closed):
        return super()._match_group(getter, replace_struct(wanted, size=wanted.size - 1), closed)


class _KeepsWhatIsLeftOfGroups(Queue):
    """An end gives no group that is not complete."""

    def _match_group(self, getter, wanted, closed):
        groups = self.fifo.groups
        complete = groups is not None and groups.first(wanted.size) is not None
        return super()._match_group(getter, wanted, closed) if complete else None


class _LatestGroup(GroupIndex):
    """The group that came last goes first."""

    def first(self, size):
        complete = [group for group, members in self._members.items() if len(members) >= size]
        return complete[-1] if complete else None


class _TakesOthers(WeightedFifo):
    """A group is taken from the head, whatever stands there."""

    def take_group(self, group, size):
        return [self.take() for _ in self.groups.members(group, size)]


class _WithLatestGroup(WeightedFifo):
    def push(self, item):
        if self.groups is None:
            self.groups = _LatestGroup()
        super().push(item)


def _with_fifo(fifo_type):
    class WithFifo(Queue):
        def __init__(self, *args):
            super().__init__(*args)
            self.fifo = fifo_type(self.tally.clock)

    return with_queue(WithFifo)


# -- bounds in bytes --------------------------------------------------------------------------------


def _with_gate(gate):
    class WithGate(Queue):
        gate_type = gate

    return with_queue(WithGate)


class _HoldsWithoutEnd(Gate):
    """Only the items of a channel are bounded."""

    def _has_room_in_channel(self, queue, size_bytes):
        return True


class _WaitsForOthers(Gate):
    """What somebody waits for waits for what nobody takes."""

    def _has_room_in_channel(self, queue, size_bytes):
        held = queue.tally.held_bytes - queue.counted_bytes + queue.held_bytes
        return not held or held + size_bytes <= queue.tally.max_bytes


class _RelievesNobody(QueueSet):
    """Puts do not hear of room in other queues."""

    def relieve(self, out):
        return False


# -- shards -----------------------------------------------------------------------------------------


def with_sharding(sharding):
    """A server whose queues are divided in another way."""

    class WithSharding(Shardings):
        sharding_type = sharding

    return with_policy(WithSharding)


class _ForgetsWhatWasInHand(ShardingState):
    """What a rank had when it died is lost."""

    def ask(self, getter, done_step):
        self.shard(getter.shard).in_hand = None
        return super().ask(getter, done_step)


class _KeepsWhatWasDone(ShardingState):
    """A rank gets the step again that it has done with."""

    def ask(self, getter, done_step):
        return super().ask(getter, done_step - 1)


class _DropsEmptyParts(ShardingState):
    """A rank without items has no batch."""

    def cut(self, items, complete):
        super().cut(items, complete)
        for shard in self.members:
            if not shard.parts[-1].items:
                shard.parts.pop()


class _HoldsNobodyUp(ShardingState):
    """Ranks may lag as far as they like."""

    @property
    def may_cut(self):
        return True


class _DealsFromTheFirst(ShardingState):
    """Each step is dealt from shard 0 on."""

    def cut(self, items, complete):
        self.num_dealt = 0
        super().cut(items, complete)


class _FirstComeKeepsIt(ShardingState):
    """Who waits keeps the shard, and the later one is told that it has lost it."""

    def ask(self, getter, done_step):
        earlier = super().ask(getter, done_step)
        if earlier is not None:
            self.shard(getter.shard).waiting = earlier
            return getter
        return None


class _TellsOneOfTheEnd(ShardingState):
    """Who has no part when the queue has ended is told so, though others still have some to come."""

    def _why_no_part(self, queue, closed):
        return queue.why_over(closed) if queue.ended else super()._why_no_part(queue, closed)


# -- producers --------------------------------------------------------------------------------------


class CountsTheFailedAsDone(Producers):
    """Nobody waits for successors."""

    def leave(self, client, number, *, failed):
        return super().leave(client, number, failed=False)


class WaitsForTheDeadForEver(Producers):
    """Who failed, and has no successor, is waited for."""

    def give_up(self, vacancy):
        pass


class EndsWithTheFirst(Producers):
    """One that is done is enough."""

    @property
    def over(self):
        return self.places.num_done > 0


class ForgetsTheDeadProducer(Producers):
    """Who died has left its place, and nobody can take it."""

    def lose(self, client):
        return []


class GivesUpSuccessors(Producers):
    """The time of a vacancy ends also that of whoever has filled it."""

    def give_up(self, vacancy):
        super().give_up(next(iter(self.places.vacant), vacancy))


def _server(queue_type):
    return replace(Machines(), server=with_queue(queue_type))


FEEDING_MUTANTS = {
    "takes puts after the end": replace(Machines(), server=TakesPutsAfterTheEnd),
    "ends before the puts that wait": _server(_EndsBeforeThePuts),
    "ends before deliveries arrive": _server(_EndsBeforeDeliveries),
    "keeps the rest at the end": _server(_KeepsTheRest),
    "flushes nothing": _server(_FlushesNothing),
    "flushes for ever": _server(_FlushesForEver),
    "calls every batch complete": _server(_AlwaysComplete),
    "forgets the bounds of a batch": _server(_LimitsForgotten),
    "gives a batch one more": _server(_OneMore),
    "never lets a batch ripen": replace(Machines(), server=NeverRipens),
    "lets a batch ripen at once": _server(_RipensAtOnce),
    "forgets the least of a batch": _server(_LeastForgotten),
    "lets a batch wait though the queue is full": _server(_WaitsThoughFull),
    "joins what is oversize": _server(_JoinsTheOversize),
    "ignores priorities": replace(Machines(), server=IgnoresPriorities),
    "lets low priorities starve": replace(Machines(), server=_with_ranked(_Starving)),
    "gives the oldest its turn though none is overdue": replace(
        Machines(), server=_with_ranked(_OldestOfNine)
    ),
    "takes the latest of a priority": replace(Machines(), server=_with_ranked(_LatestOfItsPriority)),
    "misses one of a group": _server(_OneIsMissing),
    "keeps what is left of groups": _server(_KeepsWhatIsLeftOfGroups),
    "gives the latest group": replace(Machines(), server=_with_fifo(_WithLatestGroup)),
    "takes what stands before a group": replace(Machines(), server=_with_fifo(_TakesOthers)),
    "holds bytes without end": replace(Machines(), server=_with_gate(_HoldsWithoutEnd)),
    "lets the awaited wait for others": replace(Machines(), server=_with_gate(_WaitsForOthers)),
    "relieves nobody": replace(Machines(), server=with_queues(_RelievesNobody)),
    "forgets what a rank had in hand": replace(Machines(), server=with_sharding(_ForgetsWhatWasInHand)),
    "gives a rank its step again": replace(Machines(), server=with_sharding(_KeepsWhatWasDone)),
    "drops empty parts": replace(Machines(), server=with_sharding(_DropsEmptyParts)),
    "holds nobody up": replace(Machines(), server=with_sharding(_HoldsNobodyUp)),
    "deals from the first": replace(Machines(), server=with_sharding(_DealsFromTheFirst)),
    "leaves a shard to the first": replace(Machines(), server=with_sharding(_FirstComeKeepsIt)),
    "tells one rank of the end": replace(Machines(), server=with_sharding(_TellsOneOfTheEnd)),
    "counts failed producers as done": replace(Machines(), producers=CountsTheFailedAsDone),
    "waits for dead producers": replace(Machines(), producers=WaitsForTheDeadForEver),
    "ends with the first producer": replace(Machines(), producers=EndsWithTheFirst),
    "forgets dead producers": replace(Machines(), producers=ForgetsTheDeadProducer),
    "gives successors up": replace(Machines(), producers=GivesUpSuccessors),
}
