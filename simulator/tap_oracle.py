"""What a subscription must hold, by what its server has heard and said."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy

from rlinf_scheduler.queueing.taps import TapTerms
from simulator.queue_oracle import Known, QueueOracle
from simulator.script import TAP
from simulator.world import Violation


class TapOracle(QueueOracle):
    """The queue of one subscription, from its first member to its end.

    Args:
        terms: what it is.
        sources: returns the queues that it sees.

    Attributes:
        members: who reads it, by client and number.
        until_us: how long the last member may be succeeded.
        num_dropped: how many it gave up.
        seen: every item that entered it, by number.
    """

    def __init__(self, terms: TapTerms, sources: Callable[[], Iterable[QueueOracle]]) -> None:
        super().__init__()
        self.terms = terms
        self.members: set[tuple[str, int]] = set()
        self.until_us = 0
        self.num_dropped = 0
        self.seen: dict[int, Known] = {}
        self._sources = sources

    def leave(self, members: set[tuple[str, int]], until_us: int) -> None:
        """Members read it no more."""
        if self.members & members:
            self.members -= members
            self.until_us = until_us

    def see(self, item: Known) -> None:
        """An item has entered a queue."""
        twin = copy(item)
        twin.queue = TAP
        twin.order, twin.attempts, twin.taken_by = -1, 0, []
        self.seen[item.number] = twin
        self.push(twin)
        while self.num_items and self._is_over():
            oldest = min(self, key=lambda each: each.order)
            self.take_these([oldest])
            oldest.taken_by.append("nobody")
            self.num_dropped += 1

    def is_last(self, closed: bool) -> bool:
        """Whether nothing will enter any more."""
        return (closed or self.ended) and not any(source.line for source in self._sources())

    def _is_over(self) -> bool:
        num_held, terms = self.num_held, self.terms
        return 0 < terms.maxsize < num_held or (num_held > 1 and 0 < terms.max_bytes < self.held_bytes)

    def check_bound(self, item: Known) -> None:
        """Check that it may see an item."""
        terms, num_held = self.terms, self.num_held - self.num_returned
        if 0 < terms.maxsize < num_held:
            raise Violation(f"the subscription holds {num_held} items of {terms.maxsize}", (item.number,))
        held_bytes = self.size_bytes + self.leased_bytes - self.returned_bytes
        if num_held > 1 and 0 < terms.max_bytes < held_bytes:
            raise Violation(f"the subscription holds {held_bytes} bytes of {terms.max_bytes}", (item.number,))
