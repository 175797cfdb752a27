"""Who sends which rows of a batch to whom. Pure."""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, SupportsIndex, TypeAlias

from rlinf_scheduler.errors import RouteError
from rlinf_scheduler.wording import counted, rank_range, text_table

# How many ranks a group has, or how many rows each of them has.
Ranks: TypeAlias = SupportsIndex | Sequence[SupportsIndex]

_MAX_LISTED = 12
_BY_SENDER = operator.attrgetter("sender")
_BY_RECEIVER = operator.attrgetter("receiver")


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Neighbouring rows that go from one sender to one receiver.

    Attributes:
        sender: its rank.
        receiver: its rank.
        start: the first row, in the whole batch.
        stop: the row after the last one.
    """

    sender: int
    receiver: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.stop - self.start


@dataclass(frozen=True)
class Route:
    """Which rows go from each rank of one group to each rank of another.

    The whole batch is that of the senders, one after the other by rank; the receivers' parts of it are neighbours too.
    So each row has one sender and one receiver, and each rank sends and receives its rows in their order.

    Attributes:
        source: the senders' group.
        target: the receivers' group.
        sent: how many rows each sender has.
        received: how many rows each receiver gets.
        blocks: what goes from whom to whom, in the order of the rows; none is empty.

    Raises:
        RouteError: the two do not add up to the same, or a number is none of rows.
    """

    source: str
    target: str
    sent: tuple[int, ...]
    received: tuple[int, ...]
    blocks: tuple[RowBlock, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_rows(self.source, self.sent)
        self._check_rows(self.target, self.received)
        if sum(self.sent) != sum(self.received):
            raise RouteError(
                self.source,
                self.target,
                f"the {_ranks(self.sent)} of '{self.source}' have {counted(sum(self.sent), 'row')}, "
                f"{_each(self.source, self.sent)}; the {_ranks(self.received)} of '{self.target}' are to get "
                f"{sum(self.received)}, {_each(self.target, self.received)}",
            )
        object.__setattr__(self, "blocks", _blocks(self.sent, self.received))

    @property
    def rows(self) -> int:
        """How many rows the whole batch has."""
        return sum(self.sent)

    def sent_by(self, rank: int) -> tuple[RowBlock, ...]:
        """Return what a sender sends, in the order of its rows."""
        return _part(self.blocks, rank, _BY_SENDER)

    def received_by(self, rank: int) -> tuple[RowBlock, ...]:
        """Return what a receiver gets, in the order of its rows."""
        return _part(self.blocks, rank, _BY_RECEIVER)

    def back(self) -> Route:
        """Return the way back: each row to the rank, and the place there, that it came from.

        >>> plan_route("env", 3, "rollout", 2, rows=6).back()
        Route(source='rollout', target='env', sent=(3, 3), received=(2, 2, 2))
        """
        return Route(self.target, self.source, self.received, self.sent)

    def explain(self) -> str:
        """Return a table of who sends which of its rows to whom, and which rows they are there.

        >>> print(plan_route("env", 3, "rollout", 2, rows=64).explain())
        64 rows from 3 ranks of 'env' to 2 ranks of 'rollout'
          from          rows  to                rows
          env:0   0-21 of 22  rollout:0   0-21 of 32
          env:1    0-9 of 21  rollout:0  22-31 of 32
          env:1  10-20 of 21  rollout:1   0-10 of 32
          env:2   0-20 of 21  rollout:1  11-31 of 32
        """
        head = f"{counted(self.rows, 'row')} from {counted(len(self.sent), 'rank')} of '{self.source}' to "
        head += f"{counted(len(self.received), 'rank')} of '{self.target}'"
        first_sent = [0, *accumulate(self.sent)]
        first_received = [0, *accumulate(self.received)]
        lines = [
            (
                f"{self.source}:{block.sender}",
                _place(block, first_sent[block.sender], self.sent[block.sender]),
                f"{self.target}:{block.receiver}",
                _place(block, first_received[block.receiver], self.received[block.receiver]),
            )
            for block in self.blocks
        ]
        table = text_table([("from", "rows", "to", "rows"), *lines], right={1, 3})
        return "\n".join([head, *(f"  {line}" for line in table)])

    def __str__(self) -> str:
        return self.explain()

    def check_sender(self, rank: int, rows: int) -> None:
        """Raise unless a sender has the rows that the route says.

        Raises:
            RouteError: for it.
        """
        if rows != self.sent[rank]:
            raise RouteError(
                self.source,
                self.target,
                f"{self.source}:{rank} has {counted(rows, 'row')}, and is to send {self.sent[rank]} of the "
                f"{self.rows} of all {_ranks(self.sent)} ({_each(self.source, self.sent)}); nothing was sent",
            )

    def check_part(self, block: RowBlock, rows: int) -> None:
        """Raise unless what came from a sender has the rows that the route says.

        Raises:
            RouteError: for it.
        """
        if rows != block.rows:
            raise RouteError(
                self.source,
                self.target,
                f"{self.source}:{block.sender} sent {counted(rows, 'row')} to {self.target}:{block.receiver}, where "
                f"{block.rows} belong (rows {rank_range(block.start, block.stop - 1)} of {self.rows}): do both sides "
                "say the same of the rows?",
            )

    def _check_rows(self, group: str, rows: tuple[int, ...]) -> None:
        if not rows:
            raise RouteError(self.source, self.target, f"group '{group}' has no ranks")
        for rank, number in enumerate(rows):
            if type(number) is not int or number < 0:
                problem = f"{group}:{rank} cannot have {number!r} rows: a whole number from 0 on"
                raise RouteError(self.source, self.target, problem)


def plan_route(
    source: str, senders: Ranks, target: str, receivers: Ranks, *, rows: int | None = None
) -> Route:
    """Return the route of a batch from one group to another, whatever their sizes.

    >>> route = plan_route("env", [3, 1, 4], "rollout", 2)
    >>> route.received
    (4, 4)
    >>> [(block.sender, block.rows) for block in route.received_by(0)]
    [(0, 3), (1, 1)]

    Args:
        source: the senders' group.
        senders: how many there are, which share `rows` as evenly as it goes, the first ones having one more; or how
            many rows each of them has.
        target: the receivers' group.
        receivers: likewise.
        rows: of the whole batch; None where the senders' or the receivers' rows say it.

    Raises:
        RouteError: the numbers do not fit each other, or nothing says how many rows there are.
    """
    shared = [_numbers(source, target, side) for side in (senders, receivers)]
    known = [sum(side) for side in shared if isinstance(side, tuple)]
    total = rows if rows is not None else known[0] if known else None
    if total is None:
        raise RouteError(
            source, target, "nothing says how many rows there are: rows=, or those of each sender"
        )
    total = _whole(source, target, total)
    return _plan(
        source, target, *(share_rows(total, side) if isinstance(side, int) else side for side in shared)
    )


@lru_cache(maxsize=256)
def _plan(source: str, target: str, sent: tuple[int, ...], received: tuple[int, ...]) -> Route:
    return Route(source, target, sent, received)


def plan_even(source: str, senders: int, target: str, receivers: int) -> Route:
    """Return the smallest route on which all senders have the same number of rows, and all receivers too.

    Every other such route has its blocks, each as many times as large.
    """
    return plan_route(source, senders, target, receivers, rows=math.lcm(senders, receivers))


def share_rows(rows: int, ranks: int) -> tuple[int, ...]:
    """Return how many rows each rank gets of so many, as evenly as it goes.

    >>> share_rows(64, 3)
    (22, 21, 21)
    """
    least, more = divmod(rows, ranks)
    return (least + 1,) * more + (least,) * (ranks - more)


def _blocks(sent: tuple[int, ...], received: tuple[int, ...]) -> tuple[RowBlock, ...]:
    """Cut the rows wherever a sender or a receiver ends."""
    sent_until, received_until = [*accumulate(sent)], [*accumulate(received)]
    cuts = sorted({0, *sent_until, *received_until})
    return tuple(
        RowBlock(bisect_right(sent_until, start), bisect_right(received_until, start), start, stop)
        for start, stop in pairwise(cuts)
    )


def _part(blocks: tuple[RowBlock, ...], rank: int, key: Any) -> tuple[RowBlock, ...]:
    # Along the rows, the ranks of both sides grow.
    return blocks[bisect_left(blocks, rank, key=key) : bisect_right(blocks, rank, key=key)]


def _numbers(source: str, target: str, side: Any) -> int | tuple[int, ...]:
    """A number of ranks, or the rows of each."""
    if isinstance(side, Sequence) and not isinstance(side, str | bytes):
        return tuple(_whole(source, target, number) for number in side)
    number = _whole(source, target, side)
    if number < 1:
        raise RouteError(source, target, f"a group has 1 rank or more, not {number}")
    return number


def _whole(source: str, target: str, number: Any) -> int:
    try:
        whole = -1 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        whole = -1
    if whole < 0:
        raise RouteError(
            source, target, f"{number!r} is no number of rows or ranks: a whole number from 0 on"
        )
    return whole


def _ranks(rows: Sequence[int]) -> str:
    return counted(len(rows), "rank")


def _each(group: str, rows: Sequence[int]) -> str:
    """How many rows each rank has, as text."""
    shown = ", ".join(f"{group}:{rank} {number}" for rank, number in enumerate(rows[:_MAX_LISTED]))
    more = len(rows) - _MAX_LISTED
    return shown + (f" and {more} more" if more > 0 else "")


def _place(block: RowBlock, first: int, rows: int) -> str:
    return f"{rank_range(block.start - first, block.stop - 1 - first)} of {rows}"
