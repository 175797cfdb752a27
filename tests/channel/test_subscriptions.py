"""Subscriptions: every item is seen beside its consumers, on every backend."""

from __future__ import annotations

import asyncio
import pickle

import numpy as np
import pytest
import subscription_roles as roles

from rlinf_scheduler.channel import Channel
from rlinf_scheduler.errors import (
    ChannelArgumentError,
    ChannelClosed,
    ChannelEmpty,
    ChannelTimeout,
)
from waits import wait_until

DEADLINE_S = 60.0
LARGE = 1 << 20


def create(backend, **options):
    return Channel.create(backend.name(), **options)


def reader(backend, role, channel, *args):
    """A task that has subscribed."""
    ready = create(backend)
    task = backend.run(role, channel, ready, *args)
    assert ready.get(timeout_s=DEADLINE_S) == "subscribed"
    return task, ready


def put_all(channel, items):
    for item in items:
        channel.put(item, weight=1)


# -- what is seen -----------------------------------------------------------------------------------


def test_another_process_sees_what_a_consumer_takes(backend):
    channel = create(backend)
    channel.put("before")
    task, _ = reader(backend, roles.read_all, channel)
    put_all(channel, range(5))
    channel.end()
    assert list(channel) == ["before", *range(5)]
    assert task.result(DEADLINE_S) == list(range(5))


def test_members_share_and_names_do_not(backend):
    channel = create(backend)
    tasks = [reader(backend, roles.read_all, channel)[0] for _ in range(2)]
    other, _ = reader(backend, roles.read_all, channel, "stats")
    put_all(channel, range(40))
    channel.end()
    first, second = (task.result(DEADLINE_S) for task in tasks)
    assert sorted(first + second) == list(range(40))
    assert other.result(DEADLINE_S) == list(channel) == list(range(40))


def test_a_subscription_is_read_as_a_channel_is(in_process):
    channel = create(in_process)
    with channel.subscribe("log", maxsize=0) as seen:
        for number in range(12):
            channel.put(number, weight=1, group=number % 2)
        assert (seen.qsize(), seen.empty(), seen.full(), seen.peek()) == (12, False, False, 0)
        assert seen.get() == 0
        assert seen.get_batch(2) == [1, 2]
        assert seen.get_nowait() == 3
        assert seen.get(async_op=True).wait(DEADLINE_S) == 4
        assert seen.get_group(2).group in (0, 1)
        with seen.lease() as lease:
            assert lease.attempt == 1
        assert len(seen.drain()) == 4
        with pytest.raises(ChannelEmpty):
            seen.get_nowait()
        with pytest.raises(ChannelTimeout, match=r"'log' \(a subscription\)"):
            seen.get(timeout_s=0.01)
        channel.close()
        with pytest.raises(ChannelClosed):
            seen.get()
    assert len(list(channel)) == 12


def test_ranks_divide_a_subscription_too(in_process):
    channel = create(in_process)
    with channel.subscribe("log") as seen:
        put_all(channel, range(4))
        channel.end()
        shards = [seen.shard(index, 2, batch_items=4) for index in range(2)]
        assert [shard.next_batch(DEADLINE_S) for shard in shards] == [[0, 2], [1, 3]]
    assert list(channel) == [0, 1, 2, 3]


def test_async_for_reads_to_the_end(in_process):
    channel = create(in_process)

    async def read(seen):
        return [item async for item in seen]

    with channel.subscribe("log") as seen:
        put_all(channel, "abc")
        channel.end()
        assert asyncio.run(read(seen)) == ["a", "b", "c"]


def test_leases_of_a_subscription_come_back_and_are_no_consumers_business(backend):
    channel = create(backend)
    with channel.subscribe("log") as seen:
        put_all(channel, "ab")
        with pytest.raises(ZeroDivisionError):  # noqa: SIM117
            with seen.lease(timeout_s=DEADLINE_S):
                raise ZeroDivisionError
        assert [channel.get(), channel.get()] == ["a", "b"]
        channel.end()
        assert [(lease.item, lease.attempt) for lease in seen.leases()] == [("a", 2), ("b", 1)]


