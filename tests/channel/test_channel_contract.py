"""What a channel promises, on every backend."""

from __future__ import annotations

import asyncio
import gc
import math
import pickle
import queue
import threading
import time

import channel_roles
import numpy as np
import pytest

from rlinf_scheduler.channel import Channel
from rlinf_scheduler.comm import AsyncHandle
from rlinf_scheduler.errors import (
    BatchImpossible,
    BatchUndecodable,
    ChannelArgumentError,
    ChannelClosed,
    ChannelEmpty,
    ChannelExists,
    ChannelFull,
    ChannelNotFound,
    ChannelTimeout,
    CodecError,
)
from waits import wait_until

DEADLINE_S = 60.0
LARGE = 1 << 20


@pytest.mark.usefixtures("patient")
def test_a_batch_that_does_not_come_says_what_was_wanted_and_what_is_there(in_process):
    channel = in_process.create()
    channel.put("x", weight=3)
    with pytest.raises(ChannelTimeout, match=r"a batch of weight 8 is wanted; there is 1 item of weight 3"):
        channel.get_batch(8, timeout_s=0.01)
    with pytest.raises(ChannelTimeout, match=r"a batch of weight 8 is wanted; there is 1 item of weight 3"):
        channel.get_batch(8, timeout_s=0)


def drain(channel, queue_name="default"):
    items = []
    while not channel.empty(queue_name):
        items.append(channel.get_nowait(queue_name))
    return items


def test_what_is_put_is_got(backend):
    channel = backend.create()
    items = ["text", 3, None, {"nested": [1, (2, 3)]}, b"bytes", np.arange(6.0).reshape(2, 3)]
    for item in items:
        channel.put(item)
    for item in items:
        np.testing.assert_equal(channel.get(timeout_s=DEADLINE_S), item)


def test_another_process_connects_by_name(backend):
    channel = backend.create()
    task = backend.run(channel_roles.connect_and_consume, channel.name, 3)
    for item in "abc":
        channel.put(item)
    assert task.result(DEADLINE_S) == ["a", "b", "c"]


def test_a_channel_travels_as_an_argument_and_as_an_item(backend):
    outer, inner = backend.create(), backend.create(maxsize=3)
    task = backend.run(channel_roles.produce, inner, ["x", "y"])
    assert channel_roles.consume(inner, 2) == ["x", "y"]
    task.result(DEADLINE_S)
    outer.put(inner)
    again = outer.get(timeout_s=DEADLINE_S)
    assert (again.name, again.maxsize) == (inner.name, 3)
    again.put("through the copy")
    assert inner.get(timeout_s=DEADLINE_S) == "through the copy"


def test_items_of_one_producer_keep_their_order(backend):
    channel = backend.create(maxsize=4)
    task = backend.run(channel_roles.produce_async, channel, list(range(300)))
    assert channel_roles.consume(channel, 300) == list(range(300))
    task.result(DEADLINE_S)


def test_large_and_small_puts_to_a_full_queue_keep_their_order(backend):
    channel = backend.create(maxsize=2)
    sizes = [10, LARGE, 10, LARGE, LARGE, 10, 10, LARGE]
    handles = [channel.put(np.full(size, n, np.uint8), async_op=True) for n, size in enumerate(sizes)]
    got = [channel.get(timeout_s=DEADLINE_S) for _ in sizes]
    assert [(len(item), item[0], item[-1]) for item in got] == [(size, n, n) for n, size in enumerate(sizes)]
    for handle in handles:
        handle.wait(DEADLINE_S)


def test_an_asynchronous_put_takes_the_item_as_it_is_during_the_call(backend):
    channel = backend.create(maxsize=1)
    for size in (100, LARGE):
        array = np.zeros(size, np.uint8)
        handles = [channel.put(array, async_op=True)]
        array[:] = 1
        handles.append(channel.put(array, async_op=True))
        array[:] = 2
        assert [channel.get(timeout_s=DEADLINE_S).max() for _ in handles] == [0, 1]


def test_a_put_to_a_full_queue_waits_before_its_bytes_move(backend):
    channel = backend.create(maxsize=1)
    channel.put(np.zeros(LARGE, np.uint8))
    held = channel.stats().bytes_in
    handle = channel.put(np.ones(LARGE, np.uint8), async_op=True)
    stats = channel.stats()
    assert (stats.bytes_in, stats.num_putters, handle.done()) == (held, 1, False)
    assert channel.get(timeout_s=DEADLINE_S)[0] == 0
    assert channel.get(timeout_s=DEADLINE_S)[0] == 1
    handle.wait(DEADLINE_S)


