"""Leases: what is not acknowledged comes back, on every backend."""

from __future__ import annotations

import asyncio
import pickle
import threading
import weakref
from contextlib import contextmanager

import lease_roles as roles
import numpy as np
import pytest

from rlinf_scheduler.channel import Channel
from rlinf_scheduler.errors import (
    BatchTimeout,
    ChannelArgumentError,
    ChannelClosed,
    ChannelEmpty,
    ChannelError,
    ChannelFull,
    ChannelLost,
    ChannelTimeout,
    CodecError,
    LeaseExpired,
)
from rlinf_scheduler.queueing.leases import Leases
from rlinf_scheduler.session import current_session
from waits import wait_until

DEADLINE_S = 60.0
LARGE = 1 << 20


def filled(backend, items, **options):
    channel = Channel.create(backend.name(), **options)
    for item in items:
        channel.put(item, weight=1)
    return channel


@contextmanager
def lease_that_fails(channel, error=ZeroDivisionError, **options):
    with pytest.raises(error if isinstance(error, type) else type(error)):  # noqa: PT012, SIM117
        with channel.lease(timeout_s=DEADLINE_S, **options) as lease:
            yield lease
            raise error


def fail_with(channel, error, **options):
    with lease_that_fails(channel, error, **options):
        pass


def counts(channel):
    stats = channel.stats()
    return stats.num_items, stats.num_leased, stats.num_dead


# -- one item ---------------------------------------------------------------------------------------


def test_an_item_is_forgotten_at_the_end_of_the_block(backend):
    channel = filled(backend, ["a", "b"])
    with channel.lease() as lease:
        assert (lease.item, lease.attempt, list(lease.items)) == ("a", 1, ["a"])
        assert counts(channel) == (1, 1, 0)
    assert counts(channel) == (1, 0, 0)
    assert channel.get() == "b"


def test_a_lease_that_was_not_entered_says_how(in_process):
    channel = Channel.create(in_process.name())
    with pytest.raises(AttributeError, match="once it is entered"):
        channel.lease().item  # noqa: B018


def test_an_item_comes_back_to_the_head_when_the_block_fails(backend):
    channel = filled(backend, ["a", "b"])
    fail_with(channel, ZeroDivisionError())
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        assert (lease.item, lease.attempt) == ("a", 2)
    assert channel.get() == "b"


def test_an_item_that_is_acknowledged_early_does_not_come_back(backend):
    channel = filled(backend, ["a"])
    with lease_that_fails(channel) as lease:
        lease.ack()
    assert counts(channel) == (0, 0, 0)


def test_an_item_that_is_given_back_is_the_next_ones(backend):
    channel = filled(backend, ["a", "b"])
    with channel.lease() as lease:
        lease.nack()
        assert channel.get(timeout_s=DEADLINE_S) == "a"
    assert counts(channel) == (1, 0, 0)


def test_nobody_gets_an_item_before_its_delay_is_over(backend):
    channel = filled(backend, ["late", "soon"])
    for delay_s in (3600, 0.05):
        with channel.lease() as lease:
            lease.nack(delay_s=delay_s)
    assert channel.get(timeout_s=DEADLINE_S) == "soon"
    with pytest.raises(ChannelEmpty):
        channel.get_nowait()
    assert counts(channel) == (0, 1, 0)


def test_other_processes_get_what_comes_back(backend):
    channel = filled(backend, range(3))
    task = backend.run(roles.fail_at, channel, 1)
    with pytest.raises(ZeroDivisionError, match="cannot do 1"):
        task.result(DEADLINE_S)
    channel.end()
    assert backend.run(roles.take_all, channel).result(DEADLINE_S) == [(1, 2), (2, 1)]


@pytest.mark.parametrize("size", [3, LARGE])
def test_what_a_consumer_wrote_is_not_seen_by_the_next(backend, size):
    channel = filled(backend, [np.zeros(size)])
    with lease_that_fails(channel) as lease:
        lease.item[:] = 7
    np.testing.assert_array_equal(channel.get(timeout_s=DEADLINE_S), np.zeros(size))


# -- batches ----------------------------------------------------------------------------------------


