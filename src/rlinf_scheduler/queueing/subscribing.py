"""Who reads which subscription of a channel, from its first member to its last."""

from __future__ import annotations

from rlinf_scheduler.queueing.instructions import Instruction
from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.queue_name import Tapped
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.tap_queue import TapQueue, TapTerms


class Subscribing(QueueSet):
    """Begins and ends the queues that see what enters others."""

    def subscribe(self, client: str, number: int, name: str, terms: TapTerms) -> str:
        """A client reads a subscription, which begins with its first member; why it cannot, empty if it does."""
        tap = self._taps.get(name)
        if tap is None:
            tap = self._tap(name, terms)
            self._begin(tap)
        elif tap.terms != terms:
            return f"there is a subscription {name!r} already: {tap.terms.describe()}"
        tap.members[client, number] = None
        return ""

    def leave_subscription(self, client: str, number: int, name: str) -> int | None:
        """A member reads no more; the number of the vacancy if it was the last one."""
        tap = self._taps.get(name)
        if tap is None or (client, number) not in tap.members:
            return None
        del tap.members[client, number]
        if tap.members:
            return None
        self._num_vacancies += 1
        tap.vacancy = self._num_vacancies
        return tap.vacancy

    def lose_member(self, client: str) -> list[tuple[str, int]]:
        """A client is gone: return the subscriptions that have no member now, each with the number of its vacancy."""
        members = [
            (name, each) for name, tap in self._taps.items() for each in tap.members if each[0] == client
        ]
        left = [(name, self.leave_subscription(*member, name)) for name, member in members]
        return [(name, vacancy) for name, vacancy in left if vacancy is not None]

    def vacant_subscriptions(self) -> list[tuple[str, int]]:
        """Return the subscriptions that have no member, each with the number of its vacancy."""
        return [(name, tap.vacancy) for name, tap in self._taps.items() if not tap.members]

    def give_up_subscription(self, name: str, vacancy: int) -> list[Instruction] | None:
        """Nobody is to succeed the last member of a subscription: it is gone; None if somebody has."""
        tap = self._taps.get(name)
        if tap is None or tap.members or tap.vacancy != vacancy:
            return None
        return self._remove_tap(tap)

    def terms_of(self, name: str) -> TapTerms | None:
        """Return what a subscription is; None if there is none of that name."""
        tap = self._taps.get(name)
        return None if tap is None else tap.terms

    def num_dropped(self, name: str) -> int:
        """Return how many items a subscription has given up."""
        tap = self._taps.get(name)
        return 0 if tap is None else tap.num_dropped

    def _tap(self, name: str, terms: TapTerms) -> TapQueue:
        tap = self.tap_type(name, terms, self._tally, lambda: self._seen_by(terms))
        tap.ended = self._all_ended or terms.queue_name in self._ended
        return tap

    def _begin(self, tap: TapQueue) -> None:
        self._taps[tap.subscription] = self._queues[tap.name] = tap
        self._look_at_taps(tap.terms)

    def _remove_tap(self, tap: TapQueue) -> list[Instruction]:
        del self._taps[tap.subscription], self._queues[tap.name]
        tap.remove()
        self._look_at_taps(tap.terms)
        return self._settled([tap])

    def _seen_by(self, terms: TapTerms) -> list[NamedQueue]:
        """The queues that a subscription sees, those that are there."""
        if terms.queue_name is None:
            return [queue for queue in self._queues.values() if type(queue.name) is not Tapped]
        queue = self._queues.get(terms.queue_name)
        return [] if queue is None else [queue]

    def _look_at_taps(self, terms: TapTerms) -> None:
        for queue in self._seen_by(terms):
            queue.taps = self._taps_of(queue.name)
