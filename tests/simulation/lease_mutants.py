"""Broken machines of leases."""

from __future__ import annotations

from dataclasses import replace

from feeding_mutants import with_policy, with_queue, with_sharding

from rlinf_scheduler.queueing.leases import Leases
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.sharding import ShardingState
from simulator import Machines


def _with_leases(leases):
    return replace(Machines(), server=with_policy(leases))


class _TakesLateWords(Leases):
    """Whoever speaks too late means the lease that is there now."""

    def find(self, client, generation):
        return super().find(client, generation) or next(
            (lease for lease in self._open.values() if lease.getter is not None), None
        )


class _LosesWhatLapses(Leases):
    """What a hung consumer had is gone."""

    def _lapse(self, lease, out):
        self._acknowledge(lease, None, out)


class _NeverLapses(Leases):
    """A consumer that hangs has its items for ever."""

    def lapse(self, lapse, client=""):
        return []


class _NeverExtends(Leases):
    """A lease lasts as long as in the beginning, whoever lives."""

    def extend(self, extend, client):
        self._find(client, extend.generation)
        return []


class _KeepsLeasesOfTheDead(Leases):
    """The death of a consumer is nothing to its leases."""

    def give_up(self, getter, out):
        pass


class _CountsWhatNobodyHad(Leases):
    """Every delivery is an attempt, wanted or not."""

    def take_back(self, getter, out):
        for item in self._open[getter.generation].items.values():
            item.attempts += 1
        super().take_back(getter, out)


class _GivesOutForEver(Leases):
    """Nothing is ever a dead letter."""

    def _give_back(self, lease, places, out, *, reason, delay_s=0):
        most, self.max_attempts = self.max_attempts, 0
        super()._give_back(lease, places, out, reason=reason, delay_s=delay_s)
        self.max_attempts = most


class _ReturnsToTheTail(Leases):
    """What comes back stands behind what is there."""

    def _give_back(self, lease, places, out, *, reason, delay_s=0):
        for item in lease.items.values():
            item.order = lease.queue.fifo.num_entered
            lease.queue.fifo.num_entered += 1
        super()._give_back(lease, places, out, reason=reason, delay_s=delay_s)


class _IgnoresDelays(Leases):
    """What is to come later comes at once."""

    def _give_back(self, lease, places, out, *, reason, delay_s=0):
        super()._give_back(lease, places, out, reason=reason)


class _NumbersThemAnew(Leases):
    """The next lease has the number of one that is over."""

    def _add(self, queue, items):
        free = next(number for number in range(1, 1 << 30) if number not in self._open)
        self._queues.last_number = free - 1
        return super()._add(queue, items)


class _ForgetsLeasesInBounds(Queue):
    """What is on lease takes no room."""

    def has_room(self, size_bytes):
        lent, self.lent_items = self.lent_items, 0
        try:
            return super().has_room(size_bytes)
        finally:
            self.lent_items = lent


class _EndsBeforeLeases(Queue):
    """What is on lease cannot come back."""

    def may_come_back(self):
        return self.on_the_way > 0


class _KnowsNoBound(Leases):
    """A consumer has as many items on lease as it likes."""

    def is_at_bound(self, client):
        return False


class _SettlesAllForOne(Leases):
    """Who settles one item of a lease has settled all of them."""

    def _chosen(self, lease, places):
        return list(lease.items)


class _PassesOverForEver(Leases):
    """Who had enough on lease is not served any more."""

    def _serve_again(self, consumer):
        pass


class _LetsAllWaitForOne(Queue):
    """Others wait for a consumer that has enough on lease."""

    def _serve(self, closed, out):
        first = next(iter(self.getters), None)
        if first is None or first.may_have_more:
            super()._serve(closed, out)


class _ForgetsThatAPartIsDone(ShardingState):
    """What a rank has acknowledged comes to its successor."""

    def finish(self, index):
        pass


def _server(queue_type):
    return replace(Machines(), server=with_queue(queue_type))


LEASE_MUTANTS = {
    "takes late words": _with_leases(_TakesLateWords),
    "loses what lapses": _with_leases(_LosesWhatLapses),
    "never lets a lease lapse": _with_leases(_NeverLapses),
    "never extends a lease": _with_leases(_NeverExtends),
    "keeps the leases of the dead": _with_leases(_KeepsLeasesOfTheDead),
    "counts what nobody had as an attempt": _with_leases(_CountsWhatNobodyHad),
    "gives an item out for ever": _with_leases(_GivesOutForEver),
    "returns items to the tail": _with_leases(_ReturnsToTheTail),
    "ignores delays": _with_leases(_IgnoresDelays),
    "numbers leases anew": _with_leases(_NumbersThemAnew),
    "forgets leases in its bounds": _server(_ForgetsLeasesInBounds),
    "ends before leases do": _server(_EndsBeforeLeases),
    "knows no bound of leases": _with_leases(_KnowsNoBound),
    "settles all for one": _with_leases(_SettlesAllForOne),
    "passes over for ever": _with_leases(_PassesOverForEver),
    "lets all wait for one that has enough": _server(_LetsAllWaitForOne),
    "forgets that a part is done with": replace(Machines(), server=with_sharding(_ForgetsThatAPartIsDone)),
}