def test_a_full_queue_holds_up_no_other_queue_and_no_other_producer(backend):
    channel = backend.create(maxsize=1)
    channel.put("fills")
    waits = [channel.put("waits", async_op=True), channel.put(bytes(LARGE), async_op=True)]
    channel.put("free", queue_name="other", timeout_s=DEADLINE_S)
    backend.run(channel_roles.produce, channel, ["also free"], "third").result(DEADLINE_S)
    assert not any(handle.done() for handle in waits)
    assert channel.get("other", timeout_s=DEADLINE_S) == "free"
    assert channel.get("third", timeout_s=DEADLINE_S) == "also free"
    assert channel.get(timeout_s=DEADLINE_S) == "fills"
    assert channel.get(timeout_s=DEADLINE_S) == "waits"


def test_nowait_operations_raise_at_once(backend):
    channel = backend.create(maxsize=1)
    with pytest.raises(asyncio.QueueEmpty, match="nothing") as empty:
        channel.get_nowait()
    channel.put_nowait("one")
    with pytest.raises(asyncio.QueueFull, match="1 of 1 items") as full:
        channel.put_nowait("two")
    for caught, kinds in ((empty, (ChannelEmpty, queue.Empty)), (full, (ChannelFull, queue.Full))):
        assert all(isinstance(caught.value, kind) for kind in kinds)
    with pytest.raises(ChannelFull):
        channel.put_nowait(bytes(LARGE))
    channel.put_nowait("two", queue_name="other")
    assert channel.get_nowait() == "one"


def test_getters_are_served_in_order_of_arrival(backend):
    channel = backend.create()
    first, batch, last = (
        channel.get(async_op=True),
        channel.get_batch(5, async_op=True),
        channel.get(async_op=True),
    )
    for number in range(4):
        channel.put(number, weight=2 * number)
    channel.put(4, weight=0)
    assert first.wait(DEADLINE_S) == 0
    assert batch.wait(DEADLINE_S) == [1, 2]
    assert last.wait(DEADLINE_S) == 3
    assert drain(channel) == [4]


def test_a_batch_is_the_shortest_run_that_reaches_the_weight(backend):
    channel = backend.create()
    for weight in (2, 4, 100, 0, 0.5, 0.5):
        channel.put(weight, weight=weight)
    assert channel.get_batch(5) == [2, 4]
    assert channel.get_batch(target_weight=5) == [100]
    assert channel.get_batch(1, key="default") == [0, 0.5, 0.5]


def test_a_batch_waits_and_takes_nothing_before_it_is_complete(backend):
    channel = backend.create()
    batch = channel.get_batch(3, "q", async_op=True)
    task = backend.run(channel_roles.produce_async, channel, ["a", "b"], "q")
    task.result(DEADLINE_S)
    assert channel.qsize("q") == 2
    channel.put("c", 1, "q")
    assert batch.wait(DEADLINE_S) == ["a", "b", "c"]


def test_a_batch_that_cannot_come_is_refused(backend):
    channel = backend.create(maxsize=2)
    waiting = channel.get_batch(100, async_op=True)
    channel.put("a", weight=1)
    channel.put("b", weight=1)
    with pytest.raises(
        BatchImpossible, match=r"batch of weight 100: it is full with 2 of 2 items of weight 2$"
    ):
        waiting.wait(DEADLINE_S)
    with pytest.raises(BatchImpossible):
        channel.get_batch(3)
    assert channel.get_batch(2) == ["a", "b"]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("operation", ["put", "get", "get_batch"])
def test_a_wait_ends_at_its_deadline_and_says_what_it_waited_for(backend, operation):
    channel = backend.create(maxsize=2)
    calls = {
        "put": lambda: channel.put("late", queue_name="q", timeout_s=0.05),
        "get": lambda: channel.get("empty", timeout_s=0.05),
        "get_batch": lambda: channel.get_batch(9, "q", timeout_s=0.05),
    }
    if operation == "put":
        channel.put("b", queue_name="q")
    channel.put("a", queue_name="q")
    with pytest.raises(ChannelTimeout) as caught:
        calls[operation]()
    error = caught.value
    assert (error.channel, error.operation) == (channel.name, operation)
    assert error.queue_name in str(error)
    assert 0.05 <= error.waited_s < DEADLINE_S
    assert "of 2 items" in error.state
    assert isinstance(error, TimeoutError)