def test_a_batch_is_settled_as_a_whole(backend):
    channel = filled(backend, range(5))
    with channel.lease(batch_weight=3) as lease:
        assert (lease.items, lease.items.complete, lease.attempts) == ([0, 1, 2], True, [1, 1, 1])
        with pytest.raises(ChannelArgumentError, match="items"):
            _ = lease.item
    fail_with(channel, ValueError(), max_items=2)
    assert channel.drain() == [3, 4]


def test_items_of_a_batch_are_settled_one_by_one(backend):
    channel = filled(backend, range(5))
    with lease_that_fails(channel, min_items=5) as lease:
        lease.ack(only=[0, 3])
        lease.nack(only=1)
        assert channel.get(timeout_s=DEADLINE_S) == 1
        with pytest.raises(ChannelArgumentError, match=r"items \[0, 1\] of this lease were settled before"):
            lease.ack(only=[0, 1, 2])
        lease.ack(only=4)
    assert channel.drain() == [2]


def test_the_rest_of_a_batch_is_acknowledged_at_the_end(backend):
    channel = filled(backend, range(3))
    with channel.lease(min_items=3) as lease:
        lease.nack(only=[1], delay_s=0.05)
    assert channel.get(timeout_s=DEADLINE_S) == 1
    assert counts(channel) == (0, 0, 0)


def test_attempts_are_counted_for_each_item(backend):
    channel = filled(backend, range(2))
    fail_with(channel, ValueError())
    with channel.lease(min_items=2) as lease:
        assert (lease.attempts, lease.attempt) == ([2, 1], 2)


# -- dead letters -----------------------------------------------------------------------------------


def test_an_item_that_fails_too_often_is_a_dead_letter(backend):
    channel = filled(backend, ["bad", "good"], max_attempts=2)
    for attempt in range(2):
        fail_with(channel, ValueError(f"reward {attempt} is not a number"))
    assert channel.get(timeout_s=DEADLINE_S) == "good"
    for _ in range(2):  # it survives being read
        (letter,) = channel.dead_letters()
        assert (letter.item, letter.attempts, letter.queue_name) == ("bad", 2, "default")
        assert letter.reason == "ValueError: reward 1 is not a number"
    assert channel.dead_letters("another queue") == []
    assert counts(channel) == (0, 0, 1)


def test_a_dead_letter_tells_who_had_it_last(backend):
    channel = filled(backend, [7], max_attempts=1)
    task = backend.run(roles.fail_at_the_first, channel)
    with pytest.raises(ZeroDivisionError):
        task.result(DEADLINE_S)
    # What its process said of the lease travels by itself.
    wait_until(channel.dead_letters)
    (letter,) = channel.dead_letters()
    assert letter.reason == "ZeroDivisionError: cannot do 7"
    assert letter.last_consumer
    assert letter.last_consumer in repr(letter)


@pytest.mark.parametrize("size", [3, LARGE])
def test_a_dead_letter_is_put_back_with_its_attempts(backend, size):
    channel = filled(backend, [np.arange(size)], max_attempts=1)
    fail_with(channel, ValueError())
    (letter,) = channel.dead_letters()
    letter.item[:] = 0  # a copy
    letter.put_back()
    assert channel.dead_letters() == []
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        assert lease.attempt == 1
        np.testing.assert_array_equal(lease.item, np.arange(size))


def test_a_dead_letter_that_is_gone_says_so(backend):
    channel = filled(backend, [1, 2], max_attempts=1)
    fail_with(channel, ValueError(), min_items=2)
    first, second = channel.dead_letters()
    first.discard()
    for use in (first.discard, first.put_back, lambda: first.item):
        with pytest.raises(ChannelError, match="it was put back, or discarded"):
            use()
    second.put_back()
    assert counts(channel) == (1, 0, 0)


def test_without_a_bound_there_are_no_dead_letters(in_process):
    channel = filled(in_process, ["x"])
    for _ in range(20):
        fail_with(channel, ValueError())
    assert channel.dead_letters() == []
    assert counts(channel) == (1, 0, 0)


class Unreadable:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    message = "not here"
    raise RuntimeError(message)


