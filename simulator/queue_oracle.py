"""One queue as it must be, by what its server has heard and said: slow, and obviously right."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.queueing.wanted import NO_LIMITS, Limits

Ticket = tuple[str, int]


@dataclass(slots=True, eq=False)
class Known:
    """What is known of one item; its number is that of the call that put it."""

    number: int
    producer: str
    queue: QueueName
    size_bytes: int
    begun: int  # its place among all puts
    behind: float  # the puts of its producer from here on are to enter its queue after it
    weight: int = 0
    priority: int = 0
    attempts: int = 0  # how often it was given out on lease
    group: str | None = None
    since_us: int = 0  # when it entered
    stands_behind: bool = False  # an unfinished put of its producer: nobody says when it has room
    order: int = -1  # its place among all that its queue accepted
    put_outcome: str = ""
    taken_by: list[str] = field(default_factory=list)
    taken_us: float = math.inf  # when it was taken first
    is_gone: bool = False  # its bytes: lost, unless somebody has it and keeps it
    is_lost: bool = False  # it has left its queue for that


@dataclass(slots=True)
class Patience:
    """How long an item is passed over by younger ones of a higher priority, None for ever; and what time it is."""

    wait_us: int | None = None
    now_us: int = 0


class Asked(NamedTuple):
    """What a getter asks for: one item, or (`is_batch`) a batch; on lease for a while, or for good."""

    is_batch: bool = False
    weight: int | None = None
    limits: Limits = NO_LIMITS
    wait: bool = True
    ttl_us: int = 0
    group_size: int = 0  # all of one group

    def is_enough(self, items: Sequence[Known]) -> bool:
        """Whether these are what it wants."""
        weight = sum(item.weight for item in items)
        return len(items) >= self.limits.min_items and weight >= (self.weight or 0)

    def is_oversize(self, item: Known | None) -> bool:
        """Whether an item alone is more than a batch is to be, where that matters."""
        if item is None or not self.limits.oversize:
            return False
        is_heavy = self.weight is not None and item.weight > self.weight
        return is_heavy or 0 < self.limits.max_bytes < item.size_bytes

    def refuses(self, head: Known | None) -> bool:
        """Whether it does not want what is next."""
        return self.limits.oversize == "raise" and self.is_oversize(head)

    def has_to_end(self, items: Sequence[Known], following: Known | None) -> bool:
        """Whether a batch of these cannot grow."""
        size_bytes = sum(item.size_bytes for item in items)
        max_items, max_bytes = self.limits.max_items or math.inf, self.limits.max_bytes or math.inf
        if len(items) >= max_items or size_bytes >= max_bytes:
            return True
        if self.is_oversize(following) or any(map(self.is_oversize, items)):
            return True
        return following is not None and size_bytes + following.size_bytes > max_bytes


class QueueOracle:
    """What the server must hold of one queue.

    Attributes:
        getters: who waits, in order of arrival.
        line: puts that have arrived, and have not entered.
        granted: of them, those that were asked for their bytes.
        on_the_way: deliveries that nobody has said to have arrived.
        waited: getters whose `max_wait_s` is over.
        ended: no put may come any more.
        flushed: items numbered below do not wait for others.
        num_accepted: items that ever entered.
        num_returned: of all deliveries, items that came back.
        returned_bytes: their size.
        last_put: the last that entered, by producer.
        last_taken: the last that a sole consumer has taken, by priority.
        num_items: how many a getter can take.
        weight: of them.
        size_bytes: of them.
        granted_bytes: of the puts that were asked for them.
        waiting_shards: which ranks wait for their part.
        is_at_bound: whether a client has as many items on lease as it may.
        num_leases: of items on lease, and of those that come back after a delay.
        num_leased: how many items these are.
        leased_bytes: their size.
        num_dead: dead letters.
        unreported: items that are lost, and nobody was told.
        gone_us: when its last reader had left, if it was a subscription: what comes back then is dropped.
        patience: how long an item is passed over by younger ones of a higher priority, and the time.
    """

    def __init__(self, patience: Patience | None = None) -> None:
        self.patience = patience or Patience()
        self.getters: dict[Ticket, Asked] = {}
        self.line: dict[Ticket, Known] = {}
        self.granted: dict[Ticket, Known] = {}
        self.on_the_way: set[Ticket] = set()
        self.waited: set[Ticket] = set()
        self.ended = False
        self.flushed = 0
        self.num_accepted = self.num_returned = self.returned_bytes = 0
        self.last_put: dict[str, int] = {}
        self.last_taken: dict[int, int] = {}
        self.num_items = self.weight = self.size_bytes = self.granted_bytes = 0
        self.waiting_shards: dict[int, Ticket] = {}
        self.is_at_bound: Callable[[str], bool] = lambda _client: False
        self.num_leases = self.num_leased = self.leased_bytes = self.num_dead = 0
        self.unreported: list[Known] = []
        self._returned: list[tuple[int, Known]] = []  # ascending
        self._fresh: list[Known] = []  # by order
        self.gone_us = math.inf

    @property
    def gone(self) -> bool:
        """It was a subscription, and nobody reads it any more."""
        return self.gone_us < math.inf

    def __iter__(self) -> Iterator[Known]:
        yield from (item for _, item in self._returned)
        yield from self._fresh

    @property
    def held_bytes(self) -> int:
        """The bytes that are here, on lease, or were asked for."""
        return self.size_bytes + self.granted_bytes + self.leased_bytes

    @property
    def num_held(self) -> int:
        """The items that are here, on lease, or were asked for."""
        return self.num_items + len(self.granted) + self.num_leased

    @property
    def may_come_back(self) -> bool:
        """Whether items that were taken may come back."""
        return bool(self.on_the_way) or self.num_leases > 0

    # -- what happens --------------------------------------------------------------------------------

    def push(self, item: Known) -> None:
        """An item enters."""
        item.order = self.num_accepted
        self.num_accepted += 1
        item.since_us = self.patience.now_us
        self._fresh.append(item)
        self._count(item, 1)

    def take(self) -> Known | None:
        """The next item leaves; None if there is none."""
        if not self._returned and not self._fresh:
            return None
        if self._returned:
            item = self._returned.pop(0)[1]
        else:
            item = self._next_of(self._fresh)
            self._fresh.remove(item)
        self._count(item, -1)
        return item

    def head(self) -> Known | None:
        """The next item."""
        if self._returned:
            return self._returned[0][1]
        return self._next_of(self._fresh) if self._fresh else None

    def next_group(self, size: int, *, closed: bool) -> list[Known]:
        """The first complete group; if nothing is to be waited for, the oldest of the others; else nothing."""
        groups: dict[str, list[Known]] = {}
        for item in sorted(self, key=_order):
            if item.group is not None:
                groups.setdefault(item.group, []).append(item)
        complete = [members[:size] for members in groups.values() if len(members) >= size]
        if complete:
            return min(complete, key=lambda members: members[-1].order)
        oldest = min(groups.values(), key=lambda members: members[0].order, default=[])
        may_wait = not self.is_last(closed) and not (oldest and oldest[0].order < self.flushed)
        return [] if may_wait else oldest

    def take_these(self, items: Sequence[Known]) -> None:
        """Items leave, wherever they stand."""
        self._returned = [each for each in self._returned if each[1] not in items]
        self._fresh = [item for item in self._fresh if item not in items]
        for item in items:
            self._count(item, -1)

    def restore(self, item: Known) -> None:
        """An item comes back, or is lost now."""
        if item.is_gone:
            self.lose(item)
            return
        insort(self._returned, (item.order, item))
        self._count(item, 1)
        self.num_returned += 1
        self.returned_bytes += item.size_bytes

    def at_rest(self, items: Sequence[Known]) -> list[Known]:
        """What it gives, one after the other, when these have come back, but for lost ones; nothing changes."""
        oracle = copy(self)
        oracle._returned, oracle._fresh = list(self._returned), list(self._fresh)
        oracle.patience = Patience()  # a restart is no time that they have waited
        for item in items:
            if not item.is_gone:
                oracle.restore(item)
        return list(iter(oracle.take, None))

    def lose(self, item: Known) -> None:
        """An item has left, and will not come back."""
        item.is_lost = True
        self.unreported.append(item)

    def grant(self, ticket: Ticket, item: Known) -> None:
        """A put is asked for its bytes."""
        self.granted[ticket] = item
        self.granted_bytes += item.size_bytes

    def forget_put(self, ticket: Ticket) -> None:
        """A put has entered, or will not."""
        self.line.pop(ticket, None)
        item = self.granted.pop(ticket, None)
        if item is not None:
            self.granted_bytes -= item.size_bytes

    # -- what must be --------------------------------------------------------------------------------

    @property
    def first_getter(self) -> Ticket | None:
        """Whose turn it is: those whose clients have enough on lease are passed over."""
        turns = (
            ticket
            for ticket, asked in self.getters.items()
            if not (asked.ttl_us and self.is_at_bound(ticket[0]))
        )
        return next(turns, None)

    @property
    def awaited(self) -> bool:
        """Somebody waits for items, and may have them."""
        return self.first_getter is not None or bool(self.waiting_shards)

    def is_last(self, closed: bool) -> bool:
        """Whether nothing will enter any more."""
        return (closed or self.ended) and not self.line

    @property
    def is_flushed(self) -> bool:
        """Whether something is here that is not to wait for others."""
        return self.flushed > 0 and any(item.order < self.flushed for item in self)

    def may_give(self, ticket: Ticket, asked: Asked, *, closed: bool, stuck: bool) -> bool:
        """Whether a getter at the head of the line is to be served with what is here."""
        if not self.num_items:
            return False
        if asked.group_size:
            return bool(self.next_group(asked.group_size, closed=closed))
        if asked.refuses(self.head()):
            return False
        if asked.is_oversize(self.head()):
            return True
        if not asked.is_batch or self.is_last(closed) or self.is_flushed:
            return True
        limits = asked.limits
        if limits.reached(self.num_items, self.size_bytes):
            return True
        if self.num_items < limits.min_items:
            return False
        may_wait = limits.max_wait_s is not None
        if ticket in self.waited or (may_wait and stuck):
            return True
        return not may_wait if asked.weight is None else self.weight >= asked.weight

    def check_batch(self, asked: Asked, batch: Sequence[Known], *, complete: bool) -> str:
        """What is wrong with a batch that was taken; empty if nothing is."""
        following = self.head()
        if asked.weight is not None and asked.is_enough(batch[:-1]) and len(batch) > 1:
            return "it was enough without its last item"
        if len(batch) > 1 and asked.has_to_end(batch[:-1], batch[-1]):
            return "it is larger than it may be"
        enough = asked.is_enough(batch)
        if following is not None and not asked.has_to_end(batch, following):
            if asked.weight is None:
                return "more was there"
            if not enough:
                return "it was to have more"
        if complete != (enough or asked.has_to_end(batch, following)):
            return f"it says complete={complete}"
        return ""

    def _next_of(self, fresh: Sequence[Known]) -> Known:
        wait_us, now_us = self.patience.wait_us, self.patience.now_us
        if wait_us is not None and now_us - fresh[0].since_us >= wait_us:
            return fresh[0]
        return min(fresh, key=lambda item: (-item.priority, item.order))

    def _count(self, item: Known, sign: int) -> None:
        self.num_items += sign
        self.weight += sign * item.weight
        self.size_bytes += sign * item.size_bytes


def _order(item: Known) -> int:
    return item.order