@pytest.mark.usefixtures("patient")
def test_an_operation_that_timed_out_has_done_nothing(backend):
    channel = backend.create(maxsize=1)
    get = channel.get(async_op=True, timeout_s=0.02)
    with pytest.raises(ChannelTimeout):
        get.wait(DEADLINE_S)
    channel.put("first")
    for item in ("small", bytes(LARGE)):
        with pytest.raises(ChannelTimeout):
            channel.put(item, timeout_s=0.02)
    assert drain(channel) == ["first"]
    assert channel.stats().queues == ()


@pytest.mark.usefixtures("patient")
def test_a_deadline_of_zero_is_met_by_what_is_there(backend):
    channel = backend.create()
    channel.put("there")
    assert channel.get(timeout_s=0) == "there"
    with pytest.raises(ChannelTimeout):
        channel.get(timeout_s=0)


def test_a_deadline_beyond_all_clocks_is_none(backend):
    channel = backend.create(maxsize=1)
    for forever in (1e300, math.inf):
        handle = channel.get(async_op=True, timeout_s=forever)
        channel.put("x", timeout_s=forever)
        assert handle.wait(DEADLINE_S) == "x"


def test_closing_refuses_puts_and_lets_getters_drain(backend):
    channel = backend.create(maxsize=2)
    channel.put("a", weight=1)
    channel.put("b", weight=1)
    waiting = [channel.put("small", async_op=True), channel.put(bytes(LARGE), async_op=True)]
    elsewhere = channel.get("elsewhere", async_op=True)
    channel.close()
    for handle in (*waiting, elsewhere):
        with pytest.raises(ChannelClosed):
            handle.wait(DEADLINE_S)
    with pytest.raises(ChannelClosed, match="closed"):
        channel.put("c")
    with pytest.raises(ChannelClosed):
        channel.put_nowait("c")
    assert channel.get() == "a"
    assert channel.get_batch(10) == ["b"]
    for get in (channel.get, channel.get_nowait, lambda: channel.get_batch(1)):
        with pytest.raises(ChannelClosed):
            get()
    channel.close()


def test_iteration_ends_when_the_channel_is_closed_and_drained(backend):
    channel = backend.create()
    tasks = [backend.run(channel_roles.consume_until_closed, channel) for _ in range(2)]
    for item in range(100):
        channel.put(item, async_op=True)
    channel.close()
    got = [item for task in tasks for item in task.result(DEADLINE_S)]
    assert sorted(got) == list(range(100))
    assert list(channel) == []


def test_sizes_and_figures_tell_what_is_held(backend):
    channel = backend.create(maxsize=2)
    assert (channel.qsize(), channel.empty(), channel.full()) == (0, True, False)
    channel.put(b"x" * 100, weight=3)
    channel.put(b"y" * 100, weight=2.5)
    channel.put("z", queue_name="other")
    assert channel.get("other") == "z"
    waits = channel.get("third", async_op=True)
    assert (channel.qsize(), channel.empty(), channel.full()) == (2, False, True)
    assert (channel.qsize(key="other"), channel.full(key="other")) == (0, False)
    stats = channel.stats()
    assert (stats.num_puts, stats.num_gets, stats.num_items, stats.num_getters) == (3, 1, 2, 1)
    assert stats.bytes_in > stats.size_bytes > 200
    assert stats.bytes_in == stats.bytes_out + stats.size_bytes
    depths = {depth.name: (depth.num_items, depth.weight) for depth in stats.queues}
    assert depths["default"] == (2, 5.5)
    assert waits.cancel()


