"""Queues end, channels end after the last of their producers, and nobody ends them under the others."""

from __future__ import annotations

import asyncio
import gc
import pickle

import channel_roles as roles
import numpy as np
import pytest

from rlinf_scheduler.channel import Channel
from rlinf_scheduler.errors import ChannelArgumentError, ChannelClosed, ChannelTimeout
from waits import wait_until

DEADLINE_S = 60.0


def test_an_ended_queue_gives_what_it_holds_and_then_the_end(backend):
    channel = backend.create()
    roles.produce(channel, [1, 2, 3])
    channel.end()
    assert list(channel) == [1, 2, 3]
    with pytest.raises(ChannelClosed, match="queue 'default' has ended"):
        channel.get(timeout_s=DEADLINE_S)
    with pytest.raises(ChannelClosed, match="queue 'default' has ended"):
        channel.put(4, timeout_s=DEADLINE_S)


def test_other_queues_do_not_end_with_it(backend):
    channel = backend.create()
    channel.end("train")
    channel.put("x", queue_name="evaluate")
    assert channel.get("evaluate", timeout_s=DEADLINE_S) == "x"
    with pytest.raises(ChannelClosed):
        channel.get("train", timeout_s=DEADLINE_S)


def test_what_is_left_of_a_batch_comes_as_an_incomplete_one(backend):
    channel = backend.create()
    for number in range(5):
        channel.put(number, weight=1)
    channel.end()
    batches = [channel.get_batch(2, timeout_s=DEADLINE_S) for _ in range(3)]
    assert batches == [[0, 1], [2, 3], [4]]
    assert [batch.complete for batch in batches] == [True, True, False]
    with pytest.raises(ChannelClosed):
        channel.get_batch(2, timeout_s=DEADLINE_S)


def test_the_end_reaches_those_who_wait(backend):
    channel = backend.create()
    task = backend.run(roles.consume_until_closed, channel)
    handle = channel.get_batch(8, "other", async_op=True)
    channel.put("first", timeout_s=DEADLINE_S)
    channel.end()
    assert task.result(DEADLINE_S) == ["first"]
    channel.put("half", weight=4, queue_name="other")
    channel.end("other")
    batch = handle.wait(DEADLINE_S)
    assert (batch, batch.complete) == (["half"], False)


@pytest.mark.usefixtures("patient")
def test_puts_that_have_begun_come_before_the_end(backend):
    channel = backend.create(maxsize=2)
    handles = [channel.put(np.full(1 << 16, number), async_op=True) for number in range(20)]
    with pytest.raises(ChannelTimeout, match="still wait for room"):
        channel.end(timeout_s=0.01)
    task = backend.run(roles.count_until_closed, channel)
    channel.end(timeout_s=DEADLINE_S)
    assert task.result(DEADLINE_S) == 20
    assert all(handle.done() for handle in handles)


def test_puts_of_other_processes_that_wait_for_room_come_before_the_end(sockets):
    channel = sockets.create(maxsize=1)
    ready = sockets.create()
    task = sockets.run(roles.put_until_it_waits, channel, ready, ["a", "b", "c"])
    assert ready.get(timeout_s=DEADLINE_S) == "putting"
    channel.end()
    assert list(channel) == ["a", "b", "c"]
    task.result(DEADLINE_S)


def test_a_flush_gives_a_batch_what_is_there(backend):
    channel = backend.create()
    channel.put("a", weight=1)
    handle = channel.get_batch(8, async_op=True)
    channel.flush()
    batch = handle.wait(DEADLINE_S)
    assert (batch, batch.complete) == (["a"], False)
    channel.put("b", weight=1)
    with pytest.raises(ChannelTimeout):
        channel.get_batch(8, timeout_s=0.01)


def test_the_channel_ends_after_the_last_of_its_producers(backend):
    channel = Channel.create(backend.name(), producers=3)
    tasks = [backend.run(roles.produce_as_producer, channel, [number] * 10) for number in range(3)]
    assert sorted(channel) == [0] * 10 + [1] * 10 + [2] * 10
    for task in tasks:
        task.result(DEADLINE_S)
    with pytest.raises(ChannelClosed, match="has ended"):
        channel.get("a queue that nobody has used", timeout_s=DEADLINE_S)