def test_an_item_that_cannot_be_read_is_given_back_and_counted(in_process):
    channel = filled(in_process, [Unreadable()], max_attempts=2)
    for _ in range(2):
        with pytest.raises(CodecError, match="not here"), channel.lease(timeout_s=DEADLINE_S):
            pass
    (letter,) = channel.dead_letters()
    assert "not here" in letter.reason


def test_an_error_that_has_no_text_is_a_reason_too(in_process):
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError

    channel = filled(in_process, [1, 2], max_attempts=1)
    fail_with(channel, Odd())
    fail_with(channel, ValueError("\udcff" * 10_000))
    first, second = channel.dead_letters()
    assert first.reason.endswith("Odd")
    assert len(second.reason) < 5000


# -- consumers that die, hang, or are late ----------------------------------------------------------


def test_items_on_their_way_to_a_stopped_consumer_come_back_too(sockets):
    channel, ready = sockets.create(), sockets.create()
    task = sockets.run(roles.be_given_an_item_and_never_look, channel, ready)
    assert ready.get(timeout_s=DEADLINE_S) == "waiting"
    task.stop()
    channel.put("x")
    task.kill()
    channel.end()
    assert roles.take_all(channel) == [("x", 2)]


def test_a_lease_is_kept_alive_as_long_as_its_process_lives(in_process, monkeypatch):
    often = threading.Semaphore(0)
    extend = Leases.extend

    def counted(*args):
        often.release()
        return extend(*args)

    monkeypatch.setattr(Leases, "extend", counted)
    channel = filled(in_process, ["x"])
    with channel.lease(ttl_s=0.3) as lease:
        for _ in range(6):  # twice its time
            assert often.acquire(timeout=DEADLINE_S)
        lease.ack()
    assert counts(channel) == (0, 0, 0)


def test_who_does_not_come_to_an_end_loses_the_items(backend):
    channel = filled(backend, ["x"])
    late = pytest.raises(LeaseExpired, match=r"given back: its consumer did not come to an end in 0\.1 s")
    with late, channel.lease(work_deadline_s=0.1), channel.lease(timeout_s=DEADLINE_S) as other:
        assert (other.item, other.attempt) == ("x", 2)
    assert counts(channel) == (0, 0, 0)


def test_a_late_failure_is_itself_and_no_other(backend):
    channel = filled(backend, ["x"])
    with lease_that_fails(channel, work_deadline_s=0.05):
        assert channel.get(timeout_s=DEADLINE_S) == "x"
    assert counts(channel) == (0, 0, 0)


def test_every_late_word_is_refused(backend):
    channel = filled(backend, ["x", "y"])
    with channel.lease(work_deadline_s=0.05, min_items=2) as lease:
        assert channel.get(timeout_s=DEADLINE_S) == "x"
        with pytest.raises(LeaseExpired, match="queue 'default': the lease is over"):
            lease.extend(5)
        with pytest.raises(LeaseExpired):
            lease.nack(only=1)
        with pytest.raises(LeaseExpired):
            lease.ack()


@pytest.mark.usefixtures("patient")
def test_a_lease_that_was_extended_lasts(in_process):
    channel = filled(in_process, ["x"])
    with channel.lease(work_deadline_s=1.5) as lease:
        lease.extend(3600)
        with pytest.raises(ChannelTimeout, match="1 on lease"):
            channel.get(timeout_s=1.6)
    assert counts(channel) == (0, 0, 0)


def test_the_loss_of_the_channel_is_told_at_the_end(sockets):
    server, channel = sockets.start_server()
    channel.put("x")
    with pytest.raises(ChannelLost), channel.lease():
        server.kill()


def test_an_error_of_a_late_word_survives_being_sent():
    error = pickle.loads(pickle.dumps(LeaseExpired("rollouts", ("q", 1), "it is late")))
    assert str(error) == "channel 'rollouts', queue ('q', 1): the lease is over: it is late"


# -- what is dropped --------------------------------------------------------------------------------


def test_a_lease_that_nobody_keeps_is_given_back_and_is_no_attempt(backend):
    channel = filled(backend, ["x"], max_attempts=1)
    channel.lease().__enter__()
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        assert (lease.item, lease.attempt) == ("x", 1)


