"""Every item is in one part, and parts cost about the same."""

import random
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.queueing.balance import balanced, imbalance, least_loaded, round_robin

COSTS = st.lists(st.one_of(st.integers(0, 100), st.floats(0, 100)), max_size=60)


def heavy_tailed(count, seed=1):
    dice = random.Random(seed)
    return [int(dice.lognormvariate(6, 1)) + 1 for _ in range(count)]


@given(COSTS, st.integers(1, 9))
def test_every_item_is_in_exactly_one_part_in_order(costs, num_shards):
    for parts in (
        round_robin(len(costs), num_shards, first=3),
        least_loaded(costs, num_shards),
        balanced(costs, num_shards),
        balanced(costs, num_shards, equal_counts=True),
    ):
        assert len(parts) == num_shards
        assert sorted(place for part in parts for place in part) == list(range(len(costs)))
        assert all(part == sorted(part) for part in parts)


@given(COSTS, st.integers(1, 9))
def test_equal_counts_differ_by_at_most_one(costs, num_shards):
    sizes = [len(part) for part in balanced(costs, num_shards, equal_counts=True)]
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(1, 9))
def test_parts_differ_by_at_most_the_largest_item(costs, num_shards):
    for equal_counts in (False, True):
        parts = balanced(costs, num_shards, equal_counts=equal_counts)
        loads = [sum(costs[place] for place in part) for part in parts]
        assert max(loads) - min(loads) <= max(costs)


def test_a_table_of_divisions():
    assert balanced([4, 5, 6, 7, 8], 2) == [[0, 1, 3], [2, 4]]
    assert least_loaded([4, 5, 6], 2) == [[0, 2], [1]]
    assert round_robin(3, 2) == [[0, 2], [1]]
    assert balanced([], 2) == [[], []]
    assert imbalance([0, 0], [[0], [1]]) == 1.0
    assert imbalance([3, 1], [[0], [1]]) == 1.5


@pytest.mark.parametrize("equal_counts", [False, True])
def test_heavy_tailed_items_are_divided_better_than_in_turn_and_in_time(equal_counts):
    costs = heavy_tailed(8192)
    times = []
    for _ in range(5):
        began = process_time()
        parts = balanced(costs, 64, equal_counts=equal_counts)
        times.append(process_time() - began)
    assert min(times) < 0.2  # 0.03 where nothing else runs
    assert imbalance(costs, parts) < imbalance(costs, round_robin(8192, 64)) - 0.2
    assert imbalance(costs, parts) < 1.001
