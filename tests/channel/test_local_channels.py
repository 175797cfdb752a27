"""Channels inside one process: no server, no cluster, the objects themselves."""

import asyncio
import gc
import os
import pickle
import queue
import threading
import weakref

import pytest

from rlinf_scheduler.channel import Channel, LocalChannel
from rlinf_scheduler.channel.local import Local
from rlinf_scheduler.channel.operation import ChannelOperation
from rlinf_scheduler.errors import (
    BatchImpossible,
    BatchTimeout,
    CallArgumentError,
    ChannelArgumentError,
    ChannelClosed,
    ChannelEmpty,
    ChannelLost,
    ChannelTimeout,
)
from waits import wait_until

DEADLINE_S = 60.0


@pytest.fixture
def channel():
    made = Channel.create("local", local=True)
    yield made
    made.delete()


@pytest.fixture
def small():
    made = Channel.create("small", maxsize=2, local=True)
    yield made
    made.delete()


def test_it_needs_no_cluster_and_says_that_it_is_local(channel):
    assert isinstance(channel, LocalChannel)
    assert channel.is_local
    assert (channel.name, channel.maxsize, repr(channel)) == ("local", 0, "<LocalChannel 'local' maxsize=0>")


def test_what_is_got_is_the_very_object_that_was_put(channel):
    items = [object(), [1], {"a": threading.Lock()}]
    for item in items:
        channel.put(item)
    assert channel.peek() is items[0]
    got = [channel.get(), channel.get(timeout_s=0), channel.get_nowait()]
    assert all(one is other for one, other in zip(got, items, strict=True))


def test_queues_are_told_apart_by_their_names(channel):
    channel.put("a", queue_name="left")
    channel.put("b", key=("right", 1))
    assert channel.qsize() == 0
    assert channel.qsize("left") == channel.qsize(key=("right", 1)) == 1
    assert [channel.get(key=("right", 1)), channel.get("left")] == ["b", "a"]
    assert channel.empty("left")


def test_a_batch_takes_the_first_items_that_reach_its_weight_and_waits_for_them(channel):
    channel.put("one", weight=1)
    channel.put("two", weight=2)
    channel.put("three", weight=3)
    assert channel.get_batch(3) == ["one", "two"]
    later = channel.get_batch(target_weight=5, async_op=True)
    assert not later.done()
    channel.put("four", weight=4, version=7)
    batch = later.wait(DEADLINE_S)
    assert (batch, batch.complete, batch.versions) == (["three", "four"], True, (None, 7))


def test_a_batch_has_limits_and_takes_what_is_there_when_its_time_has_come(channel):
    for number in range(5):
        channel.put(number)
    assert channel.get_batch(max_items=2) == [0, 1]
    assert channel.get_batch(10, min_items=1, max_wait_s=0.05) == [2, 3, 4]


def test_groups_and_priorities_are_those_of_any_channel(channel):
    channel.put("low")
    channel.put("high", priority=1)
    assert [channel.get(), channel.get()] == ["high", "low"]
    for number in range(4):
        channel.put(number, group=number % 2)
    group = channel.get_group(2)
    assert (group, group.group) == ([0, 2], 0)
    assert channel.drain() == [1, 3]
    assert channel.drain() == []


def test_a_full_queue_makes_puts_wait_in_order(small):
    small.put(0)
    small.put(1)
    assert small.full()
    waiting = [small.put(number, async_op=True) for number in (2, 3)]
    assert not any(put.done() for put in waiting)
    assert [small.get() for _ in range(4)] == [0, 1, 2, 3]
    assert all(put.wait(DEADLINE_S) is None for put in waiting)


def test_what_does_not_wait_raises_the_errors_of_the_standard_library(small):
    with pytest.raises(asyncio.QueueEmpty):
        small.get_nowait()
    with pytest.raises(queue.Empty):
        small.get_nowait("other")
    with pytest.raises(ChannelEmpty, match="queue 'default' has nothing"):
        small.peek()
    small.put_nowait(1)
    small.put_nowait(2)
    with pytest.raises(asyncio.QueueFull):
        small.put_nowait(3)


def test_a_wait_ends_at_its_deadline_and_has_put_or_taken_nothing(small):
    with pytest.raises(ChannelTimeout, match="channel 'small', queue 'default': get not done"):
        small.get(timeout_s=0.01)
    with pytest.raises(ChannelTimeout):
        small.get(async_op=True, timeout_s=0.01).wait(DEADLINE_S)
    small.put(1)
    small.put(2)
    with pytest.raises(ChannelTimeout, match="2 of 2 items"):
        small.put(3, timeout_s=0.01)
    with pytest.raises(BatchTimeout, match="a batch of weight 9"):
        Channel.create("other", local=True).get_batch(9, timeout_s=0.01)
    with pytest.raises(BatchImpossible):
        small.get_batch(9)
    assert [small.get(), small.get()] == [1, 2]
    assert small.empty()


