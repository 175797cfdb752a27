"""What an item costs, by its weight: a formula, or a table with straight lines between its points."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

Point = tuple[float, float]

# A function is looked at four times between a weight and its double, up to 16 million.
PER_DOUBLING = 4
MAX_DOUBLINGS = 24


def by_formula(linear: float, quadratic: float, weight: float) -> float:
    """Return linear * weight + quadratic * weight ** 2."""
    return linear * weight + quadratic * weight * weight


def by_table(table: Sequence[Point], weight: float) -> float:
    """Return the cost on the line between the two nearest points; beyond the last one its line goes on.

    >>> by_table(((0, 0), (10, 5), (20, 25)), 15), by_table(((0, 0), (10, 5), (20, 25)), 30)
    (15.0, 45.0)
    """
    place = min(max(bisect_right(table, (weight, math.inf)), 1), len(table) - 1)
    (low, its_cost), (high, other_cost) = table[place - 1], table[place]
    return max(0.0, its_cost + (other_cost - its_cost) * (weight - low) / (high - low))


def checked_table(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return a table, with (0, 0) before its first point if it does not begin at 0.

    Raises:
        ValueError: the weights do not ascend, a cost is negative or not finite, or there is no line.
    """
    table = tuple((float(weight), float(cost)) for weight, cost in points)
    if table and table[0][0] > 0:
        table = ((0.0, 0.0), *table)
    if not all(0 <= number < math.inf for point in table for number in point):
        message = "weights and costs are finite numbers of at least 0"
        raise ValueError(message)
    if len(table) < 2 or any(one[0] >= other[0] for one, other in itertools.pairwise(table)):
        message = "the weights of its points ascend, and one of them is above 0"
        raise ValueError(message)
    return table


def sampled(function: Callable[[float], float]) -> tuple[Point, ...]:
    """Return the table of a function of the weight; of a square it is at most one percent too much.

    Raises:
        ValueError: it gives something else than a finite number of at least 0.
    """
    weights = sorted({0, *(round(2 ** (k / PER_DOUBLING)) for k in range(PER_DOUBLING * MAX_DOUBLINGS + 1))})
    # Machines may differ in the last digits, and all ranks are to say the same.
    return checked_table([(weight, float(f"{float(function(weight)):.9g}")) for weight in weights])
