"""Threads that block on a channel: order, interruptions and ends."""

import contextlib
import signal
import threading

import channel_roles
import numpy as np
import pytest

from alarms import Bell
from rlinf.testing import LocalRuntime
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.errors import ChannelClosed, ChannelLost, ChannelTimeout
from waits import wait_until

DEADLINE_S = 60.0


def in_a_thread(function, *args):
    outcome = []

    def run():
        try:
            outcome.append(function(*args))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def wait_until_it_waits(channel):
    wait_until(lambda: channel.stats().num_getters)


def test_what_was_begun_asynchronously_before_is_not_overtaken(sockets):
    channel = sockets.create()
    for round_ in range(50):
        handles = [channel.put((round_, number), async_op=True) for number in range(5)]
        channel.put((round_, 5))
        handles.append(channel.put((round_, 6), async_op=True))
        for handle in handles:
            handle.wait(DEADLINE_S)
        assert [channel.get(timeout_s=DEADLINE_S) for _ in range(7)] == [(round_, n) for n in range(7)]


def test_an_asynchronous_get_before_a_blocking_one_is_served_first(sockets):
    channel = sockets.create()
    first = channel.get(async_op=True)
    thread, second = in_a_thread(channel.get)
    wait_until(lambda: channel.stats().num_getters == 2)
    channel.put("first")
    channel.put("second")
    thread.join(DEADLINE_S)
    assert (first.wait(DEADLINE_S), second) == ("first", ["second"])


def test_what_a_dropped_handle_gives_back_is_there_for_the_blocking_get_after_it(sockets):
    channel = sockets.create()
    for round_ in range(50):
        channel.put((round_, "first"))
        channel.put((round_, "second"))
        handle = channel.get(async_op=True)
        handle.settled.exception(DEADLINE_S)
        del handle
        assert [channel.get(timeout_s=DEADLINE_S) for _ in range(2)] == [
            (round_, "first"),
            (round_, "second"),
        ]


def test_an_interrupted_get_takes_nothing(sockets):
    channel = sockets.create()
    channel.get_batch  # noqa: B018 - the class is loaded before the signal comes

    def fail():
        raise KeyboardInterrupt

    with Bell(signal.SIGINT, fail) as bell:
        thread = threading.Thread(target=lambda: (wait_until_it_waits(channel), bell.ring()))
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            channel.get(timeout_s=DEADLINE_S)
        thread.join(DEADLINE_S)
    channel.put("an item")
    assert channel.get(timeout_s=DEADLINE_S) == "an item"


class Alarm(Exception):
    """What a signal handler raises."""


@pytest.fixture
def on_alarm():
    """Calls a function in the main thread while it waits on a channel."""
    with contextlib.ExitStack() as stack:

        def arrange(channel, function):
            bell = stack.enter_context(Bell(signal.SIGALRM, function))
            thread = threading.Thread(target=lambda: (wait_until_it_waits(channel), bell.ring()))
            stack.callback(thread.join, DEADLINE_S)
            thread.start()

        yield arrange


@pytest.mark.interrupted
def test_what_a_signal_handler_raises_leaves_no_answer_behind_for_the_next_get(sockets, on_alarm):
    channel = sockets.create()

    def fail():
        raise Alarm

    on_alarm(channel, fail)
    with pytest.raises(Alarm):
        channel.get(timeout_s=DEADLINE_S)
    wait_until(lambda: not channel.stats().num_getters)
    channel.put("first")
    channel.put("second")
    assert [channel.get(timeout_s=DEADLINE_S) for _ in range(2)] == ["first", "second"]


@pytest.mark.interrupted
def test_a_signal_handler_may_use_the_channel_that_its_thread_waits_on(sockets, on_alarm):
    channel = sockets.create()
    on_alarm(channel, lambda: channel.put("from the handler", timeout_s=DEADLINE_S))
    assert channel.get(timeout_s=DEADLINE_S) == "from the handler"


def test_an_interruption_while_an_item_is_read_gives_it_back(sockets, monkeypatch):
    channel = sockets.create()
    channel.put("first")
    channel.put("second")

    def interrupted(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("rlinf_scheduler.comm.shm.payload.decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            channel.get(timeout_s=DEADLINE_S)
    assert [channel.get(timeout_s=DEADLINE_S) for _ in range(2)] == ["first", "second"]


def test_what_a_thread_took_does_not_come_back_when_the_thread_ends(sockets):
    channel = sockets.create()
    for number in range(20):
        channel.put(number)
    for number in range(20):
        thread, outcome = in_a_thread(channel.get)
        thread.join(DEADLINE_S)
        assert outcome == [number]
    channel.close()
    with pytest.raises(ChannelClosed):
        channel.get(timeout_s=DEADLINE_S)


def test_threads_that_wait_are_woken_when_the_process_leaves(sockets):
    name = sockets.create().name
    with LocalRuntime(sockets.runtime.address, own_name="leaving"):
        channel = Channel.connect(name)
        thread, outcome = in_a_thread(channel.get)
        wait_until_it_waits(channel)
    thread.join(DEADLINE_S)
    assert isinstance(outcome[0], ChannelLost)


def test_who_waits_for_a_server_that_is_killed_is_told(sockets):
    holder, channel = sockets.start_server()
    channel.put("an item")
    assert channel.get() == "an item"
    thread, outcome = in_a_thread(channel.get)
    wait_until_it_waits(channel)
    holder.kill()
    thread.join(DEADLINE_S)
    assert isinstance(outcome[0], ChannelLost)


@pytest.mark.usefixtures("patient")
def test_after_a_deadline_its_thread_goes_on(sockets):
    channel = sockets.create(maxsize=1)
    for _ in range(3):
        with pytest.raises(ChannelTimeout, match="0 of 1 items"):
            channel.get(timeout_s=0.01)
    channel.put("one")
    with pytest.raises(ChannelTimeout, match="1 of 1 items"):
        channel.put("two", timeout_s=0.01)
    assert channel.get() == "one"


def test_a_consumer_that_is_killed_while_it_waits_takes_nothing(sockets):
    channel = sockets.create()
    task = sockets.run(channel_roles.take_one_and_leave, channel)
    wait_until_it_waits(channel)
    task.kill()
    wait_until(lambda: not channel.stats().num_getters)
    channel.put("an item")
    assert channel.get(timeout_s=DEADLINE_S) == "an item"


def test_large_items_go_through_shared_memory_here_too(sockets):
    channel = sockets.create(maxsize=4)
    item = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
    for _ in range(20):
        channel.put({"data": item, "small": 1})
        taken = channel.get(timeout_s=DEADLINE_S)
        assert np.array_equal(taken["data"], item)
        taken["data"][:] = 0


def test_many_threads_and_processes_lose_and_double_nothing(sockets):
    channel = sockets.create(maxsize=16)
    producers = [
        sockets.run(channel_roles.produce, channel, [(name, number) for number in range(300)])
        for name in "ab"
    ]
    threads = [in_a_thread(channel_roles.consume, channel, 150) for _ in range(4)]
    for producer in producers:
        producer.result(DEADLINE_S)
    for thread, _ in threads:
        thread.join(DEADLINE_S)
    taken = [item for _, (items,) in threads for item in items]
    assert sorted(taken) == sorted((name, number) for name in "ab" for number in range(300))
    for _, (items,) in threads:
        for name in "ab":
            mine = [number for producer, number in items if producer == name]
            assert mine == sorted(mine)
