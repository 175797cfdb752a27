"""Batches by weight, count, bytes and time, on every backend."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf_scheduler.errors import BatchImpossible, BatchTimeout, ChannelArgumentError, ChannelTimeout

DEADLINE_S = 60.0


def fill(channel, weights, queue_name="default"):
    for number, weight in enumerate(weights):
        channel.put(number, weight, queue_name)


def test_at_least_one_and_at_most_n_of_what_is_there(backend):
    channel = backend.create()
    handle = channel.get_batch(max_items=3, async_op=True)
    fill(channel, [0] * 6)
    assert handle.wait(DEADLINE_S) == [0]
    assert channel.get_batch(max_items=3, timeout_s=DEADLINE_S) == [1, 2, 3]
    batch = channel.get_batch(max_items=3, timeout_s=DEADLINE_S)
    assert (batch, batch.complete) == ([4, 5], True)


def test_a_batch_that_may_wait_gives_others_time_to_join(backend):
    channel = backend.create()
    handle = channel.get_batch(max_items=3, max_wait_s=DEADLINE_S, async_op=True)
    fill(channel, [0] * 3)
    assert handle.wait(DEADLINE_S) == [0, 1, 2]
    handle = channel.get_batch(max_items=3, max_wait_s=0.01, async_op=True)
    fill(channel, [0])
    batch = handle.wait(DEADLINE_S)
    assert (batch, batch.complete) == ([0], True)


def test_a_weight_that_is_not_reached_in_time_gives_what_is_there(backend):
    channel = backend.create()
    fill(channel, [1, 1])
    batch = channel.get_batch(8, max_wait_s=0.01, timeout_s=DEADLINE_S)
    assert (batch, batch.complete) == ([0, 1], False)


def test_max_wait_begins_with_the_least_of_a_batch(in_process):
    channel = in_process.create()
    handle = channel.get_batch(8, min_items=2, max_wait_s=0, async_op=True)
    channel.put("a", 1)
    channel.qsize()
    assert not handle.done()
    channel.put("b", 1)
    assert handle.wait(DEADLINE_S) == ["a", "b"]


def test_a_full_queue_does_not_wait_for_more(in_process):
    channel = in_process.create(maxsize=2)
    fill(channel, [1, 1])
    assert channel.get_batch(8, max_wait_s=3600, timeout_s=DEADLINE_S) == [0, 1]


def test_bounds_end_a_batch_before_its_weight(in_process):
    channel = in_process.create()
    fill(channel, [1] * 5)
    batch = channel.get_batch(4, max_items=2)
    assert (batch, batch.complete) == ([0, 1], True)
    assert channel.get_batch(2, min_items=3) == [2, 3, 4]


def test_a_batch_of_bytes_takes_a_larger_item_alone(in_process):
    channel = in_process.create()
    for size in (100, 100, 5000, 100):
        channel.put(np.zeros(size, np.uint8), 1)
    sizes = [[len(item) for item in channel.get_batch(max_bytes=1500)] for _ in range(3)]
    assert sizes == [[100, 100], [5000], [100]]


def test_a_batch_by_a_shortcut_says_whether_it_is_complete(sockets):
    channel = sockets.create()
    for _ in range(20):
        fill(channel, [1, 1])
        batch = channel.get_batch(8, max_wait_s=0, timeout_s=DEADLINE_S)
        assert (batch, batch.complete) == ([0, 1], False)


@pytest.mark.usefixtures("patient")
def test_what_does_not_come_says_what_was_wanted_and_what_other_queues_hold(backend):
    channel = backend.create()
    fill(channel, [1, 2])
    fill(channel, [5, 5, 5], "trian")
    wanted = r"a batch of weight 8 of at most 4 items is wanted; there are 2 items of weight 3"
    with pytest.raises(BatchTimeout, match=wanted + r".*'trian' holds 3 items of weight 15") as caught:
        channel.get_batch(8, max_items=4, timeout_s=0.5)
    assert isinstance(caught.value, ChannelTimeout)


def test_a_bounded_queue_that_cannot_come_to_a_batch_says_so(in_process):
    channel = in_process.create(maxsize=2)
    fill(channel, [1, 1])
    with pytest.raises(BatchImpossible, match="a batch of weight 8"):
        channel.get_batch(8, timeout_s=DEADLINE_S)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "get_batch takes batch_weight"),
        ({"max_items": 0}, "max_items"),
        ({"max_items": 2.5}, "max_items"),
        ({"max_bytes": -1}, "max_bytes"),
        ({"min_items": True}, "min_items"),
        ({"max_wait_s": -1}, "max_wait_s"),
        ({"min_items": 3, "max_items": 2}, "at least 3 and at most 2"),
        ({"min_items": 9}, "holds at most 8"),
        ({"batch_weight": 1, "target_weight": 1, "max_items": 2}, "another name"),
    ],
)
def test_batches_that_make_no_sense_are_refused(in_process, options, problem):
    channel = in_process.create(maxsize=8)
    with pytest.raises(ChannelArgumentError, match=problem):
        channel.get_batch(**options)


def test_an_item_that_alone_is_too_heavy_comes_alone_or_is_refused(backend):
    channel = backend.create()
    fill(channel, [1, 9, 2, 2])
    assert channel.get_batch(4, oversize="raise", timeout_s=DEADLINE_S) == [0]
    with pytest.raises(BatchImpossible, match=r"its head is an item of weight 9 and \d+ bytes; get it alone"):
        channel.get_batch(4, oversize="raise", timeout_s=DEADLINE_S)
    assert channel.get_batch(4, oversize="alone", timeout_s=DEADLINE_S) == [1]
    assert channel.get_batch(4, oversize="alone", timeout_s=DEADLINE_S) == [2, 3]


def test_another_policy_for_what_is_too_heavy_is_refused(in_process):
    with pytest.raises(ChannelArgumentError, match="oversize is None, 'alone' or 'raise', not 'drop'"):
        in_process.create().get_batch(4, oversize="drop")