def test_its_dead_letters_are_its_own(in_process):
    channel = create(in_process, max_attempts=1)
    with channel.subscribe("log") as seen:
        channel.put("bad")
        with pytest.raises(ZeroDivisionError):  # noqa: SIM117
            with seen.lease(timeout_s=DEADLINE_S):
                raise ZeroDivisionError
        (letter,) = seen.dead_letters()
        assert letter.item == "bad"
        assert channel.dead_letters("default") == []
        letter.put_back()
        assert seen.get(timeout_s=DEADLINE_S) == "bad"
    assert channel.get() == "bad"


def test_all_queues_are_seen_in_order(backend):
    channel = create(backend)
    with channel.subscribe("log", None) as seen:
        channel.put("a", queue_name="x")
        channel.put("b", queue_name=("y", 2))
        channel.put("c")
        assert [seen.get(timeout_s=DEADLINE_S) for _ in range(3)] == ["a", "b", "c"]


def test_what_is_asked_is_seen_and_not_to_be_answered(in_process):
    channel = create(in_process)
    with channel.subscribe("log") as seen:
        answers = [channel.ask(number, async_op=True) for number in range(3)]
        assert seen.get(timeout_s=DEADLINE_S) == 0
        assert seen.get_batch(max_items=1, timeout_s=DEADLINE_S) == [1]
        with seen.lease(timeout_s=DEADLINE_S) as lease:
            assert lease.item == 2
        for request in channel.next_requests(3, timeout_s=DEADLINE_S):
            request.reply(request.item + 1)
        assert [answer.wait(DEADLINE_S) for answer in answers] == [1, 2, 3]


# -- arrays -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 5_000, 10_000, LARGE])
@pytest.mark.parametrize("consumer_first", [False, True])
def test_what_one_writes_the_other_does_not_see(backend, size, consumer_first):
    channel = create(backend)
    consumer_ready = create(backend)
    seen_task, seen_ready = reader(backend, roles.overwrite_as_subscriber, channel, 7)
    consume = (roles.overwrite, channel, consumer_ready, 9)
    consumer = backend.run(*consume) if consumer_first else None
    channel.put(np.ones(size))
    assert seen_ready.get(timeout_s=DEADLINE_S) == "written"
    consumer = consumer or backend.run(*consume)
    assert consumer_ready.get(timeout_s=DEADLINE_S) == "written"
    for ready in (seen_ready, consumer_ready):
        ready.put("go on", queue_name="go on")
    assert seen_task.result(DEADLINE_S) == (size, True)
    assert consumer.result(DEADLINE_S) == (size, True)


@pytest.mark.parametrize("size", [3, 5_000, 10_000, LARGE])
def test_one_process_that_reads_both_has_two_arrays(backend, size):
    channel = create(backend)
    with channel.subscribe("log") as seen, channel.subscribe("more") as more:
        channel.put(np.ones(size))
        taken = channel.get(timeout_s=DEADLINE_S)
        taken[:] = 2
        found = seen.get(timeout_s=DEADLINE_S)
        assert (found == 1).all()
        found[:] = 3
        assert (more.get(timeout_s=DEADLINE_S) == 1).all()
        assert (taken == 2).all()


