"""Data-parallel ranks are fed evenly, see the same number of batches, and nobody is left alone."""

from __future__ import annotations

import channel_roles as roles
import numpy as np
import pytest

from rlinf_scheduler.errors import (
    BatchTimeout,
    ChannelArgumentError,
    ChannelClosed,
    ChannelError,
    LeaseExpired,
)

DEADLINE_S = 60.0
LARGE = 1 << 16  # of float64, so that it lies in shared memory


def fill(channel, weights):
    for number, weight in enumerate(weights):
        channel.put(number, weight)


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded", "balanced"])
def test_all_ranks_see_the_same_steps_and_every_item_comes_once(backend, policy):
    channel = backend.create()
    options = {"policy": policy, "batch_items": 10}
    tasks = [backend.run(roles.train, channel, index, 2, options) for index in range(2)]
    fill(channel, [1 + number % 7 for number in range(25)])
    channel.end()
    one, two = (task.result(DEADLINE_S) for task in tasks)
    about = [(step, uneven, complete) for step, _, uneven, complete in one]
    assert about == [(step, uneven, complete) for step, _, uneven, complete in two]
    assert [(step, complete) for step, _, complete in about] == [(0, True), (1, True), (2, False)]
    assert sorted(item for _, items, _, _ in one + two for item in items) == list(range(25))


def test_two_ranks_and_three_batches_end_together(backend):
    """The obvious way, a `get_batch` each, leaves one of them alone with the third."""
    channel = backend.create()
    fill(channel, [1] * 3)
    channel.end()
    tasks = [backend.run(roles.train, channel, index, 2, {"batch_items": 1}) for index in range(2)]
    steps = [[step for step, *_ in task.result(DEADLINE_S)] for task in tasks]
    assert steps == [[0, 1, 2], [0, 1, 2]]


def test_a_balanced_step_says_how_even_it_is(in_process):
    channel = in_process.create()
    fill(channel, [8, 1, 1, 6])
    channel.end()
    options = {"policy": "balanced", "batch_weight": 16, "cost": "quadratic"}
    shards = [channel.shard(index, 2, **options) for index in range(2)]
    first, second = (shard.next_batch(DEADLINE_S) for shard in shards)
    assert (first, second) == ([0], [1, 2, 3])
    assert (first.weight, second.weight) == (8, 8)
    assert first.imbalance == second.imbalance == 64 / 51
    assert second.split(2) == [[1, 2], [3]]


@pytest.mark.parametrize("cost", [lambda weight: weight**2, [(1, 1), (6, 36), (8, 64)]])
def test_a_cost_may_be_measured_or_a_function(backend, cost):
    channel = backend.create()
    fill(channel, [8, 1, 1, 6])
    channel.end()
    shards = [
        channel.shard(index, 2, policy="balanced", batch_items=4, cost=cost, queue_name="default")
        for index in range(2)
    ]
    first, second = (shard.next_batch(DEADLINE_S) for shard in shards)
    assert (first, second) == ([0], [1, 2, 3])
    assert first.imbalance == pytest.approx(64 / 51, rel=0.01)


def test_a_rank_that_dies_is_succeeded_with_the_same_batch_as_it_was_put(sockets):
    channel, ready = sockets.create(), sockets.create()
    options = {"batch_items": 2}
    task = sockets.run(roles.write_into_a_batch_and_never_come_back, channel, ready, options)
    for number in range(4):
        channel.put(np.full(LARGE, float(number)))
    channel.end()
    assert ready.get(timeout_s=DEADLINE_S) == "has it"
    other = sockets.run(roles.sums_of_batches, channel, 1, 2, options)
    task.kill()
    again = sockets.run(roles.sums_of_batches, channel, 0, 2, options)
    assert again.result(DEADLINE_S) == [(0, [0.0]), (1, [2.0 * LARGE])]
    assert other.result(DEADLINE_S) == [(0, [1.0 * LARGE]), (1, [3.0 * LARGE])]


def test_a_new_shard_of_the_same_rank_has_the_batch_that_was_not_done_with(backend):
    channel = backend.create()
    fill(channel, [1] * 3)
    shard = channel.shard(0, 1, batch_items=1)
    assert [shard.next_batch(DEADLINE_S), shard.next_batch(DEADLINE_S)] == [[0], [1]]
    again = channel.shard(0, 1, batch_items=1)
    batch = again.next_batch(DEADLINE_S)
    assert (batch, batch.step) == ([1], 1)


def test_a_shard_whose_place_was_taken_is_told(in_process):
    channel = in_process.create()
    task = in_process.run(roles.train, channel, 0, 1, {"batch_items": 1})
    while not channel.stats().num_getters:
        pass
    later = in_process.run(roles.train, channel, 0, 1, {"batch_items": 1})
    with pytest.raises(ChannelError, match="another one asks for step 0 of shard 0 of 1"):
        task.result(DEADLINE_S)
    channel.end()
    assert later.result(DEADLINE_S) == []


