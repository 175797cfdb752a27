"""Priorities, peeking and draining, on every backend."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from effort import tries
from rlinf_scheduler.errors import ChannelArgumentError, ChannelClosed, ChannelEmpty, ChannelUnanswered

DEADLINE_S = 60.0
LARGE = 1 << 20


def test_items_of_a_higher_priority_come_first(backend):
    channel = backend.create()
    for number, priority in enumerate([0, 5, 0, 5, -1]):
        channel.put(number, priority=priority)
    assert [channel.get(timeout_s=DEADLINE_S) for _ in range(5)] == [1, 3, 0, 2, 4]


def test_the_lowest_of_many_comes_last(backend):
    channel = backend.create()
    for number in range(300):
        channel.put(number, priority=number)
    assert [channel.get(timeout_s=DEADLINE_S) for _ in range(300)] == list(reversed(range(300)))


def test_one_that_has_waited_long_enough_is_passed_over_no_more(backend):
    channel = backend.create(priority_wait_s=0)
    for number in range(3):
        channel.put(number, priority=number)
    assert [channel.get(timeout_s=DEADLINE_S) for _ in range(3)] == [0, 1, 2]
    patient = backend.create(priority_wait_s=3600)
    for number in range(3):
        patient.put(number, priority=number)
    assert [patient.get(timeout_s=DEADLINE_S) for _ in range(3)] == [2, 1, 0]


def test_what_a_checkpoint_has_of_them_comes_by_priority_too(in_process, tmp_path):
    channel = in_process.create()
    for number in range(20):
        channel.put(number, priority=number % 3)
    channel.save(tmp_path / "saved")
    again = in_process.create(restore=tmp_path / "saved")
    assert again.drain() == channel.drain()


@pytest.mark.parametrize("wait_s", [-1, "a", float("nan")])
def test_how_long_one_is_passed_over_is_a_number_of_seconds(in_process, wait_s):
    with pytest.raises(ChannelArgumentError, match="priority_wait_s is a number of seconds of at least 0"):
        in_process.create(priority_wait_s=wait_s)


def test_large_and_asynchronous_ones_too(backend):
    channel = backend.create(maxsize=8)
    handles = [channel.put(np.full(LARGE, number), priority=number % 2, async_op=True) for number in range(4)]
    for handle in handles:
        handle.wait(DEADLINE_S)
    assert [int(channel.get(timeout_s=DEADLINE_S)[0]) for _ in range(4)] == [1, 3, 0, 2]


def test_blocking_puts_of_a_thread_with_a_shortcut_too(sockets):
    channel = sockets.create()
    for _ in range(20):
        channel.put("low")
        channel.put_nowait("high", priority=1)
        assert [channel.get(timeout_s=DEADLINE_S) for _ in range(2)] == ["high", "low"]


@pytest.mark.parametrize("size", [3, LARGE])
def test_what_was_looked_at_is_a_copy_and_stays_where_it_is(backend, size):
    channel = backend.create()
    channel.put(np.zeros(size))
    channel.put("second")
    for _ in range(3):
        seen = channel.peek()
        seen[:] = 7
    np.testing.assert_array_equal(channel.get(timeout_s=DEADLINE_S), np.zeros(size))
    assert channel.get(timeout_s=DEADLINE_S) == "second"


@pytest.mark.parametrize("size", [3, LARGE])
def test_looking_takes_nothing_not_even_for_a_moment(backend, size):
    channel = backend.create()
    channel.put(np.zeros(size))
    for _ in range(3):
        channel.peek()
        assert ("next is" in str(channel)) is (size < LARGE)
        assert channel.qsize() == 1
        (queue,) = channel.explain().queues
        assert (queue.depth.num_items, queue.depth.num_delivering, queue.getters) == (1, 0, ())
    stats = channel.stats()
    assert (stats.num_gets, stats.num_delivered, stats.gets_per_s) == (0, 0, 0.0)


@pytest.mark.parametrize("size", [3, LARGE])
def test_what_is_looked_at_is_whole_while_others_take_it_and_write_to_it(backend, size):
    channel, seen, is_over = backend.create(maxsize=2), [], threading.Event()

    def look():
        while not is_over.is_set():
            try:
                seen.append(channel.peek())
            except (ChannelEmpty, ChannelUnanswered):
                continue

    watcher = threading.Thread(target=look)
    watcher.start()
    for number in range(tries(50)):
        channel.put(np.full(size, number), timeout_s=DEADLINE_S)
        item = channel.get(timeout_s=DEADLINE_S)
        assert (item == number).all()
        item[:] = -1
    is_over.set()
    watcher.join(DEADLINE_S)
    assert all(item[0] >= 0 and (item == item[0]).all() for item in seen)


def test_an_empty_queue_has_nothing_to_look_at(backend):
    channel = backend.create()
    with pytest.raises(ChannelEmpty):
        channel.peek()
    channel.end()
    with pytest.raises(ChannelClosed):
        channel.peek()


def test_draining_takes_everything_that_is_there(backend):
    channel = backend.create()
    assert channel.drain() == []
    for number in range(5):
        channel.put(number, weight=number)
    assert channel.drain() == [0, 1, 2, 3, 4]
    assert channel.drain() == []
    channel.end()
    assert channel.drain() == []


@pytest.mark.parametrize("priority", [1.5, True, "high", 1 << 63, np.int64(3)])
def test_a_priority_that_is_no_int_is_refused(in_process, priority):
    with pytest.raises(ChannelArgumentError, match="priority"):
        in_process.create().put("x", priority=priority)
