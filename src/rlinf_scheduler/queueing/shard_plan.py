"""How a queue is divided among data-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlinf_scheduler.queueing.balance import Point, by_formula, by_table
from rlinf_scheduler.queueing.item import Item, check_batch_weight, rounded
from rlinf_scheduler.queueing.members import GroupRanks
from rlinf_scheduler.queueing.wanted import Limits, Wanted

POLICIES = ("round_robin", "least_loaded", "balanced")
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
        members: the ranks that the shards are, which may change; None: they are numbered from 0, for good.
    """

    num_shards: int
    policy: str = "round_robin"
    batch_weight: int | float | None = None
    batch_items: int | None = None
    cost: tuple[int | float, int | float] = (1, 0)
    equal_counts: bool = False
    cost_table: tuple[Point, ...] = ()
    members: GroupRanks | None = None

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the shards."""
        return range(self.num_shards) if self.members is None else self.members.ranks

    def of(self, members: GroupRanks) -> ShardPlan:
        """Return the same for other ranks."""
        return self._replace(num_shards=len(members.ranks), members=members)

    def check(self) -> None:
        """Raise ValueError unless it makes sense."""
        if self.num_shards < 1:
            message = f"num_shards is at least 1, not {self.num_shards}"
            raise ValueError(message)
        if self.members is not None:
            self.members.check()
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

    def check_index(self, index: int) -> None:
        """Raise ValueError unless there is such a shard, or may have been one."""
        may_have_left = self.members is not None and self.members.version[1] > 0 and index >= 0
        if index not in self.numbers and not may_have_left:
            among = self.num_shards if self.members is None else list(self.numbers)
            message = f"there is no shard {index} of {among}"
            raise ValueError(message)

    def is_replaced_by(self, other: ShardPlan) -> bool:
        """Return whether another one says the same of newer ranks.

        Raises:
            ValueError: it says something else.
        """
        if self == other:
            return False
        one, two = self.members, other.members
        if one is not None and two is not None and one.is_another_version_of(two) and self.of(two) == other:
            return two.replaces(one)
        others, own = self.differences(other)
        message = f"other shards divide it by {others}, and this one by {own}"
        raise ValueError(message)

    def differences(self, other: ShardPlan) -> tuple[str, str]:
        """Return what this plan and another one say where they differ, in phrases."""
        names = [name for name in self._fields if getattr(self, name) != getattr(other, name)]
        one, two = (", ".join(f"{name}={plan._said(name)}" for name in names) for plan in (self, other))
        return one, two

    def _said(self, name: str) -> str:
        value = getattr(self, name)
        if name == "members" and value is not None:
            return f"'{value.group}' {list(value.ranks)}"
        return f"{len(value)} points" if name == "cost_table" else repr(value)

    @property
    def wanted(self) -> Wanted:
        """Return the terms of a step's batch."""
        if self.batch_weight is not None:
            return Wanted(self.batch_weight)
        if self.batch_items is not None:
            return Wanted(None, Limits(self.batch_items, self.batch_items))
        return Wanted(None, Limits(_ENDLESS))

    def costs(self, items: Sequence[Item]) -> list[float]:
        """Return the cost of each item."""
        weights = [rounded(item.weight) for item in items]
        if self.cost_table:
            return [by_table(self.cost_table, weight) for weight in weights]
        return [by_formula(*self.cost, weight) for weight in weights]
