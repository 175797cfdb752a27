"""Broken machines of subscriptions."""

from __future__ import annotations

from dataclasses import replace

from feeding_mutants import with_policy, with_queue, with_queues

from rlinf_scheduler.queueing.operations import Getter
from rlinf_scheduler.queueing.policy import OperationOver
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.taps import GiveUpTap, TapQueue, Taps
from simulator import Machines


class _ShowsWhatWasThere(Taps):
    """A subscription also sees what was accepted before it began."""

    def subscribe(self, wanted, client):
        is_new = wanted.name not in self._taps
        out = super().subscribe(wanted, client)
        tap = self._taps[wanted.name]
        for queue in self.seen_by(tap.terms) if is_new else ():
            for item in queue.fifo.first(1 << 30):
                tap.see(item)
        return out


class _BelievesEveryMark(QueueSet):
    """What a subscriber has marked counts as taken by a consumer that died."""

    def deliveries(self, client):
        known = self.clients.get(client)
        operations = known.operations.values() if known else ()
        return [
            (each.ticket, each.items)
            for each in operations
            if isinstance(each, Getter) and each.items is not None and each.is_confirmed
        ]


class _EndsWithItsFirstMember(Taps):
    """Whoever leaves a subscription takes it along."""

    def _leave(self, client, number, name, *, failed):
        tap = self._taps.get(name)
        if tap is not None and (client, number) in tap.read.members:
            tap.read.members = {(client, number): None}
        return super()._leave(client, number, name, failed=failed)


class _NeverEnds(Taps):
    """A subscription that nobody reads stays."""

    def give_up(self, left, client=""):
        raise OperationOver


class _ForgetsVacancies(Taps):
    """A successor that leaves has no more time to be succeeded than the one before had left."""

    def give_up(self, left, client=""):
        tap = self._taps.get(left.name)
        return super().give_up(GiveUpTap(left.name, left.vacancy if tap is None else tap.read.vacancy))


class _OverlooksAnnounced(Queue):
    """What was announced is not shown."""

    def fill(self, putter, out):
        taps, self.followers = self.followers, ()
        super().fill(putter, out)
        self.followers = taps


class _LeavesReadersWaiting(Queue):
    """Who waits for a subscription is not told that something came."""

    def touch_followers(self):
        pass


class _ShowsWhatComesBack(Queue):
    """What is given back is shown again."""

    def give_back(self, getters):
        getters = list(getters)
        for tap in self.followers:
            for getter in getters:
                for item in getter.items or ():
                    tap.see(item)
        super().give_back(getters)


class _SeesTwice(TapQueue):
    """Each item is seen twice."""

    def see(self, item):
        super().see(item)
        super().see(item)


class _KeepsAll(TapQueue):
    """One that is full holds more than its bound."""

    def _is_over(self):
        return False


class _HoldsUpPuts(Queue):
    """Puts wait for a subscription that is full."""

    def has_room(self, size_bytes):
        return super().has_room(size_bytes) and not any(
            0 < tap.terms.maxsize <= tap.num_held for tap in self.followers
        )


class _GivesUpTheNewest(TapQueue):
    """A full one does not look at what comes."""

    def see(self, item):
        if not 0 < self.terms.maxsize <= self.num_held:
            super().see(item)
        else:
            self.read.num_dropped += 1


class _CountsNothing(TapQueue):
    """What was given up is not counted."""

    def see(self, item):
        super().see(item)
        self.read.num_dropped = 0


class _EndsBeforeWhatItSees(TapQueue):
    """It ends though puts still wait for room in the queue that has ended."""

    def is_last(self, closed):
        return closed or self.ended


class _KeepsWhatComesBack(TapQueue):
    """Readers of one that is gone wait on."""

    def remove(self):
        pass


def _state(state_type):
    return replace(Machines(), server=state_type)


def _taps(taps):
    return replace(Machines(), server=with_policy(taps))


def _queue(queue_type):
    return replace(Machines(), server=with_queue(queue_type))


def _tap(tap):
    class WithTap(Taps):
        tap_type = tap

    return _taps(WithTap)


TAP_MUTANTS = {
    "shows a subscription what was there": _taps(_ShowsWhatWasThere),
    "believes every mark": _state(with_queues(_BelievesEveryMark)),
    "ends a subscription with its first member": _taps(_EndsWithItsFirstMember),
    "never ends a subscription": _taps(_NeverEnds),
    "forgets vacancies of subscriptions": _taps(_ForgetsVacancies),
    "does not show what was announced": _queue(_OverlooksAnnounced),
    "leaves readers of a subscription waiting": _queue(_LeavesReadersWaiting),
    "shows a subscription what comes back": _queue(_ShowsWhatComesBack),
    "sees each item twice": _tap(_SeesTwice),
    "keeps more than the bound of a subscription": _tap(_KeepsAll),
    "lets puts wait for a subscription": _queue(_HoldsUpPuts),
    "gives up the newest": _tap(_GivesUpTheNewest),
    "does not count what it gives up": _tap(_CountsNothing),
    "ends a subscription before what it sees": _tap(_EndsBeforeWhatItSees),
    "leaves readers of a subscription that is gone": _tap(_KeepsWhatComesBack),
}
