"""What a queue holds, what that weighs, and how it is called.

A queue's total weight is kept up to date by adding what enters and subtracting what leaves. With floats
that drifts, and a batch would be ready or not depending on what passed through the queue before. So sums are
exact: integers stay integers (the common case: tokens, steps), other floats become the fraction they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, TypeAlias

from msgspec import Struct

# When an item was given out, in a queue that has versions: not at all (any more), or for good.
NOT_GIVEN, SETTLED = -1, -3


@dataclass(frozen=True, slots=True)
class SubscriptionName:
    """The name of the queue that a subscription reads; no user can give it to a queue."""

    subscription: str

    def __repr__(self) -> str:
        return f"{self.subscription!r} (a subscription)"


# A string, an int, or a tuple of such names and of None; or what a subscription reads.
QueueName: TypeAlias = str | int | tuple[Any, ...] | SubscriptionName


def as_name(name: Any) -> Any:
    """Return a queue's or a group's name as it was before it travelled, when lists were tuples."""
    if type(name) is dict:
        return SubscriptionName(**name)
    return tuple(as_name(part) for part in name) if isinstance(name, tuple | list) else name


class Item(Struct, eq=False, array_like=True):
    """One item of a queue.

    Attributes:
        payload: whatever the shell holds for it; never looked at. In a snapshot its place among all payloads.
        weight: what it counts in batches, a finite number.
        priority: items of a higher one come first.
        question: who waits for an answer to it, and the asker's number of it; None if nobody does.
        version: of the policy that made it; None if nobody said.
        origin: who put it, and its ticket there; never looked at.
        slot: the number of the slot with which it is being put; 0 for none.
        order: its place among all items that ever entered its queue; kept when it is given back.
        since: when it entered its queue, on the clock of the state's shell.
        attempts: how often it was given out and may have come back.
        latest: the last version that may take it, in a queue that has versions.
        given_in: the epoch of the version to which it was given there.
        shared: subscriptions see its payload too.
        lost: why its bytes are gone, and whose they were, in a phrase; empty as long as they are not.
    """

    payload: Any
    weight: int | float = 0
    size_bytes: int = 0
    priority: int = 0
    group: Any = None
    question: tuple[str, int] | None = None
    version: int | None = None
    origin: Any = None
    slot: int = 0
    order: int = -1
    since: float = 0.0
    attempts: int = 0
    latest: int = 0
    given_in: int = NOT_GIVEN
    shared: bool = False
    lost: str = ""

    @property
    def is_special(self) -> bool:
        """Whether it may leave its queue out of turn."""
        return self.priority != 0 or self.group is not None

    def for_subscription(self) -> Item:
        """Return the same payload as another item, which nobody answers."""
        self.shared = True
        return Item(
            self.payload,
            self.weight,
            self.size_bytes,
            self.priority,
            self.group,
            version=self.version,
            origin=self.origin,
            since=self.since,
            shared=True,
        )

    def __repr__(self) -> str:
        return f"Item(order={self.order}, weight={self.weight}, size_bytes={self.size_bytes})"


def marks_tell(items: Iterable[Item]) -> bool:
    """Return whether a mark on what was delivered tells that its consumer has taken it.

    What subscriptions read too they mark as well, so that tells nothing; and who is given it must not write into any of
    it, for it may be given out again.
    """
    for item in items:  # noqa: SIM110 - of every delivery, and mostly of one item: no generator
        if item.shared:
            return False
    return True


Exact = int | Fraction


def check_weight(weight: Any) -> int | float:
    """Return an item's weight as an int or float; 0 is allowed.

    Raises:
        ValueError: it is negative, not finite, or not a number.
    """
    if type(weight) is int and 0 <= weight < 1 << 63:
        return weight
    number = _as_number(weight)
    if isinstance(number, int):
        number = rounded(number)
    if number is None or not 0 <= number < math.inf:
        message = f"a weight is a finite number of at least 0, not {weight!r}"
        raise ValueError(message)
    return number if isinstance(number, float) and not number.is_integer() else rounded(exact(number))


def check_batch_weight(batch_weight: Any) -> int | float:
    """Return the weight that a batch has to reach as an int or float.

    Raises:
        ValueError: it is zero, negative, not finite, or not a number.
    """
    number = _as_number(batch_weight)
    if isinstance(number, int):
        number = rounded(number)
    if number is None or not 0 < number < math.inf:
        message = f"batch_weight is a finite number above 0, not {batch_weight!r}"
        raise ValueError(message)
    return number


def check_maxsize(maxsize: Any) -> int:
    """Return a bound in items per queue as an int; 0 means unbounded.

    Raises:
        ValueError: it is negative or not an integer.
    """
    number = _as_number(maxsize)
    if not isinstance(number, int) or number < 0:
        message = f"maxsize is an integer of at least 0 (0: unbounded), not {maxsize!r}"
        raise ValueError(message)
    return number


def exact(weight: float) -> Exact:
    """Return a checked weight as a number whose sums do not round.

    >>> exact(0.5) + exact(3)
    Fraction(7, 2)
    """
    if type(weight) is int:
        return weight
    if weight.is_integer():
        return int(weight)
    return Fraction(weight)


def rounded(weight: Exact | float) -> int | float:
    """Return an exact number as an int of at most 64 bits or, rounded, as a float: what messages carry.

    >>> rounded(exact(1e20))
    1e+20
    """
    if isinstance(weight, int) and weight < 1 << 63:
        return weight
    try:
        return float(weight)
    except OverflowError:
        return math.inf


def _as_number(value: Any) -> int | float | None:
    """Return ints and floats, NumPy's included, as Python's own; None for anything else, bools too."""
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return None
