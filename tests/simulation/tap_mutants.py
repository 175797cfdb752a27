"""Broken machines of subscriptions."""

from __future__ import annotations

from dataclasses import replace

from feeding_mutants import with_queue

from rlinf.testing.simulation import Machines
from rlinf_scheduler.queueing import ChannelState
from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.operations import Getter
from rlinf_scheduler.queueing.tap_queue import TapQueue


class _ShowsWhatWasThere(ChannelState):
    """A subscription also sees what was accepted before it began."""

    def subscribe(self, client, number, name, terms):
        is_new = name not in self._taps
        problem = super().subscribe(client, number, name, terms)
        for queue in self._seen_by(terms) if is_new else ():
            for item in queue.fifo.first(1 << 30):
                self._taps[name].see(item)
        return problem


class _BelievesEveryMark(ChannelState):
    """What a subscriber has marked counts as taken by a consumer that died."""

    def deliveries(self, client):
        known = self._clients.get(client)
        operations = known.operations.values() if known else ()
        return [
            (each.ticket, each.items)
            for each in operations
            if isinstance(each, Getter) and each.items is not None and each.lease is None
        ]


class _EndsWithItsFirstMember(ChannelState):
    """Whoever leaves a subscription takes it along."""

    def leave_subscription(self, client, number, name):
        tap = self._taps.get(name)
        if tap is not None and (client, number) in tap.members:
            tap.members.clear()
            tap.members[client, number] = None
        return super().leave_subscription(client, number, name)


class _NeverEnds(ChannelState):
    """A subscription that nobody reads stays."""

    def give_up_subscription(self, name, vacancy):
        return None


class _ForgetsVacancies(ChannelState):
    """A successor that leaves has no more time to be succeeded than the one before had left."""

    def give_up_subscription(self, name, vacancy):
        tap = self._taps.get(name)
        return super().give_up_subscription(name, tap.vacancy if tap is not None else vacancy)


class _OverlooksAnnounced(NamedQueue):
    """What was announced is not shown."""

    def fill(self, putter, out):
        taps, self.taps = self.taps, ()
        super().fill(putter, out)
        self.taps = taps


class _LeavesReadersWaiting(NamedQueue):
    """Who waits for a subscription is not told that something came."""

    def touch_taps(self):
        pass


class _ShowsWhatComesBack(NamedQueue):
    """What is given back is shown again."""

    def give_back(self, getters):
        getters = list(getters)
        for tap in self.taps:
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


class _HoldsUpPuts(NamedQueue):
    """Puts wait for a subscription that is full."""

    def has_room(self, size_bytes):
        return super().has_room(size_bytes) and not any(0 < tap.maxsize <= tap.num_held for tap in self.taps)


class _GivesUpTheNewest(TapQueue):
    """A full one does not look at what comes."""

    def see(self, item):
        if not 0 < self.maxsize <= self.num_held:
            super().see(item)
        else:
            self.num_dropped += 1


class _CountsNothing(TapQueue):
    """What was given up is not counted."""

    def see(self, item):
        super().see(item)
        self.num_dropped = 0


class _EndsBeforeWhatItSees(TapQueue):
    """It ends though puts still wait for room in the queue that has ended."""

    def _is_last(self, closed):
        return closed or self.ended


class _KeepsWhatComesBack(TapQueue):
    """Readers of one that is gone wait on."""

    def remove(self):
        pass


def _state(state_type):
    return replace(Machines(), server=state_type)


def _queue(queue_type):
    return replace(Machines(), server=with_queue(queue_type))


def _tap(tap_type):
    class WithTap(ChannelState):
        pass

    WithTap.tap_type = tap_type
    return replace(Machines(), server=WithTap)


TAP_MUTANTS = {
    "shows a subscription what was there": _state(_ShowsWhatWasThere),
    "believes every mark": _state(_BelievesEveryMark),
    "ends a subscription with its first member": _state(_EndsWithItsFirstMember),
    "never ends a subscription": _state(_NeverEnds),
    "forgets vacancies of subscriptions": _state(_ForgetsVacancies),
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