def test_ctrl_c_in_the_block_is_no_attempt(backend):
    channel = filled(backend, ["x"], max_attempts=1)
    for _ in range(3):
        fail_with(channel, KeyboardInterrupt())
    assert counts(channel) == (1, 0, 0)


def test_a_lease_that_nobody_waits_for_any_more_is_no_attempt(backend):
    channel = filled(backend, [], max_attempts=1)
    for _ in range(3):
        with pytest.raises(ChannelTimeout, match="lease not done"), channel.lease(timeout_s=0.01):
            pass
    channel.put("x")
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        assert lease.attempt == 1


# -- one after the other ----------------------------------------------------------------------------


@pytest.mark.parametrize("take", [roles.take_all, roles.take_all_in_a_task])
def test_leases_end_with_the_queue(backend, take):
    channel = filled(backend, range(5))
    channel.end()
    assert backend.run(take, channel).result(DEADLINE_S) == [(number, 1) for number in range(5)]
    assert counts(channel) == (0, 0, 0)


def test_what_a_loop_is_left_with_comes_back(backend):
    channel = filled(backend, range(4))
    for lease in channel.leases():
        if lease.item == 1:
            break
    for lease in channel.leases():
        if lease.item == 2:
            lease.ack()
            break
        assert (lease.item, lease.attempt) == (1, 2)
    assert channel.drain() == [3]


def test_a_loop_keeps_no_lease_that_its_consumer_has_let_go(in_process):
    channel = filled(in_process, range(1))
    loop = iter(channel.leases())
    kept = weakref.ref(next(loop))
    waits = threading.Thread(target=next, args=(loop, None))
    waits.start()
    wait_until(lambda: kept() is None)
    channel.close()
    waits.join()


def test_what_an_asynchronous_loop_is_left_with_comes_back(backend):
    channel = filled(backend, range(3))

    async def take_one():
        leases = aiter(channel.leases())
        async for lease in leases:
            if lease.item == 1:
                break
        await leases.aclose()

    asyncio.run(take_one())
    assert channel.get(timeout_s=DEADLINE_S) == 1


def test_an_item_that_a_loop_fails_at_too_often_is_a_dead_letter(in_process):
    channel = filled(in_process, range(3), max_attempts=2)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            roles.fail_at(channel, 1)
    channel.end()
    assert roles.take_all(channel) == [(2, 1)]
    (letter,) = channel.dead_letters()
    assert (letter.item, letter.reason) == (1, "the loop was left before it was acknowledged")


def test_async_with_waits_and_acknowledges(backend):
    channel = filled(backend, ["x"])

    async def work():
        async with channel.lease(timeout_s=DEADLINE_S) as lease:
            await lease.nack(0.05, async_op=True)
        async with channel.lease(timeout_s=DEADLINE_S) as lease:
            return lease.item, lease.attempt

    assert asyncio.run(work()) == ("x", 2)
    assert counts(channel) == (0, 0, 0)


def test_a_task_that_is_cancelled_gives_back_what_it_has_and_what_it_waits_for(backend):
    channel = filled(backend, ["x"], max_attempts=1)

    async def hold(entered):
        async with channel.lease():
            entered.set()
            await asyncio.get_running_loop().create_future()

    async def cancel_two():
        entered = asyncio.Event()
        tasks = [asyncio.create_task(hold(entered)) for _ in range(2)]
        await asyncio.wait_for(entered.wait(), DEADLINE_S)
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(end) for end in asyncio.run(cancel_two())] == [asyncio.CancelledError] * 2
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        assert (lease.item, lease.attempt) == ("x", 1)


# -- bounds and ends --------------------------------------------------------------------------------


def test_items_on_lease_count_against_the_bound(backend):
    channel = filled(backend, [1, 2], maxsize=2)
    with channel.lease(), pytest.raises(ChannelFull, match="1 on lease"):
        channel.put_nowait(3)
    channel.put_nowait(3)