def test_a_thread_that_waits_gets_what_another_one_puts(channel):
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(channel.get(timeout_s=DEADLINE_S))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for number in range(4):
        channel.put(number)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(got) == [0, 1, 2, 3]


def test_a_task_that_waits_lets_others_run(channel):
    async def main():
        first = asyncio.create_task(channel.get(async_op=True).async_wait())
        await asyncio.sleep(0)
        await channel.put("an item", async_op=True)
        item = await first
        channel.put(1)
        channel.put(2)
        channel.close()
        return item, [each async for each in channel]

    assert asyncio.run(main()) == ("an item", [1, 2])


class Item:
    """What can be referred to weakly."""


def test_a_loop_keeps_no_item_that_its_consumer_has_let_go(channel):
    channel.put(Item())
    loop = iter(channel)
    kept = weakref.ref(next(loop))
    waits = threading.Thread(target=next, args=(loop, None))
    waits.start()
    wait_until(lambda: kept() is None)
    channel.close()
    waits.join()


def test_an_asynchronous_loop_keeps_none_either(channel):
    async def main():
        channel.put(Item())
        loop = aiter(channel)
        kept = weakref.ref(await anext(loop))
        waits = asyncio.ensure_future(anext(loop, None))
        async with asyncio.timeout(DEADLINE_S):
            while kept() is not None:
                await asyncio.sleep(0.001)
        channel.close()
        await waits

    asyncio.run(main())


def test_a_handle_that_is_dropped_or_cancelled_gives_up_its_place(channel):
    dropped = channel.get(async_op=True)
    cancelled = channel.get(async_op=True)
    kept = channel.get(async_op=True)
    del dropped
    gc.collect()
    assert cancelled.cancel()
    channel.put("an item")
    assert kept.wait(DEADLINE_S) == "an item"


def test_an_item_that_came_to_a_handle_goes_back_when_that_is_dropped(channel):
    handle = channel.get(async_op=True)
    channel.put("first")
    channel.put("second")
    assert channel.qsize() == 1
    assert handle.done()
    del handle
    gc.collect()
    assert [channel.get(timeout_s=DEADLINE_S), channel.get()] == ["first", "second"]


