"""What an item costs: on the lines between points, measured or of a function."""

import math

import pytest

from rlinf_scheduler.queueing.balance import by_table, checked_table, sampled


def test_between_points_and_beyond_them_it_is_on_a_line():
    table = checked_table([(10, 5), (20, 25)])
    assert [by_table(table, weight) for weight in (0, 5, 10, 15, 20, 30)] == [0, 2.5, 5, 15, 25, 45]


def test_a_line_that_falls_ends_at_nothing():
    assert by_table(checked_table([(0, 5), (10, 1)]), 100) == 0


@pytest.mark.parametrize(
    "function", [lambda w: w, lambda w: w * w, lambda w: 3 * w + w * w / 4096, math.sqrt]
)
@pytest.mark.parametrize("weight", [1, 3, 100, 777.5, 4097, 131_072, 10_000_000])
def test_a_function_is_met_within_one_percent(function, weight):
    assert by_table(sampled(function), weight) == pytest.approx(function(weight), rel=0.01)


@pytest.mark.parametrize(
    "points",
    [[], [(0, 1)], [(5, 1), (5, 2)], [(8, 1), (4, 2)], [(1, -1)], [(1, math.inf)], [(-1, 1), (2, 2)]],
)
def test_points_that_make_no_line_are_refused(points):
    with pytest.raises(ValueError, match=r"at least 0|ascend"):
        checked_table(points)