def test_one_shot_queues_do_not_pile_up(backend):
    channel = backend.create()
    task = backend.run(channel_roles.answer_requests, channel, 50)
    for number in range(50):
        channel.put((number, f"reply-{number}"), queue_name="requests")
        assert channel.get(f"reply-{number}", timeout_s=DEADLINE_S) == number * number
    task.result(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while channel.stats().queues:  # its last gets are confirmed on another way than the task's result comes
        assert time.monotonic() < deadline


def test_a_thousand_pending_gets_need_no_threads(backend):
    channel = backend.create()
    channel.qsize()
    before = threading.active_count()
    handles = [channel.get(async_op=True) for _ in range(1000)]
    assert channel.stats().num_getters == 1000
    assert threading.active_count() < before + 10  # others may begin one, or end
    for number in range(1000):
        channel.put(number, async_op=True)
    assert [handle.wait(DEADLINE_S) for handle in handles] == list(range(1000))


def test_handles_are_awaited_in_an_event_loop(backend):
    channel = backend.create(maxsize=8)

    async def produce():
        for number in range(100):
            await channel.put(number, async_op=True, timeout_s=DEADLINE_S)
        channel.close()

    async def consume():
        return [item async for item in channel]

    async def main():
        _, *parts = await asyncio.gather(produce(), consume(), consume())
        return parts

    parts = asyncio.run(main())
    assert sorted(parts[0] + parts[1]) == list(range(100))
    assert all(part == sorted(part) for part in parts)


def test_blocking_calls_work_inside_a_coroutine(backend):
    channel = backend.create()

    async def main():
        channel.put("x")
        return channel.get(timeout_s=DEADLINE_S)

    assert asyncio.run(main()) == "x"


def test_a_get_whose_await_was_cancelled_takes_nothing(backend):
    channel = backend.create()

    async def main():
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(channel.get(async_op=True), 0.001)

    asyncio.run(main())
    gc.collect()
    assert channel.stats().num_getters == 0
    channel.put("still here")
    assert channel.get(timeout_s=DEADLINE_S) == "still here"


def test_a_dropped_handle_gives_back_its_place_and_its_item(backend):
    channel = backend.create()
    for item in "abc":
        channel.put(item)
    first, second = channel.get(async_op=True), channel.get(async_op=True)
    channel.qsize()
    second.settled.exception(DEADLINE_S)
    waiting = channel.get("elsewhere", async_op=True)
    del second, waiting
    gc.collect()
    # The I/O thread may hold a handle that it has just been given for a moment more.
    wait_until(lambda: channel.stats().num_getters == 0)
    assert drain(channel) == ["b", "c"]
    assert first.wait() == "a"


def test_a_cancelled_get_takes_nothing(backend):
    channel = backend.create()
    handle = channel.get(async_op=True)
    assert handle.cancel()
    channel.put("x")
    assert channel.get(timeout_s=DEADLINE_S) == "x"
    done = channel.get(async_op=True)
    channel.put("y")
    assert done.wait(DEADLINE_S) == "y"
    assert not done.cancel()


def test_handles_chain(backend):
    channel = backend.create()
    doubled = channel.get(async_op=True).then(lambda item: item * 2)
    channel.put(21)
    assert doubled.wait(DEADLINE_S) == 42


def test_names_that_are_taken_or_unknown_are_errors(backend):
    channel = backend.create()
    with pytest.raises(ChannelExists, match=channel.name):
        Channel.create(channel.name)
    with pytest.raises(ChannelNotFound, match="no-such-channel"):
        Channel.connect("no-such-channel", timeout_s=0.05)


def test_what_makes_no_sense_is_refused_before_anything_is_sent(backend):
    channel = backend.create()
    mistakes = [
        lambda: channel.put("x", weight=-1),
        lambda: channel.put("x", weight=math.nan),
        lambda: channel.put("x", weight="3"),
        lambda: channel.put("x", queue_name=3.5),
        lambda: channel.put("x", queue_name=True),
        lambda: channel.put("x", queue_name=("step", 1.5)),
        lambda: channel.put("x", queue_name=2**64),
        lambda: channel.put("x", queue_name="a", key="b"),
        lambda: channel.put("x", queue_name="\ud800"),
        lambda: channel.put("x", timeout_s=-1),
        lambda: channel.put("x", timeout_s=True),
        lambda: channel.get(timeout_s="soon"),
        lambda: channel.get_batch(0),
        lambda: channel.get_batch(-2),
        lambda: channel.get_batch(),
        lambda: channel.get_batch(1, target_weight=2),
        lambda: Channel.create(""),
        lambda: Channel.create("bad-maxsize", maxsize=-1),
    ]
    for mistake in mistakes:
        with pytest.raises(ChannelArgumentError):
            mistake()
    with pytest.raises(CodecError):
        channel.put(threading.Lock())
    assert channel.stats().num_puts == 0


def test_a_mistake_is_named_by_the_option_that_has_it(backend):
    for option in ("stall_after_s", "successor_s"):
        with pytest.raises(ChannelArgumentError, match=f"{option} is a number of seconds"):
            Channel.create("bad", **{option: -1})


def test_a_queue_may_be_named_by_a_number_or_a_tuple(backend):
    channel = backend.create()
    names = ["3", 3, ("step", 7), ("step", (7, "a"), -1), ("rollout", None, 3), ("rollout", (None,)), (None,)]
    for name in names:
        channel.put(name, key=name)
    assert [queue.name for queue in channel.stats().queues] == names
    assert [channel.get(key=name, timeout_s=DEADLINE_S) for name in names] == names
    with pytest.raises(ChannelTimeout, match=r"queue \('step', 7\)"):
        channel.get(("step", 7), timeout_s=0)


def test_a_handle_has_another_name_of_awaiting_it(backend):
    channel = backend.create()
    channel.put(1)

    async def main():
        return await channel.get(async_op=True).async_wait()

    assert asyncio.run(main()) == 1


def test_extreme_weights_travel(backend):
    channel = backend.create()
    for weight in (2**70, 1e-300, np.float32(0.5), np.int64(3)):
        channel.put("x", weight=weight)
    assert len(channel.get_batch(2**69)) == 1
    assert len(channel.get_batch(3.5)) == 3


def test_a_repr_and_a_pickle_ship_no_payload(backend):
    channel = backend.create()
    channel.put(bytes(LARGE))
    assert len(repr(channel)) < 100
    assert channel.name in repr(channel)
    assert len(pickle.dumps(channel)) < 1000


def test_many_producers_and_consumers_lose_and_double_nothing(backend):
    channel = backend.create(maxsize=5)
    producers = [
        backend.run(channel_roles.produce_async, channel, [(number, i) for i in range(100)])
        for number in range(3)
    ]
    consumers = [backend.run(channel_roles.consume, channel, 100) for _ in range(2)]
    mine = channel_roles.consume(channel, 100)
    parts = [mine, *(task.result(DEADLINE_S) for task in consumers)]
    for task in producers:
        task.result(DEADLINE_S)
    assert sorted(item for part in parts for item in part) == [(n, i) for n in range(3) for i in range(100)]
    for part in parts:
        for number in range(3):
            mine = [i for n, i in part if n == number]
            assert mine == sorted(mine)


def test_an_await_of_get_that_was_given_up_takes_nothing(backend):
    channel = backend.create()

    async def give_up():
        handle = channel.get(async_op=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle, 0.01)
        return handle

    handle = asyncio.run(give_up())
    channel.put("precious")
    assert channel.get(timeout_s=DEADLINE_S) == "precious"
    assert handle.done()


class Unreadable:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    message = "not here"
    raise RuntimeError(message)


def waited_for(begin):
    begun = begin()
    return begun.wait() if isinstance(begun, AsyncHandle) else begun


@pytest.mark.parametrize("async_op", [False, True])
def test_the_readable_items_of_a_batch_are_not_lost_with_the_others(backend, async_op):
    channel = backend.create()
    for item in ("good", Unreadable(), "also good"):
        channel.put(item, 1)
    with pytest.raises(BatchUndecodable, match=r"1 of 3 items .*\n  item 1: .*not here") as caught:
        waited_for(lambda: channel.get_batch(3, async_op=async_op, timeout_s=DEADLINE_S))
    assert caught.value.items == ["good", "also good"]
    assert channel.qsize() == 0
    assert pickle.loads(pickle.dumps(caught.value)).items == ["good", "also good"]


@pytest.mark.parametrize("async_op", [False, True])
def test_an_item_that_cannot_be_read_stands_in_nobodys_way(backend, async_op):
    channel = backend.create()
    channel.put(Unreadable())
    channel.put("next")
    with pytest.raises(CodecError, match="not here"):
        waited_for(lambda: channel.get(async_op=async_op, timeout_s=DEADLINE_S))
    assert channel.get(timeout_s=DEADLINE_S) == "next"
    assert channel.qsize() == 0


def test_an_interruption_while_items_are_read_gives_them_back(in_process, monkeypatch):
    channel = in_process.create()
    channel.put("precious")
    with monkeypatch.context() as patch:

        def interrupted(*_):
            raise KeyboardInterrupt

        patch.setattr("rlinf_scheduler.comm.shm.payload.decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            channel.get(timeout_s=DEADLINE_S)
    assert channel.get(timeout_s=DEADLINE_S) == "precious"