def test_what_one_cannot_make_of_its_items_goes_back(channel, monkeypatch):
    def interrupted(_delivered):
        raise KeyboardInterrupt

    channel.put("an item", weight=1)
    with monkeypatch.context() as patch:
        patch.setattr(Local, "batch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            channel.get_batch(1)
    assert channel.get_batch(1, timeout_s=DEADLINE_S) == ["an item"]


def test_it_ends_queue_by_queue_or_as_a_whole(channel):
    channel.put(1, weight=1)
    waiting = channel.get_batch(5, async_op=True)
    channel.flush()
    batch = waiting.wait(DEADLINE_S)
    assert (batch, batch.complete) == ([1], False)
    channel.put(2, queue_name="steps")
    channel.end("steps")
    with pytest.raises(ChannelClosed, match="queue 'steps' has ended"):
        channel.put(3, queue_name="steps")
    assert channel.get("steps") == 2
    with pytest.raises(ChannelClosed):
        channel.get("steps")
    channel.put(4)
    channel.close()
    assert list(channel) == [4]
    with pytest.raises(ChannelClosed):
        channel.put(5)


def test_getters_of_a_queue_that_has_ended_are_told_when_its_last_item_is_taken(channel):
    first, second = (channel.get(async_op=True) for _ in range(2))
    channel.put("last")
    channel.end()
    assert not second.done()
    assert first.wait(DEADLINE_S) == "last"
    with pytest.raises(ChannelClosed):
        second.wait(DEADLINE_S)


def test_what_is_in_it_can_be_seen(small):
    small.put("first", weight=3)
    small.put("second")
    assert str(small) == "local channel 'small': 2 items in 1 queue; next are 'first', 'second'"
    stats = small.stats()
    assert (stats.num_puts, stats.num_gets, stats.num_items, stats.closed) == (2, 0, 2, False)
    assert small.get() == "first"
    assert small.stats().num_gets == 1


def test_who_looks_at_it_changes_nothing_for_those_who_wait(small, channel):
    small.put("first")
    small.put("second")
    waiting = small.put("third", async_op=True)
    assert (small.peek(), str(small)) == (
        "first",
        "local channel 'small': 2 items in 1 queue; next are 'first', 'second'",
    )
    assert small.qsize() == 2
    assert not waiting.done()
    assert [small.get(timeout_s=DEADLINE_S) for _ in range(3)] == ["first", "second", "third"]
    assert waiting.wait(DEADLINE_S) is None
    channel.put("an item", weight=1)
    batch = channel.get_batch(2, async_op=True)
    assert channel.peek() == "an item"
    channel.put("another", weight=1)
    assert batch.wait(DEADLINE_S) == ["an item", "another"]


def test_what_is_looked_at_comes_in_the_order_in_which_it_would_be_got(channel):
    for name, priority in (("low", 0), ("high", 2), ("middle", 1)):
        channel.put(name, priority=priority)
    assert str(channel).endswith("next are 'high', 'middle', 'low'")
    assert [channel.peek(), *channel.drain()] == ["high", "high", "middle", "low"]


def test_the_string_of_a_channel_that_is_deleted_says_so(caplog):
    channel = Channel.create("gone", local=True)
    channel.delete()
    assert str(channel) == "local channel 'gone': the channel was deleted"
    assert not caplog.records


def test_an_operation_costs_the_same_however_many_handles_wait_to_be_taken(channel, monkeypatch):
    looks = 0

    def counted(operation, find=ChannelOperation.find_promise):
        nonlocal looks
        looks += 1
        return find(operation)

    handles = [channel.get(async_op=True) for _ in range(1000)]
    monkeypatch.setattr(ChannelOperation, "find_promise", counted)
    for number in range(1000):
        channel.put(number)
    assert [handle.wait(DEADLINE_S) for handle in handles] == list(range(1000))
    assert looks < 20 * 1000


def test_a_copy_of_it_in_this_process_is_the_same_channel(channel):
    twin = pickle.loads(pickle.dumps({"channels": [channel]}))["channels"][0]
    assert twin.is_local
    twin.put("an item")
    assert channel.get(timeout_s=DEADLINE_S) == "an item"


def test_two_of_one_name_are_two(channel):
    other = Channel.create("local", local=True)
    other.put(1)
    assert channel.empty()


def test_in_a_forked_child_it_begins_empty_and_works(channel):
    channel.put("the parent's")
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = channel.qsize()
            channel.put("the child's")
            os.write(theirs, f"{found} {channel.get(timeout_s=DEADLINE_S)}".encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        assert pipe.read() == "0 the child's"
    os.waitpid(child, 0)
    assert channel.get(timeout_s=DEADLINE_S) == "the parent's"


def test_what_waits_when_it_is_deleted_fails_and_so_does_what_comes_later():
    channel = Channel.create("deleted", local=True)
    waiting = channel.get(async_op=True)
    channel.delete()
    with pytest.raises(ChannelLost, match="was deleted"):
        waiting.wait(DEADLINE_S)
    with pytest.raises(ChannelLost):
        channel.put(1)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda channel: channel.lease(), "leases"),
        (lambda channel: channel.shard(0, 2), "shards"),
        (lambda channel: channel.subscribe("log"), "subscriptions"),
        (lambda channel: channel.ask("question"), "questions"),
        (lambda channel: channel.save("path"), "checkpoints"),
        (lambda channel: channel.admit(max_lag=1), "slots"),
        (lambda channel: channel.producer(), "counted producers"),
        (lambda channel: channel.explain(), "stats"),
        (lambda channel: channel.put(1, slot=object()), "slots"),
    ],
)
def test_what_needs_a_server_is_refused_by_its_name(channel, call, what):
    with pytest.raises(ChannelArgumentError, match=f"a local channel has no .*{what}"):
        call(channel)


def test_options_that_need_a_server_are_refused_by_their_names():
    with pytest.raises(ChannelArgumentError, match="max_bytes, durable is for channels that a process holds"):
        Channel.create("local", local=True, max_bytes=1, durable="folder")
    with pytest.raises(CallArgumentError, match="maxsiz"):
        Channel.create("local", local=True, maxsiz=1)


def test_arguments_that_make_no_sense_are_refused_as_by_any_channel(channel):
    with pytest.raises(ChannelArgumentError):
        channel.put(1, weight=-1)
    with pytest.raises(ChannelArgumentError):
        channel.get(1.5)
    with pytest.raises(ChannelArgumentError):
        channel.get_batch(0)
    assert channel.empty()


def test_what_a_handle_waits_for_is_said(channel):
    handle = channel.get(async_op=True)
    assert handle.awaits().operation == "get('local'), which is local"
    assert "get on channel 'local', queue 'default'" in repr(handle)