@pytest.mark.usefixtures("patient")
def test_a_step_that_does_not_come_says_who_lags(in_process):
    channel = in_process.create()
    fill(channel, [1] * 6)
    shard = channel.shard(0, 2, batch_items=2)
    for _ in range(3):
        shard.next_batch(DEADLINE_S)
    with pytest.raises(BatchTimeout, match=r"step 3 of shard 0 of 2 is wanted.*shard 1 has 3 steps to do"):
        shard.next_batch(0.02)
    fill(channel, [1] * 2)
    assert shard.next_batch(DEADLINE_S).step == 3


def test_close_ends_them_too(in_process):
    channel = in_process.create()
    channel.put("x")
    channel.close()
    shards = [channel.shard(index, 2, batch_items=4) for index in range(2)]
    assert [shard.next_batch(DEADLINE_S) for shard in shards] == [["x"], []]
    with pytest.raises(ChannelClosed):
        shards[0].next_batch(DEADLINE_S)


def test_ranks_that_divide_in_other_ways_are_refused(in_process):
    channel = in_process.create()
    fill(channel, [1] * 4)
    channel.shard(0, 2, batch_items=2).next_batch(DEADLINE_S)
    with pytest.raises(ChannelArgumentError, match="num_shards=3"):
        channel.shard(1, 3, batch_items=2).next_batch(DEADLINE_S)


@pytest.mark.parametrize(
    ("arguments", "options", "problem"),
    [
        ((2, 2), {}, "no shard 2 of 2"),
        ((-1, 2), {}, "no shard -1 of 2"),
        ((0, 0), {}, "num_shards"),
        ((0, 2), {"policy": "best"}, "policy is one of"),
        ((0, 2), {"batch_items": 0}, "batch_items"),
        ((0, 2), {"batch_weight": 0}, "batch_weight"),
        ((0, 2), {"batch_weight": 1, "batch_items": 1}, "neither"),
        ((0, 2), {"cost": len}, "cost is None.*has no len"),
        ((0, 2), {"cost": lambda weight: -weight}, "at least 0"),
        ((0, 2), {"cost": [(8, 1), (4, 2)]}, "ascend"),
        ((0, 2), {"cost": []}, "cost is None"),
        ((0, 2), {"cost": "cubic"}, "cost is None"),
        ((0, 2), {"cost": (1, -1)}, "cost is None"),
    ],
)
def test_shards_that_make_no_sense_are_refused(in_process, arguments, options, problem):
    with pytest.raises(ChannelArgumentError, match=problem):
        in_process.create().shard(*arguments, **options)


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), "2", True])
@pytest.mark.parametrize("wait", ["next_batch", "lease"])
def test_a_deadline_that_makes_no_sense_is_refused_and_the_step_stays(in_process, wait, timeout_s):
    channel = in_process.create()
    fill(channel, [1] * 2)
    shard = channel.shard(0, 1, batch_items=1)
    assert shard.next_batch(DEADLINE_S) == [0]
    with pytest.raises(ChannelArgumentError, match="timeout_s is a number of seconds of at least 0, not"):
        getattr(shard, wait)(timeout_s)
    assert channel.shard(0, 1, batch_items=1).next_batch(DEADLINE_S) == [0]
    assert shard.done_step == -1


# -- acknowledged parts -----------------------------------------------------------------------------


def leased(backend):
    channel = backend.create()
    for number in range(4):
        channel.put(number)
    channel.end()
    return channel


def test_a_part_that_was_acknowledged_does_not_come_to_a_successor(backend):
    channel = leased(backend)
    first = channel.shard(0, 1, batch_items=2)
    with first.lease(timeout_s=DEADLINE_S) as lease:
        assert (lease.items, lease.step) == ([0, 1], 0)
    assert first.done_step == 0
    with channel.shard(0, 1, batch_items=2).lease(timeout_s=DEADLINE_S) as lease:
        assert (lease.items, lease.step) == ([2, 3], 1)
    with pytest.raises(ChannelClosed), first.lease(timeout_s=DEADLINE_S):
        pass


def test_a_part_that_failed_is_the_next_one_again(backend):
    channel = leased(backend)
    shard = channel.shard(0, 1, batch_items=2)
    with pytest.raises(ZeroDivisionError), shard.lease(timeout_s=DEADLINE_S):
        raise ZeroDivisionError
    with shard.lease(timeout_s=DEADLINE_S) as lease:
        assert (lease.items, lease.step) == ([0, 1], 0)
        lease.ack()
        with pytest.raises(LeaseExpired, match="acknowledged before"):
            lease.ack()
    assert shard.next_batch(DEADLINE_S) == [2, 3]


def test_who_was_succeeded_acknowledges_nothing(sockets):
    channel = leased(sockets)
    with pytest.raises(LeaseExpired, match="another one asks"):  # noqa: PT012, SIM117
        with channel.shard(0, 1, batch_items=2).lease(timeout_s=DEADLINE_S):
            successor = sockets.run(roles.take_a_part, channel)
            assert successor.result(DEADLINE_S) == [0, 1]
    assert channel.shard(0, 1, batch_items=2).next_batch(DEADLINE_S) == [0, 1]
