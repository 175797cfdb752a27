"""Ways to divide items among shards so that each has about as much to do: lists of positions, one a shard.

Karmarkar and Karp, "The differencing method of set partitioning" (1982), for many sets: the two partial divisions that
differ most within themselves are joined, the heaviest shard of one with the lightest of the other, until one is left.
Where parts have to have equal counts, differencing starts from rows of items of like costs; a few heavy ones are then
better placed by greed, and the better of the two is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from heapq import heapify, heappop, heapreplace

Cost = float
# The cost of what a shard has so far, a number that tells equal ones apart, and the positions (in nested lists).
_Set = tuple[Cost, int, list[object]]


def round_robin(num_items: int, num_shards: int, first: int = 0) -> list[list[int]]:
    """Divide in turn; the first item goes to shard `first`.

    >>> round_robin(5, 2, first=1)
    [[1, 3], [0, 2, 4]]
    """
    parts: list[list[int]] = [[] for _ in range(num_shards)]
    for place in range(num_items):
        parts[(first + place) % num_shards].append(place)
    return parts


def least_loaded(costs: Sequence[Cost], num_shards: int) -> list[list[int]]:
    """Give each item, in order, to the shard that has the least to do.

    >>> least_loaded([5, 1, 1, 1], 2)
    [[0], [1, 2, 3]]
    """
    parts: list[list[int]] = [[] for _ in range(num_shards)]
    loads: list[tuple[Cost, int]] = [(0, shard) for shard in range(num_shards)]
    for place, cost in enumerate(costs):
        load, shard = loads[0]
        parts[shard].append(place)
        heapreplace(loads, (load + cost, shard))
    return parts


def balanced(costs: Sequence[Cost], num_shards: int, *, equal_counts: bool = False) -> list[list[int]]:
    """Divide by differencing; each shard's positions ascend.

    Args:
        costs: of each item, at least 0.
        num_shards: how many parts to make.
        equal_counts: parts differ by at most one in their number of items.

    >>> balanced([8, 7, 6, 5, 4], 2)
    [[0, 2], [1, 3, 4]]
    """
    heaviest_first = sorted(range(len(costs)), key=lambda place: -costs[place])
    if equal_counts:
        by_rows = _by_differencing(_rows(heaviest_first, costs, num_shards), num_shards)
        parts = min(by_rows, _greedy(heaviest_first, costs, num_shards), key=partial(_unevenness, costs))
    else:
        parts = _by_differencing([[(costs[place], place, [place])] for place in heaviest_first], num_shards)
    return sorted(map(sorted, parts), key=lambda part: part[:1] or [len(costs)])


def imbalance(costs: Sequence[Cost], parts: Sequence[Sequence[int]]) -> float:
    """Return the largest part's cost over the mean: 1 is best."""
    loads = [sum(costs[place] for place in part) for part in parts]
    total = sum(loads)
    return float(max(loads) * len(loads) / total) if total else 1.0


def _unevenness(costs: Sequence[Cost], parts: Sequence[Sequence[int]]) -> Cost:
    loads = [sum(costs[place] for place in part) for part in parts]
    return max(loads) - min(loads)


def _greedy(heaviest_first: list[int], costs: Sequence[Cost], num_shards: int) -> list[list[int]]:
    """Each item to the shard that has the least to do and is not full: parts of equal counts, or one less."""
    size, num_larger = divmod(len(heaviest_first), num_shards)
    parts: list[list[int]] = [[] for _ in range(num_shards)]
    loads: list[tuple[Cost, int]] = [(0, shard) for shard in range(num_shards)]
    for place in heaviest_first:
        while len(parts[loads[0][1]]) >= size + (num_larger > 0):
            heappop(loads)
        load, shard = loads[0]
        parts[shard].append(place)
        heapreplace(loads, (load + costs[place], shard))
        num_larger -= len(parts[shard]) > size
    return parts


def _by_differencing(divisions: list[list[_Set]], num_shards: int) -> list[list[int]]:
    parts = [_flat(places) for _, _, places in _difference(divisions, num_shards)]
    return parts + [[] for _ in range(num_shards - len(parts))]


def _rows(heaviest_first: list[int], costs: Sequence[Cost], num_shards: int) -> list[list[_Set]]:
    """Divisions of one item a shard each, of items that cost about the same; the last may leave shards out."""
    rows = []
    for start in range(0, len(heaviest_first), num_shards):
        row: list[_Set] = [
            (costs[place], place, [place]) for place in heaviest_first[start : start + num_shards]
        ]
        row += [(0, -1 - shard, []) for shard in range(num_shards - len(row))]
        rows.append(sorted(row))
    return rows


def _difference(divisions: list[list[_Set]], num_shards: int) -> list[_Set]:
    """Join divisions until one is left. Each is sorted, and holds no set for shards that have nothing."""
    heap = [(-_spread(division, num_shards), number, division) for number, division in enumerate(divisions)]
    heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        _, _, one = heappop(heap)
        _, _, other = heap[0]
        joined = _join(one, other, num_shards)
        number += 1
        heapreplace(heap, (-_spread(joined, num_shards), number, joined))
    return heap[0][2] if heap else []


def _spread(division: list[_Set], num_shards: int) -> Cost:
    return division[-1][0] - (division[0][0] if len(division) == num_shards else 0)


def _join(one: list[_Set], other: list[_Set], num_shards: int) -> list[_Set]:
    if len(one) < len(other):
        one, other = other, one
    free = num_shards - len(one)
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
