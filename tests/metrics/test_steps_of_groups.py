"""When a step of a group is whole, and what becomes of the values of its ranks."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.metrics.steps import (
    MAX_OPEN,
    Logged,
    OpenSteps,
    Sample,
    checked_step,
    checked_values,
    reduction_of,
)
from rlinf_scheduler.session.membership import GroupMembers

WAIT_S = 60.0


def sample(rank, step, group="actor", world_size=2, **values):
    logged = tuple(Logged(name, value, reduction_of(name)) for name, value in values.items())
    return Sample(group, f"{group}:{rank}", world_size, step, logged)


@pytest.fixture
def steps():
    return OpenSteps(WAIT_S, count(1.0).__next__)


def shown(rows):
    return [(row.step, row.values, row.num_ranks) for row in rows]


def test_a_step_is_written_when_all_ranks_have_gone_on(steps):
    assert steps.add(sample(0, 1, loss=1.0), 0) == []
    assert steps.add(sample(1, 1, loss=3.0), 0) == []
    assert steps.add(sample(0, 2, loss=5.0), 0) == []
    assert shown(steps.add(sample(1, 2, loss=5.0), 0)) == [(1, {"actor/loss": 2.0}, 2)]


def test_values_are_reduced_by_their_names(steps):
    for rank in range(2):
        steps.add(sample(rank, 1, loss=rank, loss_max=rank, loss_min=rank, tokens_total=rank + 1), 0)
    (row,) = steps.close()
    assert row.values == {
        "actor/loss": 0.5,
        "actor/loss_max": 1,
        "actor/loss_min": 0,
        "actor/tokens_total": 3,
    }


def test_all_that_a_rank_logs_in_a_step_counts(steps):
    for loss in 1.0, 2.0, 3.0:
        steps.add(sample(0, 1, world_size=1, loss=loss), 0)
    assert shown(steps.add(sample(0, 2, world_size=1, loss=9.0), 0)) == [(1, {"actor/loss": 2.0}, 1)]


def test_a_rank_that_is_gone_holds_a_step_once(steps):
    for rank in range(2):
        steps.add(sample(rank, 1, loss=rank), 0)
    assert shown(steps.add(sample(0, 2, loss=1.0), 1)) == []
    assert steps.due(WAIT_S - 1) == []
    steps.add(sample(0, 3, loss=1.0), WAIT_S)
    assert [row.step for row in steps.due(WAIT_S + 1)] == [1, 2]
    assert [row.step for row in steps.add(sample(0, 4, loss=1.0), WAIT_S + 2)] == [3]


def test_where_one_rank_logs_for_all_only_the_first_step_waits(steps):
    steps.add(sample(0, 1, loss=1.0), 0)
    assert steps.add(sample(0, 2, loss=1.0), 1) == []
    assert [row.step for row in steps.due(WAIT_S)] == [1]
    assert [row.step for row in steps.add(sample(0, 3, loss=1.0), WAIT_S)] == [2]


def test_ranks_that_have_left_hold_no_step_and_those_that_come_are_waited_for(steps):
    for rank in range(2):
        steps.add(sample(rank, 1, loss=rank), 0)
    steps.add(sample(0, 2, loss=3.0), 0)
    assert shown(steps.resize(GroupMembers("actor", (0,), epoch=1))) == [(1, {"actor/loss": 0.5}, 2)]
    assert [row.step for row in steps.add(sample(0, 3, world_size=1, loss=1.0), 0)] == [2]
    steps.resize(GroupMembers("actor", (0, 2), epoch=2))
    assert [row.step for row in steps.add(sample(0, 4, world_size=2, loss=1.0), 0)] == [3]
    assert steps.add(sample(0, 5, world_size=2, loss=1.0), 0) == []
    steps.add(sample(2, 4, world_size=2, loss=3.0), 0)
    assert shown(steps.add(sample(2, 5, world_size=2, loss=1.0), 0)) == [(4, {"actor/loss": 2.0}, 2)]


def test_the_driver_keeps_its_names(steps):
    steps.add(sample(0, 1, group="", world_size=1, loss=1.0), 0)
    assert shown(steps.close()) == [(1, {"loss": 1.0}, 1)]


def test_what_comes_late_is_a_row_of_its_own_and_is_told(steps):
    steps.add(sample(0, 1, loss=1.0), 0)
    assert len(steps.due(WAIT_S)) == 1
    assert steps.late is None
    steps.add(sample(1, 1, loss=2.0), WAIT_S)
    assert steps.late == ("actor:1", 1)
    assert shown(steps.close()) == [(1, {"actor/loss": 2.0}, 1)]


def test_steps_may_come_in_any_order(steps):
    rows = [row for step in (5, 3, 4) for row in steps.add(sample(0, step, world_size=1, loss=step), 0)]
    assert shown([*rows, *steps.close()]) == [(step, {"actor/loss": step}, 1) for step in (5, 3, 4)]


def test_the_number_of_open_steps_is_bounded(steps):
    rows = [row for step in range(MAX_OPEN + 10) for row in steps.add(sample(0, step, loss=1.0), 0)]
    assert [row.step for row in rows] == list(range(10))


def test_a_step_that_never_ends_is_written_now_and_then(steps):
    rows = []
    for now in range(0, 2000, 10):
        rows += steps.add(sample(0, 1, world_size=1, seen_count=1), now) + steps.due(now)
    assert [row.values["actor/seen_count"] for row in rows] == [61, 61, 61]


@pytest.mark.parametrize(
    ("values", "largest", "smallest"),
    [([1, 3, 2], 3, 1), ([3, 1, 2], 3, 1), ([-1], -1, -1), ([float("nan"), 2, 1], 2, 1)],
)
def test_the_largest_and_the_smallest_value(steps, values, largest, smallest):
    for value in values:
        steps.add(sample(0, 1, world_size=1, a_max=value, a_min=value), 0)
    (row,) = steps.close()
    assert row.values == {"actor/a_max": largest, "actor/a_min": smallest}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.floats(0, 50))))
def test_every_value_is_written_once(logged):
    steps, now, rows = OpenSteps(WAIT_S, lambda: 0.0), 0.0, []
    for rank, step, passed_s in logged:
        now += passed_s
        rows += steps.add(sample(rank, step, world_size=4, seen_count=1), now) + steps.due(now)
    rows += steps.close()
    assert sum(row.values["actor/seen_count"] for row in rows) == len(logged)


@pytest.mark.parametrize("step", [None, -1, 1.5, "3", True, 1 << 63])
def test_a_step_is_a_whole_number(step):
    with pytest.raises(ConfigError, match="whole number from 0"):
        checked_step(step)


@pytest.mark.parametrize(
    ("metrics", "reduce", "problem"),
    [
        ({"loss": "1"}, None, "'loss' is a str, not one number"),
        ({"loss": None}, None, "'loss' is a NoneType"),
        ({"loss": [1.0]}, None, "'loss' is a list"),
        ({3: 1.0}, None, "3 is no name"),
        ({"loss": 1.0}, "median", "it is one of mean, sum, max, min"),
        ([("loss", 1.0)], None, "takes numbers by name, not a list"),
    ],
)
def test_what_is_no_metric_is_refused(metrics, reduce, problem):
    with pytest.raises(ConfigError, match=problem):
        checked_values(metrics, reduce)


def test_numbers_of_other_libraries_are_numbers():
    import numpy as np

    values = {"a": np.float32(1.5), "b": np.array(2.0), "c": True, "d": float("nan")}
    assert [logged.value for logged in checked_values(values, None)][:3] == [1.5, 2.0, 1.0]
