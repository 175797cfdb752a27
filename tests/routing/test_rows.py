"""The rows of batches: counted, split into views, merged by one copy."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.errors import RouteError
from rlinf_scheduler.routing import count_rows, merge_rows, split_rows


@dataclass
class Policy:
    actions: Any
    values: Any = None
    inputs: dict = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Frozen:
    rewards: Any
    step: int = 0


class Pair(NamedTuple):
    left: Any
    right: Any


def batch_of(rows):
    return {
        "obs": {
            "states": torch.arange(rows * 2.0).reshape(rows, 2),
            "images": None,
            "mask": np.arange(rows) > 1,
        },
        "texts": [f"task {row}" for row in range(rows)],
        "policy": Policy(np.arange(rows), inputs={"tokens": np.ones((rows, 3))}),
        "frozen": Frozen(torch.ones(rows), step=7),
        "pair": Pair(np.arange(rows), [{"row": row} for row in range(rows)]),
        "step": 7,
        "temperature": np.float32(0.5),
        "scale": torch.tensor(2.0),
        "nothing": math.nan,
    }


def same(left, right):
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert list(left) == list(right)
        return all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Policy | Frozen):
        return all(same(getattr(left, name), getattr(right, name)) for name in left.__dataclass_fields__)
    return (
        np.array_equal(left, right, equal_nan=True)
        if not isinstance(left, str | None | dict)
        else left == right
    )


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(sum))
def test_the_parts_of_a_batch_merge_to_the_batch(sizes):
    batch = batch_of(sum(sizes))
    parts = split_rows(batch, sizes)
    assert [count_rows(part) for part in parts] == sizes
    assert same(merge_rows(parts), batch)


def test_parts_are_views_and_one_part_is_merged_as_it_is():
    batch = batch_of(6)
    first, last = split_rows(batch, [4, 2])
    assert np.shares_memory(last["pair"].left, batch["pair"].left)
    assert last["obs"]["states"].data_ptr() == batch["obs"]["states"][4:].data_ptr()
    assert last["scale"] is batch["scale"]
    assert merge_rows([first]) is first


def test_splitting_changes_nothing_of_the_batch():
    batch = batch_of(4)
    split_rows(batch, [3, 1])
    assert same(batch, batch_of(4))


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ({"a": [1, 2], "b": {"c": np.ones(3)}}, r"batch\['a'\] has 2 rows, and batch\['b'\]\['c'\] has 3"),
        ({"a": None, "b": 3}, "nothing in it has rows: a dict"),
        ("text", "nothing in it has rows: a str"),
        ({"a": {1, 2}}, r"batch\['a'\] is a set, which has no rows to split"),
        (Policy(np.ones(2), values=[1]), r"batch.actions has 2 rows, and batch.values has 1"),
        ((np.ones(2), object()), r"batch\[1\] is an object"),
    ],
)
def test_what_has_no_rows_is_an_error_that_says_where_it_stands(batch, problem):
    with pytest.raises(RouteError, match=problem):
        count_rows(batch)


def test_parts_that_are_not_the_whole_batch_are_an_error():
    with pytest.raises(RouteError, match="parts of 2, 1 rows are not the batch's 4"):
        split_rows(np.ones(4), [2, 1])


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([], "there is nothing to merge"),
        ([{"a": [1]}, {"b": [1]}], r"not all parts have batch\['a'\], batch\['b'\]"),
        ([{"a": [1]}, {"a": None}], r"batch\['a'\] is not the same in all parts: a list, a NoneType"),
        (
            [{"a": [1], "step": 1}, {"a": [2], "step": 2}],
            r"batch\['step'\] is not the same in all parts: 1, 2",
        ),
        ([np.ones((1, 2)), np.ones((1, 3))], r"parts of shapes \(1, 2\), \(1, 3\) cannot be merged"),
        ([torch.ones(1, 2), torch.ones(1, 3)], r"parts of shapes \(1, 2\), \(1, 3\) cannot be merged"),
        ([(object(),), (object(),)], r"batch\[0\] is an object"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_an_error(parts, problem):
    with pytest.raises(RouteError, match=problem):
        merge_rows(parts)
