"""All samples of a prompt come together, on every backend."""

from __future__ import annotations

import channel_roles as roles
import numpy as np
import pytest

from rlinf_scheduler.channel import Channel
from rlinf_scheduler.errors import BatchImpossible, BatchTimeout, ChannelArgumentError, ChannelClosed

DEADLINE_S = 60.0
LARGE = 1 << 20


def test_a_complete_group_passes_one_that_is_not(backend):
    channel = backend.create()
    for group, sample in (("slow", 0), ("quick", 1), ("quick", 2), ("slow", 3)):
        channel.put(sample, group=group)
    first, second = (channel.get_group(2, timeout_s=DEADLINE_S) for _ in range(2))
    assert (first, first.group, first.complete) == ([1, 2], "quick", True)
    assert (second, second.group, second.complete) == ([0, 3], "slow", True)


def test_consumers_wait_for_groups_of_many_producers(backend):
    channel = backend.create()
    task = backend.run(roles.take_groups_until_closed, channel, 4)
    producers = [backend.run(roles.put_a_sample_of_each, channel, range(10), number) for number in range(4)]
    for producer in producers:
        producer.result(DEADLINE_S)
    channel.end()
    groups = task.result(DEADLINE_S)
    assert sorted(group for group, _ in groups) == [("prompt", number) for number in range(10)]
    assert all(sorted(samples) == [0, 1, 2, 3] for _, samples in groups)


def test_large_asynchronous_and_announced_ones_too(sockets):
    channel = sockets.create(maxsize=8)
    handles = [channel.put(np.full(LARGE, n), group=n % 2, async_op=True) for n in range(4)]
    for handle in handles:
        handle.wait(DEADLINE_S)
    handle = channel.get_group(2, async_op=True)
    assert [int(item[0]) for item in handle.wait(DEADLINE_S)] == [0, 2]
    channel.put_nowait("another", group=1)
    assert channel.get_group(2, timeout_s=DEADLINE_S).group == 1


def test_blocking_calls_of_a_thread_with_a_shortcut_too(sockets):
    channel = sockets.create()
    for number in range(20):
        channel.put("a", group=("p", number))
        channel.put("b", group=("p", number))
        group = channel.get_group(2, timeout_s=DEADLINE_S)
        assert (group, group.group) == (["a", "b"], ("p", number))


def test_what_is_left_comes_marked_group_by_group(backend):
    channel = backend.create()
    channel.put(1, group="a")
    channel.put(2, group="b")
    channel.end()
    left = [channel.get_group(8, timeout_s=DEADLINE_S) for _ in range(2)]
    assert [(list(group), group.group, group.complete) for group in left] == [
        ([1], "a", False),
        ([2], "b", False),
    ]
    with pytest.raises(ChannelClosed):
        channel.get_group(8, timeout_s=DEADLINE_S)


@pytest.mark.usefixtures("patient")
def test_incomplete_groups_can_be_seen(backend):
    channel = backend.create()
    for group in ("a", "b", "a"):
        channel.put(0, group=group)
    (queue,) = channel.stats().queues
    assert queue.groups == (("a", 2), ("b", 1))
    wanted = r"a group of 3 items is wanted; there are 3 items .* in 2 groups \(the largest, 'a', has 2\)"
    with pytest.raises(BatchTimeout, match=wanted):
        channel.get_group(3, timeout_s=0.01)


def test_a_full_queue_without_a_complete_group_says_so(in_process):
    channel = in_process.create(maxsize=2)
    channel.put(0, group="a")
    channel.put(0, group="b")
    with pytest.raises(BatchImpossible, match="a group of 2 items: it is full with 2 of 2 items"):
        channel.get_group(2, timeout_s=DEADLINE_S)


@pytest.mark.parametrize("group", [1.5, True, ["a"], ("a", None), "\ud800", np.int64(1)])
def test_a_group_that_is_no_name_is_refused(in_process, group):
    with pytest.raises(ChannelArgumentError, match="a group's name is"):
        in_process.create().put("x", group=group)


@pytest.mark.parametrize("size", [0, 1.5, "8", None, True, 9])
def test_a_size_that_makes_no_sense_is_refused(in_process, size):
    channel = Channel.create(in_process.name(), maxsize=8)
    with pytest.raises(ChannelArgumentError, match=r"size is an integer|holds at most 8"):
        channel.get_group(size)
