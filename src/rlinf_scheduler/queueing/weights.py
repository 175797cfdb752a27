"""What a weight may be, and how weights are summed.

A queue's total weight is kept up to date by adding what enters and subtracting what leaves. With floats
that drifts, and a batch would be ready or not depending on what passed through the queue before. So sums are
exact: integers stay integers (the common case: tokens, steps), other floats become the fraction they are.
"""

from __future__ import annotations

import math
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

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
