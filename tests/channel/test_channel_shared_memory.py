"""Channels over shared memory: items survive their producers, blocks survive nobody, and memory is bounded."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest
import shared_memory_roles as roles
from shared_memory_roles import contents, full_of, in_shared_memory

from rlinf.testing.local import LocalRuntime
from rlinf_scheduler.channel import Starter
from rlinf_scheduler.comm.shm.payloads import Payloads
from rlinf_scheduler.errors import ChannelLost, SharedMemoryUnreadable
from rlinf_scheduler.session import current_session

DEADLINE_S = 60.0
MIB = 1 << 20


def eventually(condition):
    """Return when a condition holds that only the kernel or another process brings about."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


@pytest.fixture
def small(sockets):
    """Every part is a process; this one has an arena of 8 MiB."""
    with LocalRuntime(sockets.runtime.address, own_name="small", arena_limit_bytes=8 * MIB) as session:
        session.provide(Starter, sockets.runtime.service(Starter))
        yield sockets


def own_arena():
    return roles.payloads().arena


def all_are_free():
    gc.collect()
    return own_arena().unused()


# -- the ways of an item -------------------------------------------------------------------------


def test_an_item_lies_in_the_memory_where_its_producer_wrote_it(small):
    channel = small.create()
    assert roles.make_ready(channel)
    array = full_of(7)
    channel.put(array)
    array[:] = 8
    item = channel.get(timeout_s=DEADLINE_S)
    assert in_shared_memory(item)
    assert contents(item) == 7
    item[:] = 9  # its owner may write into it
    assert not all_are_free()
    del item
    eventually(all_are_free)


def test_a_handle_does_not_keep_what_its_owner_dropped(small):
    channel = small.create()
    assert roles.make_ready(channel)
    channel.put(full_of(7), async_op=True).wait(DEADLINE_S)
    handle = channel.get(async_op=True)
    item = handle.wait(DEADLINE_S)
    assert contents(item) == 7
    del item, handle
    eventually(all_are_free)


def test_a_dropped_handle_gives_its_item_back_whole(small):
    channel = small.create()
    assert roles.make_ready(channel)
    channel.put(full_of(7))
    handle = channel.get(async_op=True)
    handle.settled.exception(DEADLINE_S)
    del handle
    assert contents(channel.get(timeout_s=DEADLINE_S)) == 7


def test_a_bounded_channel_takes_no_more_memory_than_its_bound(small):
    channel = small.create(maxsize=4)
    producer = small.run(roles.put_and_measure, channel, 400)
    assert small.run(roles.get_and_check, channel, 400).result(DEADLINE_S) == 400
    # Four in the queue, one each in the hands of producer and consumer, and some on their way back.
    assert producer.result(DEADLINE_S) <= 16 * MIB


