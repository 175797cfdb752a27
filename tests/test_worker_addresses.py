"""Names of workers: ranks, and those below them."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.addresses import (
    WorkerAddress,
    is_below,
    parent_name,
    process_order,
    root_name,
    worker_address,
    worker_name,
)

GROUPS = st.sampled_from(["rollout", "outer:0/inner", "a b", "x/1"])
PATHS = st.lists(st.integers(0, 10**6), min_size=1, max_size=4)


@given(group=GROUPS, path=PATHS)
def test_an_address_is_what_its_text_says(group, path):
    address = WorkerAddress(group, path)
    text = str(address)
    assert WorkerAddress.parse(text) == worker_address(text) == address == pickle.loads(pickle.dumps(address))
    assert (
        text == worker_name(group, path) == worker_name(group, address.way) == worker_name(group, tuple(path))
    )
    assert (address.rank, address.path) == (path[-1], tuple(path))
    assert root_name(text) == f"{group}:{path[0]}"


@given(group=GROUPS, path=PATHS, number=st.integers(0, 99))
def test_a_worker_below_another_has_that_one_as_its_parent(group, path, number):
    above = WorkerAddress(group, path)
    below = above.child(number)
    assert (below.parent, parent_name(str(below))) == (above, str(above))
    assert is_below(str(below), str(above))
    assert not is_below(str(above), str(below))
    assert process_order(str(above)) < process_order(str(below))
    assert WorkerAddress(group, path[0]).parent is None
    assert parent_name(f"{group}:{path[0]}") == ""


def test_addresses_sort_by_group_and_numbers():
    names = ["b:0", "a:10", "a:2/10", "a:2", "a:2/9/1", "a:2/9"]
    assert [str(each) for each in sorted(map(WorkerAddress.parse, names))] == [
        "a:2",
        "a:2/9",
        "a:2/9/1",
        "a:2/10",
        "a:10",
        "b:0",
    ]


@pytest.mark.parametrize(
    "rank", [-1, True, 1.5, None, "", "x", "-1", "01", "3/", "/0", "3//0", "٣", [], [3, -1], [3, "0"], ("3",)]
)
def test_what_is_no_rank_is_refused(rank):
    with pytest.raises(ValueError, match="is no rank"):
        WorkerAddress("rollout", rank)


@pytest.mark.parametrize("text", ["", "rollout", "rollout:", ":0", "rollout:x", "rollout:0/", "rollout:0/x"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="is not a worker's address"):
        WorkerAddress.parse(text)
    assert worker_address(text) is None


def test_a_group_that_a_rank_launched_is_not_below_it():
    assert parent_name("outer:0/inner:2") == ""
    assert not is_below("outer:0/inner:2", "outer:0")
    assert root_name("outer:0/inner:2/5") == "outer:0/inner:2"
