"""Which ranks of a job a terminal of some height shows: those that wait, or are away, first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_scheduler.observe.status import (
    IDLE_RANK,
    LOST,
    RUNNING,
    STARTING,
    UNRESPONSIVE,
    WAITING,
    GroupStatus,
    RankStatus,
)

# What a user is to see first.
URGENCY = (LOST, UNRESPONSIVE, WAITING, STARTING, RUNNING, IDLE_RANK)


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """A group, and those of its ranks that have a line of their own."""

    group: GroupStatus
    ranks: tuple[RankStatus, ...]

    @property
    def has_title(self) -> bool:
        """Whether the group has a line for itself: one of a single rank is that rank's."""
        return len(self.group.ranks) > 1


@dataclass(frozen=True, slots=True)
class Choice:
    """What is shown.

    Attributes:
        groups: with at least a line each.
        left_out: how many ranks of these and of all other groups have no line, by their states.
        num_groups_left_out: how many groups have none.
    """

    groups: tuple[ShownGroup, ...]
    left_out: Counter[str]
    num_groups_left_out: int = 0

    @property
    def num_lines(self) -> int:
        """How many lines it takes."""
        return sum(shown.has_title + len(shown.ranks) for shown in self.groups)


def urgency(rank: RankStatus) -> tuple[int, float, float]:
    """Where a rank stands in line for a line: by its state, then by how long it is in it, then by what it computes."""
    since_s = rank.silent_s or rank.wait_since_s or rank.method_since_s
    return URGENCY.index(rank.state), -since_s, -rank.cpu_percent


def chosen(groups: Sequence[GroupStatus], num_lines: int) -> Choice:
    """Give so many lines to groups and ranks; one that says what is left out is not counted.

    Each group has a line, as long as there are lines, and the others go to the ranks that are most urgent; those that
    are away have a third of all lines before any group has.

    >>> ranks = tuple(RankStatus(f"env:{number}", number, state="idle") for number in range(9))
    >>> choice = chosen([GroupStatus("env", (*ranks, RankStatus("env:9", 9, state="lost")))], 3)
    >>> [rank.address for rank in choice.groups[0].ranks], choice.left_out["idle"]
    (['env:0', 'env:9'], 8)
    """
    first = sorted(groups, key=lambda group: min(map(urgency, group.ranks), default=(len(URGENCY), 0.0, 0.0)))
    away = sum(rank.state in (LOST, UNRESPONSIVE) for group in groups for rank in group.ranks)
    kept = {group.name for group in first[: max(1, num_lines - min(away, num_lines // 3))]}
    shown = [group for group in groups if group.name in kept]
    num_left = num_lines - len(shown)
    # A group of one rank has that rank in its line.
    candidates = sorted(
        (rank for group in shown if len(group.ranks) > 1 for rank in group.ranks), key=urgency
    )
    wanted = {rank.address for rank in candidates[: max(0, num_left)]}
    wanted.update(group.ranks[0].address for group in shown if len(group.ranks) == 1)
    return Choice(
        tuple(
            ShownGroup(group, tuple(rank for rank in group.ranks if rank.address in wanted))
            for group in shown
        ),
        Counter(rank.state for group in groups for rank in group.ranks if rank.address not in wanted),
        len(groups) - len(shown),
    )