def test_a_large_item_is_in_shared_memory_once_until_its_last_reader_is_done(sockets):
    channel, answers = create(sockets), create(sockets)
    with channel.subscribe("log") as seen, channel.subscribe("more") as more:
        producer = sockets.run(roles.put_one_large, channel, answers)
        first, second = channel.get(timeout_s=DEADLINE_S), seen.get(timeout_s=DEADLINE_S)
        assert answers.ask("how many blocks", timeout_s=DEADLINE_S) == 1
        del first, second
        channel.qsize()  # after what was taken has been confirmed
        assert not answers.ask("unused", timeout_s=DEADLINE_S)
        third = more.get(timeout_s=DEADLINE_S)
        assert third.sum() == LARGE
        del third
        assert answers.ask("how many blocks", timeout_s=DEADLINE_S) == 1
        wait_until(lambda: answers.ask("unused", timeout_s=DEADLINE_S))
    answers.end()
    producer.result(DEADLINE_S)


# -- bounds -----------------------------------------------------------------------------------------


def test_nobody_waits_for_a_subscription_that_is_not_read(backend):
    channel = create(backend)
    with channel.subscribe("log", maxsize=3) as seen:
        put_all(channel, range(10))
        assert list(channel.drain()) == list(range(10))
        assert seen.num_dropped() == 7
        (depth,) = channel.stats().subscriptions
        assert (depth.name, depth.num_items, depth.num_dropped) == ("log", 3, 7)
        assert list(seen.drain()) == [7, 8, 9]
        stats = channel.stats()
        assert (stats.num_puts, stats.num_gets, stats.num_items) == (10, 10, 0)


def test_one_that_is_full_holds_up_no_put(backend):
    channel = create(backend)
    with channel.subscribe("log", maxsize=1) as seen:
        channel.put_nowait("a")
        channel.put_nowait("b")
        assert "drops its oldest items when it is full" in str(channel.explain())
        assert seen.drain() == ["b"]
        assert not seen.full()
    assert channel.drain() == ["a", "b"]


@pytest.mark.parametrize("size", [10, 100_000, LARGE])
def test_one_without_a_bound_sees_all_items_of_any_size(backend, size):
    channel = create(backend)
    with channel.subscribe("log", maxsize=0, max_bytes=0) as seen:
        put_all(channel, (np.full(size, number) for number in range(4)))
        assert [channel.get(timeout_s=DEADLINE_S)[0] for _ in range(4)] == list(range(4))
        assert [seen.get(timeout_s=DEADLINE_S)[0] for _ in range(4)] == list(range(4))
        assert seen.num_dropped() == 0


def test_a_batch_that_it_can_never_have_is_refused(in_process):
    channel = create(in_process)
    with channel.subscribe("log", maxsize=2) as seen, pytest.raises(ChannelArgumentError):
        seen.get_batch(min_items=3)


# -- members ----------------------------------------------------------------------------------------


def test_it_is_gone_with_its_last_member(backend):
    channel = create(backend)
    task, _ = reader(backend, roles.read_some, channel, 2)
    mine = channel.subscribe("log")
    put_all(channel, range(2))
    mine.unsubscribe()
    assert task.result(DEADLINE_S) == [0, 1]
    wait_until(lambda: not channel.stats().subscriptions)
    with pytest.raises(ChannelClosed):
        mine.get(timeout_s=DEADLINE_S)
    with pytest.raises(ChannelClosed):
        mine.peek()
    assert list(mine) == []
    assert channel.drain() == [0, 1]


def test_who_waits_when_it_is_gone_is_told(in_process):
    channel = create(in_process)
    seen = channel.subscribe("log")
    handle = seen.get(async_op=True)
    seen.unsubscribe()
    with pytest.raises(ChannelClosed):
        handle.wait(DEADLINE_S)
    seen.unsubscribe()  # once is enough


def test_one_that_is_dropped_leaves(in_process):
    channel = create(in_process, successor_s=0)
    seen = channel.subscribe("log")
    assert channel.stats().subscriptions
    del seen
    wait_until(lambda: not channel.stats().subscriptions)


