"""What a subscription reads: a queue that sees each item that enters another one, or any.

- It sees what enters after its beginning; the payload is the same, and what becomes of it here is nothing to the queue
  where it was put.
- It has a bound of its own. When that is reached it gives up its oldest items, and counts them: no put waits for it.
- It ends when what it sees has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from rlinf_scheduler.queueing.instructions import Instruction
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.queue_name import QueueName, Tapped
from rlinf_scheduler.queueing.records import TapRecord
from rlinf_scheduler.queueing.stats import QueueDepth
from rlinf_scheduler.queueing.tally import Tally
from rlinf_scheduler.wording import counted, size_text


class TapTerms(NamedTuple):
    """The terms of a subscription; all its members say the same.

    Attributes:
        queue_name: which queue it sees; None for all.
        maxsize: how many items it holds; 0 is unbounded.
        max_bytes: how many bytes, unless it is a single larger item; 0 is unbounded.
    """

    queue_name: QueueName | None
    maxsize: int = 0
    max_bytes: int = 0

    def describe(self) -> str:
        """It in a phrase."""
        what = "all queues" if self.queue_name is None else f"queue {self.queue_name!r}"
        bounds = [
            *([counted(self.maxsize, "item")] if self.maxsize else []),
            *([size_text(self.max_bytes)] if self.max_bytes else []),
        ]
        if not bounds:
            return f"it sees {what}, and may hold any number of items"
        return f"it sees {what}, may hold at most {' and '.join(bounds)}, and drops its oldest items when it is full"


class TapQueue(NamedQueue):
    """The queue of one subscription.

    Args:
        subscription: its name.
        terms: what it is.
        tally: of the channel.
        sources: returns the queues that it sees, those that are there.

    Attributes:
        members: who reads it, by client and a number of that client's.
        vacancy: the number of the last time when its last member had left.
        num_dropped: items that it gave up.
        removed: nobody reads it any more.
    """

    __slots__ = (
        "_sources",
        "members",
        "num_dropped",
        "removed",
        "subscription",
        "terms",
        "vacancy",
    )

    def __init__(
        self, subscription: str, terms: TapTerms, tally: Tally, sources: Callable[[], Iterable[NamedQueue]]
    ) -> None:
        super().__init__(Tapped(subscription), terms.maxsize, terms.max_bytes, tally)
        self.subscription = subscription
        self.terms = terms
        self.members: dict[tuple[str, int], None] = {}
        self.vacancy = 0
        self.num_dropped = 0
        self.removed = False
        self._sources = sources

    def see(self, item: Item) -> None:
        """An item has entered a queue."""
        twin = item.for_subscription()
        self.fifo.push(twin)
        for watch in self.tally.watches:
            watch.entered.append((self.name, twin))  # its bytes are counted where it was put
        while self.fifo.num_items and self._is_over():
            self.fifo.take_oldest()
            self.num_dropped += 1

    @property
    def full(self) -> bool:
        """Never: what it has no room for takes the place of its oldest item."""
        return False

    def _is_over(self) -> bool:
        num_held = self.num_held
        return 0 < self.maxsize < num_held or (num_held > 1 and 0 < self.max_bytes < self.held_bytes)

    def remove(self) -> None:
        """Nobody reads it any more: who waits is told, and what is here, or comes back, is dropped."""
        self.removed = self.ended = True

    @property
    def idle(self) -> bool:
        """It stays until it is removed."""
        return False

    def record(self, *, at_rest: bool) -> TapRecord:
        """Return its terms and members as a record; at rest it has no members, and no vacancy that is numbered."""
        members, vacancy = ([], 0) if at_rest else (list(self.members), self.vacancy)
        queue_name, maxsize, max_bytes = self.terms
        read = members, vacancy, self.num_dropped, self.removed
        return TapRecord(queue_name, True, maxsize, max_bytes, *read)

    def load(self, record: TapRecord) -> None:
        """Take what `record` gave."""
        self.members = dict.fromkeys(record.members)
        self.vacancy, self.num_dropped = record.vacancy, record.num_dropped
        if record.removed:
            self.remove()

    def depth(self) -> QueueDepth:
        """Return what is here, as data."""
        return replace(super().depth(), num_dropped=self.num_dropped)

    def settle(self, closed: bool, out: list[Instruction]) -> None:
        """Serve getters; items that come back after its removal are dropped."""
        if self.removed:
            self.fifo.take_all()
        super().settle(closed, out)

    def count(self) -> None:
        """What it holds is bound by itself, and counts nowhere else."""

    def _count_lost(self, lost: list[Item]) -> None:
        """They are counted where they were put."""

    def _is_last(self, closed: bool) -> bool:
        if self.removed:
            return True
        return (closed or self.ended) and not any(each.putters or each.reserved for each in self._sources())

    def _may_come_back(self) -> bool:
        return not self.removed and super()._may_come_back()

    def _is_stuck(self) -> bool:
        """Never: what enters takes the place of its oldest item."""
        return False