@pytest.mark.usefixtures("patient")
def test_bytes_on_lease_count_too(backend):
    channel = filled(backend, [np.zeros(LARGE, np.uint8)], max_bytes=3 * LARGE // 2)
    with channel.lease(), pytest.raises(ChannelTimeout):
        channel.put(np.zeros(LARGE, np.uint8), timeout_s=0.05)
    channel.put(np.zeros(LARGE, np.uint8), timeout_s=DEADLINE_S)


@pytest.mark.usefixtures("patient")
def test_a_consumer_has_no_more_than_its_bound(backend):
    channel = filled(backend, range(3), max_leased=1)
    with channel.lease():
        with pytest.raises(ChannelTimeout, match="this consumer has 1 on lease, and may have 1"):
            channel.lease(timeout_s=0.05).__enter__()
        with pytest.raises(ChannelTimeout):
            channel.lease(timeout_s=0).__enter__()
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        assert lease.item == 1


def test_others_are_served_meanwhile(sockets):
    channel = filled(sockets, [0], max_leased=1)
    with channel.lease() as mine:
        channel.end("other")
        task = sockets.run(roles.take_all, channel)
        for number in range(1, 5):
            channel.put(number)
        channel.end()
        mine.ack()
    assert [item for item, _ in task.result(DEADLINE_S)] == [1, 2, 3, 4]


def test_the_end_waits_for_what_is_on_lease(backend):
    channel = filled(backend, ["x"])
    with lease_that_fails(channel):
        channel.end()
        task = backend.run(roles.take_all, channel)
    assert task.result(DEADLINE_S) == [("x", 2)]
    with pytest.raises(ChannelClosed), channel.lease(timeout_s=DEADLINE_S):
        pass


def test_what_comes_back_into_a_closed_channel_is_drained(backend):
    channel = filled(backend, ["x"])
    with lease_that_fails(channel):
        channel.close()
    assert list(channel) == ["x"]


def test_every_item_is_somewhere(backend):
    channel = filled(backend, range(10), max_attempts=1)
    fail_with(channel, ValueError(), max_items=2)
    channel.get_batch(max_items=3)
    with channel.lease(max_items=4) as lease:
        stats = channel.stats()
        assert (stats.num_puts, stats.num_items, stats.num_leased, stats.num_dead) == (10, 1, 4, 2)
        assert stats.num_gets == 7
        assert lease.generation > 0


# -- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"ttl_s": 0}, "ttl_s is a number of seconds of more than 0, not 0"),
        ({"ttl_s": None}, "ttl_s is a number"),
        ({"ttl_s": float("nan")}, "ttl_s is a number"),
        ({"work_deadline_s": -1}, "work_deadline_s is a number"),
        ({"timeout_s": "soon"}, "timeout_s is a number"),
        ({"batch_weight": 0}, "batch_weight is a finite number above 0"),
        ({"max_items": 0}, "max_items is an integer"),
        ({"min_items": 3, "max_items": 2}, "no batch has at least 3 and at most 2 items"),
        ({"batch_weight": 2, "target_weight": 2}, "another name"),
        ({"queue_name": 1.5}, "a queue's name"),
    ],
)
def test_a_lease_that_makes_no_sense_is_refused(in_process, options, problem):
    channel = in_process.create()
    for ask in (channel.lease, channel.leases):
        with pytest.raises(ChannelArgumentError, match=problem):
            ask(**options)


@pytest.mark.parametrize("option", ["max_attempts", "max_leased"])
@pytest.mark.parametrize("number", [0, -1, 1.5, True, "many"])
def test_a_channel_with_a_bound_that_is_no_count_is_refused(in_process, option, number):
    with pytest.raises(ChannelArgumentError, match=f"{option} is an integer of at least 1"):
        Channel.create(in_process.name(), **{option: number})


def test_words_that_make_no_sense_are_refused_and_lose_nothing(in_process):
    channel = filled(in_process, range(3))
    with channel.lease(min_items=3) as lease:
        for only in (3, -1, [0, 7], "x", [True], []):
            with pytest.raises(ChannelArgumentError):
                lease.ack(only=only)
        with pytest.raises(
            ChannelArgumentError, match="delay_s is a number of seconds of at least 0, not -1"
        ):
            lease.nack(-1)
        with pytest.raises(ChannelArgumentError, match="seconds is a number of seconds of more than 0"):
            lease.extend(0)
        assert "3 of 3 items left" in repr(lease)
        assert counts(channel) == (0, 3, 0)