def test_what_a_dead_member_had_goes_to_its_successor(sockets):
    channel = create(sockets)
    task, ready = reader(sockets, roles.subscribe_and_hold, channel)
    put_all(channel, range(3))
    assert ready.get(timeout_s=DEADLINE_S) == 0
    task.kill()
    with channel.subscribe("log") as seen:
        # Until its death is noticed, what it had is not here.
        assert sorted(seen.get(timeout_s=DEADLINE_S) for _ in range(3)) == [0, 1, 2]
    assert channel.drain() == [0, 1, 2]


def test_no_put_waits_for_a_subscriber_that_is_full_and_dies(sockets):
    channel = create(sockets, successor_s=0.2)
    task, ready = reader(sockets, roles.subscribe_and_hold, channel, 3)
    put_all(channel, range(2))
    assert ready.get(timeout_s=DEADLINE_S) == 0
    put_all(channel, range(2, 6))
    task.kill()
    assert channel.drain() == list(range(6))
    wait_until(lambda: channel.stats().subscriptions == ())


def test_a_mark_of_a_subscriber_is_not_a_consumers(sockets):
    """A consumer that dies with an item that only a subscriber has looked at has not taken it."""
    channel, asked = create(sockets), create(sockets)
    subscriber, ready = reader(sockets, roles.mark_and_hold, channel)
    consumer = sockets.run(roles.be_given_one_and_never_look, channel, asked)
    assert asked.get(timeout_s=DEADLINE_S) == "asked"
    channel.put(np.ones(LARGE))
    assert ready.get(timeout_s=DEADLINE_S) == "taken"
    consumer.kill()
    assert channel.get(timeout_s=DEADLINE_S).sum() == LARGE
    ready.put("go on", queue_name="go on")
    assert subscriber.result(DEADLINE_S) == LARGE


# -- what is said -----------------------------------------------------------------------------------


def test_a_channel_explains_who_reads_what(in_process):
    channel = create(in_process)
    with channel.subscribe("log", maxsize=1) as seen:
        put_all(channel, range(3))
        report = channel.explain()
        assert report.num_items == 3
        text = str(report)
        assert "subscription 'log': 1 item of weight 1" in text
        assert "2 items dropped" in text
        assert "it sees queue 'default', may hold at most 1 item and " in text
        assert "read by" in text
        found = next(each for each in report.to_dict()["queues"] if each["subscription"])
        assert found["depth"]["name"] == {"subscription": "log"}
        assert repr(seen) == str(seen) == f"<Subscription 'log' of channel '{channel.name}'>"
        assert (seen.name, seen.maxsize) == ("log", 1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"name": ""}, "not empty"),
        ({"name": 3}, "not 3"),
        ({"maxsize": -1}, "maxsize"),
        ({"max_bytes": -1}, "max_bytes"),
        ({"queue_name": 1.5}, "queue"),
    ],
)
def test_mistakes_are_said(in_process, arguments, problem):
    channel = create(in_process)
    with pytest.raises(ChannelArgumentError, match=problem):
        channel.subscribe(**{"name": "log", **arguments})


def test_members_that_want_different_things_are_told_what_there_is(backend):
    channel = create(backend)
    with channel.subscribe("log"):
        with pytest.raises(
            ChannelArgumentError, match="'log' already: it sees queue 'default', may hold at most 1024 items"
        ):
            channel.subscribe("log", maxsize=3)
        channel.subscribe("log").unsubscribe()


def test_a_member_that_says_no_bound_in_bytes_takes_what_there_is(in_process):
    channel = create(in_process)
    with channel.subscribe("log", max_bytes=100):
        channel.subscribe("log").unsubscribe()
        with pytest.raises(ChannelArgumentError, match="at most 1024 items and 100 bytes"):
            channel.subscribe("log", max_bytes=200)


def test_it_needs_no_name_of_a_queue_and_stays_in_its_process(in_process):
    channel = create(in_process)
    with channel.subscribe("log") as seen:
        with pytest.raises(ChannelArgumentError, match="one queue"):
            seen.get("other")
        with pytest.raises(ChannelArgumentError, match="subscribe where it is read"):
            pickle.dumps(seen)
