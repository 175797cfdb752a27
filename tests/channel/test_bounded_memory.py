"""What a channel's process holds is bounded, and what is over leaves nothing behind."""

import contextlib
import gc
import time

import numpy as np
import pytest

import regression_roles as roles
from job_processes import DEADLINE_S, Job
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.observe import timekeeping
from waits import wait_until

MIB = 1 << 20
# What a run leaves behind once, whatever its length: caches, a connection's buffers.
SPARE_OBJECTS = 400


def count(holder):
    """How many objects the channel's process has."""
    holder.pipe.send("count")
    return holder.receive()


def objects_here():
    """How many objects this process has."""
    gc.collect()
    return len(gc.get_objects())


@contextlib.contextmanager
def obedient_holder(maxsize=0):
    """A channel whose process does what it is told."""
    with Job() as job:
        holder = job.start(roles.hold_and_obey, "channel", maxsize)
        assert holder.receive() == "held"
        yield job, holder, Channel.connect("channel", timeout_s=DEADLINE_S)


@pytest.mark.parametrize("size_bytes", [200, 60_000])
def test_puts_that_wait_do_not_fill_the_channels_process(size_bytes):
    with Job() as job:
        holder, channel = job.hold(maxsize=1)
        channel.put(bytes(size_bytes))
        before = holder.resident_bytes()
        producer = job.start(roles.put_much, channel.name, 3000, size_bytes)
        assert producer.receive() == "put"
        channel.qsize()
        assert holder.resident_bytes() - before < 32 * MIB


def test_cancelled_gets_leave_nothing_behind():
    with obedient_holder() as (_, holder, channel):

        def cancel(num_gets):
            for _ in range(num_gets):
                channel.get("never", async_op=True, timeout_s=86_400).cancel()
            channel.qsize()
            return count(holder), objects_here()

        cancel(500)
        there, here = cancel(500)
        there_after, here_after = cancel(2000)
        assert there_after < there + SPARE_OBJECTS
        assert here_after < here + SPARE_OBJECTS


def test_operations_that_end_leave_nothing_to_the_garbage_collector():
    with obedient_holder() as (_, _, channel):

        def put_and_get(num_items):
            for handle in [channel.put(number, async_op=True) for number in range(num_items)]:
                handle.wait()
            for handle in [channel.get(async_op=True) for _ in range(num_items)]:
                handle.wait()
            channel.qsize()  # all that was taken is confirmed

        put_and_get(10)
        gc.collect()
        gc.disable()
        try:
            put_and_get(500)
            assert gc.collect() < SPARE_OBJECTS
        finally:
            gc.enable()


def test_dead_clients_leave_nothing_behind():
    with obedient_holder() as (job, holder, channel):

        def die(num_clients):
            clients = [job.start(roles.die_with_waiting_gets, channel.name, 100) for _ in range(num_clients)]
            for client in clients:
                assert client.receive() == "waiting"
            for client in clients:
                client.kill()
            deadline = time.monotonic() + DEADLINE_S
            while channel.stats().num_getters:  # it has noticed when nobody waits any more
                assert time.monotonic() < deadline
            return count(holder)

        before = die(2)
        assert die(6) < before + SPARE_OBJECTS


def test_deleted_channels_leave_nothing_behind(monkeypatch):
    monkeypatch.setattr(timekeeping, "MAX_SUMS", 40)  # of waits, a thousand are told apart by their channels
    monkeypatch.setattr(timekeeping, "_words", timekeeping._words.__wrapped__)  # kept of as many
    with Job():

        def make_and_delete(first, num_channels):
            for number in range(first, first + num_channels):
                channel = Channel.create(f"short-lived-{number}")
                channel.put(number)
                assert channel.get(timeout_s=DEADLINE_S) == number
                channel.delete()

        make_and_delete(0, 20)
        before = objects_here()
        make_and_delete(20, 100)
        assert objects_here() < before + SPARE_OBJECTS


def test_a_weight_beyond_what_64_bits_hold_is_counted():
    with Job() as job:
        _, channel = job.hold()
        channel.put("heavy", weight=1e20)
        channel.put("heavier", weight=1e300)
        assert channel.stats().queues[0].weight == pytest.approx(1e300)
        assert channel.get_batch(2e20, timeout_s=DEADLINE_S) == ["heavy", "heavier"]


def test_a_process_without_descriptors_gets_bytes_and_shares_again_later():
    with obedient_holder() as (job, holder, channel):

        def put_and_get(value):
            channel.put(np.full(MIB, value, np.uint8), timeout_s=DEADLINE_S)
            assert channel.get(timeout_s=DEADLINE_S)[-1] == value

        def transport():
            transports = job.driver.messenger.transports()
            return [how for how in transports.values() if how.startswith("unix")]

        for _ in range(20):  # by now the two know what they can share, but nothing large has been there
            channel.put("small")
            channel.get()
        holder.pipe.send("starve")
        assert holder.receive() == "starved"
        put_and_get(3)
        put_and_get(4)
        holder.pipe.send("recover")
        assert holder.receive() == "recovered"
        deadline = time.monotonic() + DEADLINE_S
        while transport() != ["unix+memory"]:
            put_and_get(5)
            assert time.monotonic() < deadline


def test_an_item_costs_the_same_however_many_are_in_shared_memory():
    with Job() as job:
        _, channel = job.hold()
        item = np.zeros(70_000, np.uint8)

        def seconds_for_one():
            """What the cheapest of 100 puts and of as many gets took: the one that nobody disturbed."""
            puts, gets = [], []
            for _ in range(100):
                started = time.perf_counter()
                channel.put(item, timeout_s=DEADLINE_S)
                middle = time.perf_counter()
                channel.get(timeout_s=DEADLINE_S)
                puts.append(middle - started)
                gets.append(time.perf_counter() - middle)
            return min(puts), min(gets)

        for _ in range(10):
            channel.put(item)
        shallow = seconds_for_one()
        for _ in range(3000):
            channel.put(item)
        deep = seconds_for_one()
        assert deep[0] < 3 * shallow[0]
        assert deep[1] < 3 * shallow[1]


def test_a_deleted_channel_lets_go_of_what_it_held_in_a_process_that_lives_on(in_process):
    def count_items():
        """How many there are of this size: what other threads of this process receive is smaller."""
        payloads = [each for each in gc.get_objects() if type(each) is ReceivedPayload]
        return sum(each.size_bytes >= 60_000 for each in payloads)

    gc.collect()
    before = count_items()
    channel = Channel.create(in_process.name(), max_attempts=1)
    for _ in range(3):
        channel.put(bytes(60_000))
    with contextlib.suppress(KeyError), channel.lease():
        raise KeyError
    gc.collect()
    wait_until(lambda: count_items() == before + 3)
    gc.disable()  # it is not for the collector to find
    try:
        channel.delete()
        wait_until(lambda: count_items() <= before)
    finally:
        gc.enable()