def test_leaving_waits_for_asynchronous_puts(backend):
    channel = Channel.create(backend.name(), maxsize=2, producers=1)
    task = backend.run(roles.produce_async_as_producer, channel, 50)
    assert list(channel) == list(range(50))
    task.result(DEADLINE_S)


def test_a_producer_that_fails_may_be_replaced(in_process):
    channel = Channel.create(in_process.name(), producers=1)
    with pytest.raises(ZeroDivisionError):
        roles.fail_as_producer(channel)
    with channel.producer():
        channel.put("after")
    assert list(channel) == ["before", "after"]


def test_a_producer_that_fails_for_good_counts_as_done_and_the_log_says_so(in_process, caplog):
    channel = Channel.create(in_process.name(), producers=1, successor_s=0.05)
    with pytest.raises(ZeroDivisionError), channel.producer():
        1 / 0  # noqa: B018
    assert list(channel) == []
    told = "has had no successor for 0.05 s, and counts as done: 1 of 1 producer is done"
    wait_until(lambda: told in caplog.text)


def test_a_producer_that_dies_is_waited_for_and_replaced(sockets):
    channel = Channel.create(sockets.name(), producers=1)
    ready = sockets.create()
    task = sockets.run(roles.be_a_producer_and_never_leave, channel, ready)
    assert ready.get(timeout_s=DEADLINE_S) == "in"
    task.kill()
    assert channel.get(timeout_s=DEADLINE_S) == "a put"
    wait_until(lambda: "without a successor" in channel.stats().producers)
    sockets.run(roles.produce_as_producer, channel, ["of the successor"]).result(DEADLINE_S)
    assert list(channel) == ["of the successor"]


def test_a_dead_producer_without_a_successor_ends_the_channel(sockets):
    channel = Channel.create(sockets.name(), producers=1, successor_s=0.1)
    ready = sockets.create()
    task = sockets.run(roles.be_a_producer_and_never_leave, channel, ready)
    assert ready.get(timeout_s=DEADLINE_S) == "in"
    task.kill()
    assert list(channel) == ["a put"]


def test_whoever_is_interrupted_on_the_way_in_leaves_a_vacancy(in_process, monkeypatch):
    channel = Channel.create(in_process.name(), producers=1, successor_s=0.05)
    requests = channel._connection().requests
    ask = requests.ask

    def interrupted(*args, **options):
        ask(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(requests, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt), channel.producer():
        pytest.fail("nobody was in")
    monkeypatch.undo()
    gc.collect()
    assert list(channel) == []


def test_too_many_producers_are_told_who_is_there(in_process):
    channel = Channel.create(in_process.name(), producers=1)
    no_place = pytest.raises(ChannelArgumentError, match=r"no place for another producer.*at work: driver")
    with channel.producer(), no_place:
        channel.producer().__enter__()
    with pytest.raises(ChannelArgumentError, match="1 of 1 producer is done"):
        channel.producer().__enter__()


def test_a_channel_that_does_not_count_them_has_no_producers(in_process):
    with pytest.raises(ChannelArgumentError, match="create it with producers=n"):
        in_process.create().producer().__enter__()


@pytest.mark.parametrize("producers", [0, -1, 1.5, True, "", []])
def test_a_number_of_producers_that_makes_no_sense_is_refused(in_process, producers):
    with pytest.raises(ChannelArgumentError, match="producers"):
        Channel.create(in_process.name(), producers=producers)


def test_asynchronous_iteration_ends_too(in_process):
    channel = in_process.create()
    roles.produce(channel, "ab")
    channel.end()

    async def collect():
        return [item async for item in channel]

    assert asyncio.run(collect()) == ["a", "b"]


def test_a_batch_travels_like_any_list(in_process):
    channel = in_process.create()
    channel.put("a", weight=1)
    channel.end()
    batch = channel.get_batch(2, timeout_s=DEADLINE_S)
    assert pickle.loads(pickle.dumps(batch)).complete is False
    other = in_process.create()
    other.put(batch)
    assert other.get(timeout_s=DEADLINE_S) == ["a"]
