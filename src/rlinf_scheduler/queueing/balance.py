"""What an item costs, by its weight: a formula, or a table with straight lines between its points."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heapreplace

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


Cost = float
# The cost of what a part has so far, a number that tells equal ones apart, and the positions (in nested lists).
_Set = tuple[Cost, int, list[object]]


def round_robin(num_items: int, num_parts: int, first: int = 0) -> list[list[int]]:
    """Divide in turn; the first item goes to part `first`.

    >>> round_robin(5, 2, first=1)
    [[1, 3], [0, 2, 4]]
    """
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    for place in range(num_items):
        parts[(first + place) % num_parts].append(place)
    return parts


def least_loaded(costs: Sequence[Cost], num_parts: int) -> list[list[int]]:
    """Give each item, in order, to the part that has the least to do.

    >>> least_loaded([5, 1, 1, 1], 2)
    [[0], [1, 2, 3]]
    """
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    loads: list[tuple[Cost, int]] = [(0, part) for part in range(num_parts)]
    for place, cost in enumerate(costs):
        load, part = loads[0]
        parts[part].append(place)
        heapreplace(loads, (load + cost, part))
    return parts


def balanced(costs: Sequence[Cost], num_parts: int, *, equal_counts: bool = False) -> list[list[int]]:
    """Divide by differencing; each part's positions ascend.

    Args:
        costs: of each item, at least 0.
        num_parts: how many parts to make.
        equal_counts: parts differ by at most one in their number of items.

    >>> balanced([8, 7, 6, 5, 4], 2)
    [[0, 2], [1, 3, 4]]
    """
    heaviest_first = sorted(range(len(costs)), key=lambda place: -costs[place])
    if equal_counts:
        by_rows = _by_differencing(_rows(heaviest_first, costs, num_parts), num_parts)
        parts = min(by_rows, _greedy(heaviest_first, costs, num_parts), key=partial(_unevenness, costs))
    else:
        parts = _by_differencing([[(costs[place], place, [place])] for place in heaviest_first], num_parts)
    return sorted(map(sorted, parts), key=lambda part: part[:1] or [len(costs)])


def imbalance(costs: Sequence[Cost], parts: Sequence[Sequence[int]]) -> float:
    """Return the largest part's cost over the mean: 1 is best."""
    loads = [sum(costs[place] for place in part) for part in parts]
    total = sum(loads)
    return float(max(loads) * len(loads) / total) if total else 1.0


def _unevenness(costs: Sequence[Cost], parts: Sequence[Sequence[int]]) -> Cost:
    loads = [sum(costs[place] for place in part) for part in parts]
    return max(loads) - min(loads)


def _greedy(heaviest_first: list[int], costs: Sequence[Cost], num_parts: int) -> list[list[int]]:
    """Each item to the part that has the least to do and is not full: parts of equal counts, or one less."""
    size, num_larger = divmod(len(heaviest_first), num_parts)
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    loads: list[tuple[Cost, int]] = [(0, part) for part in range(num_parts)]
    for place in heaviest_first:
        while len(parts[loads[0][1]]) >= size + (num_larger > 0):
            heappop(loads)
        load, part = loads[0]
        parts[part].append(place)
        heapreplace(loads, (load + costs[place], part))
        num_larger -= len(parts[part]) > size
    return parts


def _by_differencing(divisions: list[list[_Set]], num_parts: int) -> list[list[int]]:
    parts = [_flat(places) for _, _, places in _difference(divisions, num_parts)]
    return parts + [[] for _ in range(num_parts - len(parts))]


def _rows(heaviest_first: list[int], costs: Sequence[Cost], num_parts: int) -> list[list[_Set]]:
    """Divisions of one item a part each, of items that cost about the same; the last may leave parts out."""
    rows = []
    for start in range(0, len(heaviest_first), num_parts):
        row: list[_Set] = [
            (costs[place], place, [place]) for place in heaviest_first[start : start + num_parts]
        ]
        row += [(0, -1 - part, []) for part in range(num_parts - len(row))]
        rows.append(sorted(row))
    return rows


def _difference(divisions: list[list[_Set]], num_parts: int) -> list[_Set]:
    """Join divisions until one is left. Each is sorted, and holds no set for parts that have nothing."""
    heap = [(-_spread(division, num_parts), number, division) for number, division in enumerate(divisions)]
    heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        _, _, one = heappop(heap)
        _, _, other = heap[0]
        joined = _join(one, other, num_parts)
        number += 1
        heapreplace(heap, (-_spread(joined, num_parts), number, joined))
    return heap[0][2] if heap else []


def _spread(division: list[_Set], num_parts: int) -> Cost:
    return division[-1][0] - (division[0][0] if len(division) == num_parts else 0)


def _join(one: list[_Set], other: list[_Set], num_parts: int) -> list[_Set]:
    if len(one) < len(other):
        one, other = other, one
    free = num_parts - len(one)
    # The heaviest of the smaller division: first beside nothing at all, then to the lightest.
    heaviest_first = other[::-1]
    added = heaviest_first[:free]
    pairs = zip(heaviest_first[free:], one, strict=False)
    met: list[_Set] = [(mine[0] + theirs[0], theirs[1], [theirs[2], mine[2]]) for mine, theirs in pairs]
    rest = one[len(met) :]
    rest += met
    rest += added
    # All but the last ones are in order, which `sort` makes use of.
    rest.sort()
    return rest


def _flat(places: list[object]) -> list[int]:
    flat: list[int] = []
    stack: list[object] = [places]
    while stack:
        top = stack.pop()
        if isinstance(top, list):
            stack.extend(top)
        elif isinstance(top, int):
            flat.append(top)
    return flat
