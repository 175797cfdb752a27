"""One queue's items, handed out to data-parallel ranks step by step: each rank, a *shard*, has a part of every step.

- A step is cut from the queue once, for all shards; so they see the same number of steps, and the same end. At the end
  of a queue a part may be empty.
- A part stays here until its shard asks for the step after it. A rank that dies is succeeded by one that asks as if it
  had none yet, and has the same part again.
- Who asks for a shard last has it: an earlier one that still waits is told so.
- Shards that lag hold the others up before too many of their parts gather.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from rlinf_scheduler.queueing.balance import balanced, imbalance, least_loaded, round_robin
from rlinf_scheduler.queueing.cost import Point, by_formula, by_table
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.wanted import Limits, Wanted
from rlinf_scheduler.queueing.weights import check_batch_weight, exact, rounded
from rlinf_scheduler.wording import counted

Getter = TypeVar("Getter")

POLICIES = ("round_robin", "least_loaded", "balanced")
# So many steps may be cut that a shard has not done with.
MAX_AHEAD = 8
_ENDLESS = 1 << 62


class ShardPlan(NamedTuple):
    """How a queue is divided; every shard of it says the same.

    Attributes:
        num_shards: how many ranks there are.
        policy: one of POLICIES.
        batch_weight: the weight of a step, of all its parts together; None without.
        batch_items: its number of items; None without. With neither, a step is what there is at a flush, or at the end.
        cost: of an item of weight w: cost[0] * w + cost[1] * w * w.
        equal_counts: of "balanced": parts differ by at most one in their number of items.
        cost_table: points (weight, cost) instead of `cost`; empty without.
    """

    num_shards: int
    policy: str = "round_robin"
    batch_weight: int | float | None = None
    batch_items: int | None = None
    cost: tuple[int | float, int | float] = (1, 0)
    equal_counts: bool = False
    cost_table: tuple[Point, ...] = ()

    def check(self) -> None:
        """Raise ValueError unless it makes sense."""
        if self.num_shards < 1:
            message = f"num_shards is at least 1, not {self.num_shards}"
            raise ValueError(message)
        if self.policy not in POLICIES:
            message = f"policy is one of {', '.join(POLICIES)}, not {self.policy!r}"
            raise ValueError(message)
        if self.batch_weight is not None and self.batch_items is not None:
            message = "a step has a batch_weight, or batch_items, or neither"
            raise ValueError(message)
        if self.batch_weight is not None:
            check_batch_weight(self.batch_weight)
        if self.batch_items is not None and self.batch_items < 1:
            message = f"batch_items is at least 1, not {self.batch_items}"
            raise ValueError(message)

    def differences(self, other: ShardPlan) -> tuple[str, str]:
        """Return what this plan and another one say where they differ, in phrases."""
        names = [name for name in self._fields if getattr(self, name) != getattr(other, name)]
        one, two = (", ".join(f"{name}={plan._said(name)}" for name in names) for plan in (self, other))
        return one, two

    def _said(self, name: str) -> str:
        value = getattr(self, name)
        return f"{len(value)} points" if name == "cost_table" else repr(value)

    @property
    def wanted(self) -> Wanted:
        """Return the terms of a step's batch."""
        if self.batch_weight is not None:
            return Wanted(exact(self.batch_weight))
        if self.batch_items is not None:
            return Wanted(None, Limits(self.batch_items, self.batch_items))
        return Wanted(None, Limits(_ENDLESS))

    def costs(self, items: Sequence[Item]) -> list[float]:
        """Return the cost of each item."""
        weights = [rounded(item.weight) for item in items]
        if self.cost_table:
            return [by_table(self.cost_table, weight) for weight in weights]
        return [by_formula(*self.cost, weight) for weight in weights]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A shard's part of one step.

    Attributes:
        step: counts from 0.
        items: in the order of their queue.
        weight: their sum.
        imbalance: of the step: the largest part's cost over the mean.
        complete: the step is as large as was wanted; False for what was left.
    """

    step: int
    items: list[Item]
    weight: int | float
    imbalance: float
    complete: bool


@dataclass(slots=True, eq=False)
class _Shard(Generic[Getter]):
    parts: deque[Part] = field(default_factory=deque)
    in_hand: Part | None = None
    holder: Getter | None = None  # who has that
    waiting: Getter | None = None

    @property
    def num_open(self) -> int:
        return len(self.parts) + (self.in_hand is not None)


class Sharding(Generic[Getter]):
    """The shards of one queue."""

    def __init__(self, plan: ShardPlan) -> None:
        self.plan = plan
        self.wanted = plan.wanted
        self._shards: list[_Shard[Getter]] = [_Shard() for _ in range(plan.num_shards)]
        self._next_step = 0
        self._num_dealt = 0

    @property
    def idle(self) -> bool:
        """Nothing is here, and nobody waits."""
        return not any(shard.num_open or shard.waiting for shard in self._shards)

    @property
    def getters(self) -> list[Getter]:
        """Return the getters that wait for a part."""
        return [shard.waiting for shard in self._shards if shard.waiting is not None]

    @property
    def may_cut(self) -> bool:
        """Whether no shard lags too far behind."""
        return max(shard.num_open for shard in self._shards) < MAX_AHEAD

    def ask(self, getter: Getter, index: int, done_step: int) -> Getter | None:
        """Let a shard ask for the step after `done_step`; return an earlier getter whose place this one takes."""
        shard = self._shards[index]
        if shard.in_hand is not None:
            shard.parts.appendleft(shard.in_hand)
        shard.in_hand = None
        while shard.parts and shard.parts[0].step <= done_step:
            shard.parts.popleft()
        earlier, shard.waiting = shard.waiting, getter
        return earlier

    def holder(self, index: int, step: int) -> Getter | None:
        """Return the getter that has a shard's part of a step in hand; None without one."""
        shard = self._shards[index] if 0 <= index < len(self._shards) else None
        return shard.holder if shard and shard.in_hand is not None and shard.in_hand.step == step else None

    def finish(self, index: int) -> None:
        """Note that a shard is done with the part that it has in hand."""
        self._shards[index].in_hand = None

    def forget(self, getter: Getter) -> None:
        """A getter waits no more."""
        for shard in self._shards:
            if shard.waiting is getter:
                shard.waiting = None

    def drop_lost(self, failed: Part | None = None) -> list[Item]:
        """Take what is lost out of parts that no shard has, and out of one that did not arrive."""
        lost: list[Item] = []
        for shard in self._shards:
            shard.parts = deque(_without_lost(part, lost) for part in shard.parts)
            if shard.in_hand is not None and shard.in_hand is failed:
                shard.in_hand = _without_lost(failed, lost)
        return lost

    def __iter__(self) -> Iterator[Item]:
        """All items, those in hand too."""
        for shard in self._shards:
            for part in (*shard.parts, *filter(None, (shard.in_hand,))):
                yield from part.items

    def hand_out(self) -> list[tuple[Getter, Part]]:
        """Take the parts of those who wait and have one."""
        handed = []
        for shard in self._shards:
            if shard.waiting is not None and shard.parts:
                shard.in_hand, shard.holder = shard.parts.popleft(), shard.waiting
                handed.append((shard.waiting, shard.in_hand))
                shard.waiting = None
        return handed

    def cut(self, items: list[Item], complete: bool) -> None:
        """Divide the items of the next step."""
        plan = self.plan
        costs = plan.costs(items)
        if plan.policy == "balanced":
            places = balanced(costs, plan.num_shards, equal_counts=plan.equal_counts)
        elif plan.policy == "least_loaded":
            places = least_loaded(costs, plan.num_shards)
        else:
            places = round_robin(len(items), plan.num_shards, self._num_dealt)
        self._num_dealt += len(items)
        unevenness = imbalance(costs, places)
        has_target = plan.batch_weight is not None or plan.batch_items is not None
        for shard, its_places in zip(self._shards, places, strict=True):
            its_items = [items[place] for place in its_places]
            weight = rounded(sum(item.weight for item in its_items))
            part = Part(self._next_step, its_items, weight, unevenness, complete or not has_target)
            shard.parts.append(part)
        self._next_step += 1

    def contents(self) -> tuple[int, int, list[tuple[list[Part], Getter | None]]]:
        """The next step, how many items were dealt, and each shard's parts that it has not done with.

        And who has the first of them in hand; None if nobody has.
        """
        shards = [
            (
                [*([shard.in_hand] if shard.in_hand else ()), *shard.parts],
                shard.holder if shard.in_hand else None,
            )
            for shard in self._shards
        ]
        return self._next_step, self._num_dealt, shards

    def load(self, next_step: int, num_dealt: int, shards: list[tuple[list[Part], Getter | None]]) -> None:
        """Take what `contents` gave."""
        self._next_step, self._num_dealt = next_step, num_dealt
        for shard, (parts, holder) in zip(self._shards, shards, strict=True):
            shard.parts = deque(parts)
            if holder is not None:
                shard.in_hand, shard.holder = shard.parts.popleft(), holder

    def wait(self, getter: Getter, index: int) -> None:
        """A getter waits for a shard's next part."""
        self._shards[index].waiting = getter

    def shard_of(self, getter: Getter) -> int:
        """Which shard a getter waits for."""
        return next(index for index, shard in enumerate(self._shards) if shard.waiting is getter)

    def describe(self) -> str:
        """Name the shards that lag, in a phrase; empty without any."""
        lags = [
            f"shard {index} has {shard.num_open} steps to do"
            for index, shard in enumerate(self._shards)
            if shard.num_open > 1
        ]
        return ", ".join(
            [f"{counted(self._next_step, 'step')} for {counted(self.plan.num_shards, 'shard')}", *lags]
        )


def _without_lost(part: Part, lost: list[Item]) -> Part:
    gone = [item for item in part.items if item.lost]
    if not gone:
        return part
    lost += gone
    living = [item for item in part.items if not item.lost]
    return replace(part, items=living, weight=rounded(sum(item.weight for item in living)))