def test_a_lease_is_entered_once(in_process):
    channel = filled(in_process, [1, 2])
    context = channel.lease()
    with context:
        pass
    with pytest.raises(ChannelArgumentError, match="entered once"), context:
        pass
    assert channel.get() == 2


@pytest.mark.usefixtures("patient")
def test_a_batch_that_does_not_come_says_what_was_wanted(backend):
    channel = filled(backend, [1])
    with pytest.raises(BatchTimeout, match="a batch of weight 5 is wanted"):
        channel.lease(batch_weight=5, timeout_s=0.05).__enter__()
    assert channel.get() == 1


# -- groups -----------------------------------------------------------------------------------------


def put_groups(channel):
    for sample in range(2):
        for prompt in ("a", "b"):
            channel.put(f"{prompt}{sample}", group=prompt)


def test_a_group_is_leased_as_a_whole(backend):
    channel = Channel.create(backend.name())
    put_groups(channel)
    with lease_that_fails(channel, group_size=2) as lease:
        assert (lease.items, lease.items.group, lease.items.complete) == (["a0", "a1"], "a", True)
    assert counts(channel) == (4, 0, 0)
    with channel.lease(group_size=2) as lease:
        assert (lease.items.group, lease.attempts) == ("a", [2, 2])
        lease.ack(only=0)
        lease.nack(only=1)
    assert channel.get_group(2).group == "b"
    assert channel.drain() == ["a1"]


def test_what_is_left_of_a_group_at_the_end_is_not_complete(in_process):
    channel = Channel.create(in_process.name())
    channel.put("a0", group="a")
    channel.end()
    with channel.lease(group_size=2) as lease:
        assert (lease.items.group, lease.items.complete) == ("a", False)


@pytest.mark.usefixtures("patient")
def test_a_lease_is_of_a_group_or_of_a_batch(in_process):
    channel = Channel.create(in_process.name())
    with pytest.raises(ChannelArgumentError, match="group_size"):
        channel.lease(group_size=2, batch_weight=3)
    with pytest.raises(BatchTimeout, match="a group of 2 items"), channel.lease(group_size=2, timeout_s=0.01):
        pass


# -- what nobody wants any more ---------------------------------------------------------------------


def test_what_was_acknowledged_before_the_rest_is_released_stays_so(backend):
    channel = filled(backend, ["a", "b"])
    with channel.lease(max_items=2, timeout_s=DEADLINE_S) as lease:
        said = lease.ack(only=0, async_op=True)
        lease.release()
    said.wait(DEADLINE_S)
    assert list(channel.drain()) == ["b"]


def test_what_was_acknowledged_stays_so_where_what_was_asked_before_is_begun_last(in_process):
    channel, held = filled(in_process, ["a", "b"]), threading.Event()
    with channel.lease(max_items=2, timeout_s=DEADLINE_S) as lease:
        # What is said until it goes on travels together; that an item is asked for drops what nobody has any more.
        current_session().messenger.submit(lambda: held.wait(DEADLINE_S))
        asked = channel.get("other", async_op=True)
        said = lease.ack(only=0, async_op=True)
        lease.release()
    held.set()
    said.wait(DEADLINE_S)
    assert not asked.done()
    assert list(channel.drain()) == ["b"]


@pytest.mark.parametrize("is_dead_after", [1, 2])
def test_what_is_released_was_no_attempt(backend, is_dead_after):
    channel = filled(backend, ["a", "b"], max_attempts=is_dead_after)
    for lease in channel.leases():
        lease.release()
        break
    with channel.lease(max_items=2, timeout_s=DEADLINE_S) as lease:
        assert (lease.items, lease.attempts) == (["a", "b"], [1, 1])
        lease.ack(only=0)
        lease.release()
        with pytest.raises(ChannelArgumentError, match="settled before"):
            lease.ack()
    assert channel.get(timeout_s=DEADLINE_S) == "b"
    assert counts(channel) == (0, 0, 0)