def test_an_unbounded_channel_with_a_slow_consumer_stops_at_the_limit_of_the_arena(small, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.channel.connection.WAIT_S", 0.01)
    channel = small.create()
    assert roles.make_ready(channel)
    for number in range(20):
        channel.put(full_of(number), timeout_s=DEADLINE_S)
    assert own_arena().touched_bytes <= 8 * MIB + 4096
    items = [channel.get(timeout_s=DEADLINE_S) for _ in range(20)]
    assert [contents(item) for item in items] == list(range(20))
    assert 6 <= sum(map(in_shared_memory, items)) <= 8
    del items
    eventually(all_are_free)


# -- producers that leave ------------------------------------------------------------------------


def test_what_a_producer_put_before_it_left_is_whole(small):
    channel = small.create()
    assert roles.make_ready(channel)
    small.run(roles.put_and_leave, channel, [1, 2, 3]).result(DEADLINE_S)
    items = [channel.get(timeout_s=DEADLINE_S) for _ in range(3)]
    assert [contents(item) for item in items] == [1, 2, 3]
    assert all(map(in_shared_memory, items))


def test_what_a_producer_put_asynchronously_before_it_left_is_whole(small):
    channel = small.create()
    small.run(roles.put_async_and_leave, channel, [1, 2, 3]).result(DEADLINE_S)
    assert [contents(channel.get(timeout_s=DEADLINE_S)) for _ in range(3)] == [1, 2, 3]


def test_what_a_killed_producer_had_put_is_whole_and_its_memory_ends_with_the_last_item(small):
    channel, ready = small.create(), small.create()
    assert roles.make_ready(channel)
    before = roles.mapped()
    producer = small.run(roles.put_and_stay, channel, ready, [1, 2, 3])
    assert ready.get(timeout_s=DEADLINE_S) == "put"
    producer.kill()
    items = [channel.get(timeout_s=DEADLINE_S) for _ in range(3)]
    assert [contents(item) for item in items] == [1, 2, 3]
    assert all(map(in_shared_memory, items))
    items[1][:] = 50  # still its own
    assert [contents(item) for item in items] == [1, 50, 3]
    del items
    gc.collect()
    eventually(lambda: roles.mapped() <= before)  # others may go meanwhile


def test_an_idle_map_of_a_producer_goes_when_it_is_killed_though_nobody_is_connected_to_it(small):
    channel, ready = small.create(), small.create()
    assert roles.make_ready(channel)
    before = roles.mapped()
    producer = small.run(roles.put_and_stay, channel, ready, [1])
    assert ready.get(timeout_s=DEADLINE_S) == "put"
    assert contents(channel.get(timeout_s=DEADLINE_S)) == 1
    assert len(roles.mapped() - before) == 1
    producer.kill()
    eventually(lambda: roles.mapped() <= before)  # others may go meanwhile


# -- consumers that die --------------------------------------------------------------------------


def test_blocks_of_a_killed_consumer_are_used_again(small):
    channel, ready = small.create(), small.create()
    assert roles.make_ready(channel)
    consumer = small.run(roles.get_and_hold, channel, ready, 3)
    for number in range(3):
        channel.put(full_of(number))
    assert ready.get(timeout_s=DEADLINE_S) == [True] * 3
    assert not all_are_free()
    consumer.kill()
    eventually(all_are_free)


def test_a_stopped_consumer_keeps_its_blocks_and_the_others_go_on(small, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.channel.connection.WAIT_S", 0.01)
    channel, ready = small.create(), small.create()
    assert roles.make_ready(channel)
    stopped = small.run(roles.get_and_hold, channel, ready, 6)
    for number in range(6):
        channel.put(full_of(number))
    assert ready.get(timeout_s=DEADLINE_S) == [True] * 6
    stopped.stop()
    for number in range(5):
        channel.put(full_of(number))
        assert contents(channel.get(timeout_s=DEADLINE_S)) == number
    assert own_arena().touched_bytes <= 8 * MIB + 4096
    stopped.kill()
    eventually(all_are_free)


@pytest.mark.parametrize("overwrite", [None, 99], ids=["unchanged", "written into"])
def test_an_item_of_a_consumer_that_dies_right_after_it_got_it_is_delivered_to_nobody_else(small, overwrite):
    channel = small.create()
    assert roles.make_ready(channel)
    consumer = small.run(roles.get_and_die, channel, overwrite)
    channel.put(full_of(1))
    consumer.process.join(DEADLINE_S)
    channel.put(full_of(2))
    assert contents(channel.get(timeout_s=DEADLINE_S)) == 2
    assert channel.stats().num_gets == 2
    eventually(all_are_free)


def test_an_item_of_a_handle_whose_owner_dies_after_it_wrote_into_it_is_delivered_to_nobody_else(small):
    channel = small.create()
    assert roles.make_ready(channel)
    consumer = small.run(roles.get_async_and_die, channel)
    channel.put(full_of(1))
    consumer.process.join(DEADLINE_S)
    channel.put(full_of(2))
    assert contents(channel.get(timeout_s=DEADLINE_S)) == 2


# -- channels that die ---------------------------------------------------------------------------


def test_a_killed_channel_gives_its_blocks_back_and_spares_what_was_taken(small):
    server, channel = small.start_server()
    assert roles.make_ready(channel)
    for number in range(5):
        channel.put(full_of(number))
    taken = channel.get(timeout_s=DEADLINE_S)
    server.kill()
    with pytest.raises(ChannelLost):
        channel.get(timeout_s=DEADLINE_S)
    assert contents(taken) == 0
    assert not all_are_free()
    del taken
    eventually(all_are_free)


def test_descriptors_on_their_way_through_a_killed_channel_hold_nothing(small):
    server, channel = small.start_server()
    assert roles.make_ready(channel)
    server.stop()
    puts = [channel.put(full_of(number), async_op=True) for number in range(3)]
    gets = [channel.get(async_op=True) for _ in range(3)]
    assert not all_are_free()
    server.kill()
    for handle in puts + gets:
        with pytest.raises(ChannelLost):
            handle.wait(DEADLINE_S)
    eventually(all_are_free)


def test_what_is_put_after_the_channel_was_lost_goes_through_the_next_one(small):
    server, channel = small.start_server()
    assert roles.make_ready(channel)
    channel.put(full_of(1))
    server.kill()
    with pytest.raises(ChannelLost):
        channel.get(timeout_s=DEADLINE_S)
    other = small.create()
    assert roles.make_ready(other)
    other.put(full_of(2))
    assert contents(other.get(timeout_s=DEADLINE_S)) == 2
    eventually(all_are_free)


# -- shared memory that cannot be opened ---------------------------------------------------------


def test_a_consumer_that_cannot_open_shared_memory_gets_the_same_items_as_bytes(small):
    channel = small.create()
    assert roles.make_ready(channel)
    for number in range(3):
        channel.put(full_of(number))
    consumer = small.run(roles.get_without_descriptors, channel, 3)
    assert consumer.result(DEADLINE_S) == ([0, 1, 2], [False] * 3)
    eventually(all_are_free)


def test_a_channel_that_cannot_open_shared_memory_takes_bytes_in_order(small):
    ready = small.create()
    server = small.run(roles.hold_without_descriptors, ready, "blind")
    assert ready.get(timeout_s=DEADLINE_S) == "there"
    channel = small.connect("blind")
    assert roles.make_ready(channel)
    handles = [channel.put(full_of(number), async_op=True) for number in range(4)]
    for handle in handles:
        handle.wait(DEADLINE_S)
    items = [channel.get(timeout_s=DEADLINE_S) for _ in range(4)]
    assert [contents(item) for item in items] == [0, 1, 2, 3]
    assert not any(in_shared_memory(item) for item in items)
    eventually(all_are_free)
    server.kill()


def test_a_batch_that_cannot_be_opened_does_not_shift_what_comes_with_it(in_process, monkeypatch):
    channel = in_process.create()
    assert roles.make_ready(channel)
    batch, small = channel.get_batch(2, async_op=True), channel.get("small", async_op=True)
    channel.qsize()
    receive = Payloads.receive
    refusals = iter(["too many open files"])

    def receive_all_but_one(payloads, frames, *, to_load=True):
        if to_load and (refusal := next(refusals, None)):
            raise SharedMemoryUnreadable(refusal)
        return receive(payloads, frames, to_load=to_load)

    monkeypatch.setattr(Payloads, "receive", receive_all_but_one)
    # What is put while the I/O thread is held up goes there and back in one message.
    written = threading.Event()
    current_session().messenger.submit(lambda: written.wait(DEADLINE_S))
    for item, weight, queue_name in (
        (full_of(7), 1, "default"),
        ("text", 1, "default"),
        ("small", 0, "small"),
    ):
        channel.put(item, weight, queue_name, async_op=True)
    written.set()
    assert small.wait(DEADLINE_S) == "small"
    array, text = batch.wait(DEADLINE_S)
    assert (contents(array), text) == (7, "text")


# -- all at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("maxsize", [0, 3])
def test_many_producers_and_consumers_lose_double_and_tear_nothing(small, maxsize):
    channel = small.create(maxsize=maxsize)
    consumer = small.run(roles.get_stamped, channel, 4, 40)
    producer = small.run(roles.put_stamped, channel, 4, 40)
    seen = consumer.result(DEADLINE_S)
    producer.result(DEADLINE_S)
    everything = sorted(stamp for stamps in seen for stamp in stamps)
    assert everything == [(thread, number) for thread in range(4) for number in range(40)]
    for stamps in seen:  # what one thread put comes in order
        for thread in range(4):
            numbers = [number for sender, number in stamps if sender == thread]
            assert numbers == sorted(numbers)
