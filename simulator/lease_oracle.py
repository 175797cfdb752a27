"""Items on lease as they must be, by what the server has heard and said."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.queueing.leases import OnLease
from simulator.queue_oracle import Known, QueueOracle, Ticket
from simulator.world import Violation

NOBODY: Ticket = ("", 0)


@dataclass(slots=True, eq=False)
class _Held:
    """What one consumer has, or (of NOBODY) what comes back after a delay."""

    ticket: Ticket
    queue: QueueOracle
    items: dict[int, Known]  # by their places in the delivery
    ends_us: int
    ttl_us: int = 0


class LeaseOracle:
    """The leases and dead letters of a channel.

    Args:
        max_attempts: how often an item is given out; 0 for any number.
        max_leased: how many items a client may have before its further leases wait; 0 for any number.

    Attributes:
        last_generation: of all leases and delays there were; no later one has this number.
    """

    def __init__(self, max_attempts: int, max_leased: int = 0) -> None:
        self._max_attempts = max_attempts
        self._max_leased = max_leased
        self._held: dict[int, _Held] = {}
        self.last_generation = 0
        self._to_delay: tuple[QueueOracle, list[Known]] | None = None
        # By number, and by where: a subscription has an item of its own of each number.
        self._dead: dict[tuple[int, QueueName], tuple[QueueOracle, Known]] = {}

    @property
    def dead_bytes(self) -> int:
        """The bytes of the dead letters."""
        return sum(item.size_bytes for _, item in self._dead.values())

    @property
    def dead(self) -> list[Known]:
        """The dead letters."""
        return [item for _, item in self._dead.values()]

    def of(self, client: str) -> list[int]:
        """Return the leases that a consumer has."""
        return [generation for generation, held in self._held.items() if held.ticket[0] == client]

    def items(self, without: Collection[int]) -> list[Known]:
        """What is on lease, or comes back after a delay, but for some leases."""
        kept = [held for generation, held in self._held.items() if generation not in without]
        return [item for held in kept for item in held.items.values()]

    def begin(
        self, ticket: Ticket, queue: QueueOracle, items: list[Known], lease: OnLease, ttl_us: int, now_us: int
    ) -> None:
        """Items are given out."""
        if lease.generation <= self.last_generation:
            raise Violation(f"lease {lease.generation} comes after {self.last_generation}", (ticket[1],))
        self.last_generation = lease.generation
        if self.is_at_bound(ticket[0]):
            raise Violation(f"{ticket[0]} is given more than {self._max_leased} items", (ticket[1],))
        for item in items:
            item.attempts += 1
            if 0 < self._max_attempts < item.attempts:
                raise Violation(f"item {item.number} is given out once more", (item.number,))
        if lease.attempts != [item.attempts for item in items]:
            raise Violation(f"{ticket} is told {lease.attempts} attempts", (ticket[1],))
        self._hold(lease.generation, _Held(ticket, queue, dict(enumerate(items)), now_us + ttl_us, ttl_us))

    def hear(self, client: str, generation: int, now_us: int) -> None:
        """A consumer is heard of."""
        held = self._of(client, generation)
        if held is not None:
            held.ends_us = max(held.ends_us, now_us + held.ttl_us)

    def is_at_bound(self, client: str) -> bool:
        """Whether a client has as many items on lease as it may."""
        if not self._max_leased:
            return False
        return self._max_leased <= sum(
            len(held.items) for held in self._held.values() if held.ticket[0] == client
        )

    def acknowledge(
        self, client: str, generation: int, places: Collection[int] | None = None, *, refused: bool
    ) -> None:
        """A consumer says that it has done with its items, and is told whether they were its own."""
        self._check(client, generation, refused=refused)
        for item in self._release(generation, places) if not refused else ():
            item.taken_by.append(client)

    def give_back(
        self,
        client: str,
        generation: int,
        places: Collection[int] | None = None,
        *,
        refused: bool,
        delayed: bool,
    ) -> None:
        """A consumer gives its items back."""
        self._check(client, generation, refused=refused)
        if not refused:
            self._return(generation, places, delayed=delayed)

    def lapse(self, generation: int, now_us: int) -> None:
        """The server thinks that the time of a lease, or of a delay, is over."""
        held = self._held.get(generation)
        if held is None or now_us < held.ends_us:
            raise Violation(f"lease {generation} ends before its time", (generation,))
        if held.ticket == NOBODY:
            self._restore(held.queue, self._release(generation))
        else:
            self._return(generation)

    def withdraw(self, ticket: Ticket) -> bool:
        """A delivery is withdrawn: no attempt; whether it was on lease."""
        for generation, held in list(self._held.items()):
            if held.ticket == ticket:
                items = self._release(generation)
                for item in items:
                    item.attempts -= 1
                self._restore(held.queue, items)
                return True
        return False

    def lose(self, client: str) -> None:
        """A client has gone."""
        for generation, held in list(self._held.items()):
            if held.ticket[0] == client:
                self._return(generation)

    def delay(self, generation: int, after_us: int, now_us: int) -> None:
        """What was given back last comes after a while."""
        if self._to_delay is None:
            raise Violation(f"the delay {generation} is of nothing", (generation,))
        self.last_generation = generation
        queue, items = self._to_delay
        self._to_delay = None
        self._hold(generation, _Held(NOBODY, queue, dict(enumerate(items)), now_us + after_us))

    def forget_dead(self, queue: QueueOracle) -> None:
        """A subscription is over: its dead letters are nobody's."""
        self._dead = {key: each for key, each in self._dead.items() if each[0] is not queue}

    def put_back(self, number: int, queue_name: QueueName) -> None:
        """A dead letter is put back."""
        queue, item = self._dig_up(number, queue_name)
        item.attempts = 0
        queue.restore(item)

    def discard(self, number: int, queue_name: QueueName) -> None:
        """A dead letter is dropped."""
        _, item = self._dig_up(number, queue_name)
        item.taken_by.append("nobody")

    def _dig_up(self, number: int, queue_name: QueueName) -> tuple[QueueOracle, Known]:
        queue, item = self._dead.pop((number, queue_name))
        queue.num_dead -= 1
        return queue, item

    def check_rest(self) -> None:
        """Check, when the world is at rest, that every lease has ended."""
        for generation, held in self._held.items():
            raise Violation(
                f"lease {generation} of {held.ticket[0]} never ends", (generation, held.ticket[1])
            )

    def _of(self, client: str, generation: int) -> _Held | None:
        held = self._held.get(generation)
        return held if held is not None and held.ticket[0] == client else None

    def _check(self, client: str, generation: int, *, refused: bool) -> None:
        if refused == (self._of(client, generation) is not None):
            word = "refused" if refused else "believed"
            raise Violation(f"{client} is {word} what it says of lease {generation}", (client, generation))

    def _hold(self, generation: int, held: _Held) -> None:
        self._held[generation] = held
        held.queue.num_leases += 1
        held.queue.num_leased += len(held.items)
        held.queue.leased_bytes += sum(item.size_bytes for item in held.items.values())

    def _release(self, generation: int, places: Collection[int] | None = None) -> list[Known]:
        held = self._held[generation]
        chosen = list(held.items) if places is None else [place for place in places if place in held.items]
        items = [held.items.pop(place) for place in chosen]
        held.queue.num_leased -= len(items)
        held.queue.leased_bytes -= sum(item.size_bytes for item in items)
        if not held.items:
            del self._held[generation]
            held.queue.num_leases -= 1
        return items

    def _return(
        self, generation: int, places: Collection[int] | None = None, *, delayed: bool = False
    ) -> None:
        """Items of a lease come back; this was an attempt."""
        queue = self._held[generation].queue
        living: list[Known] = []
        for item in self._release(generation, places):
            is_dead = 0 < self._max_attempts <= item.attempts and not item.is_gone
            if is_dead and not queue.gone:
                self._dead[item.number, item.queue] = (queue, item)
                queue.num_dead += 1
            else:
                living.append(item)
        if delayed and living:
            self._to_delay = (queue, living)
        else:
            self._restore(queue, living)

    @staticmethod
    def _restore(queue: QueueOracle, items: list[Known]) -> None:
        """They counted against the bounds all the time."""
        for item in items:
            queue.restore(item)
            if not item.is_gone:
                queue.num_returned -= 1
                queue.returned_bytes -= item.size_bytes
