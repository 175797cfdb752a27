"""Questions and answers: `ask`, `next_request`, on every backend."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import asking_roles as roles
import numpy as np
import pytest

import slow_errors
from nested_tensors import LAYOUTS, nested, parts_of
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.channel.asking import Asking
from rlinf_scheduler.comm import Messenger
from rlinf_scheduler.errors import (
    ChannelArgumentError,
    ChannelClosed,
    ChannelLost,
    ChannelTimeout,
    ChannelUnanswerable,
    CodecError,
    ResultTimeout,
)
from rlinf_scheduler.session import current_session
from slow_errors import SlowError
from waits import wait_until

DEADLINE_S = 60.0


def test_the_answer_comes_back_to_whoever_asked(backend):
    channel = Channel.create(backend.name())
    other = backend.run(roles.double_all, channel)
    assert [channel.ask(number, timeout_s=DEADLINE_S) for number in range(20)] == list(range(0, 40, 2))
    channel.close()
    assert other.result(DEADLINE_S) == 20


def test_a_large_answer_is_an_array_that_can_be_written(backend):
    channel = Channel.create(backend.name())
    other = backend.run(roles.double_all, channel)
    answer = channel.ask(np.ones(1 << 18), timeout_s=DEADLINE_S)
    answer += 1
    assert answer.sum() == 3 * (1 << 18)
    channel.close()
    other.result(DEADLINE_S)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("async_op", [False, True])
def test_nested_tensors_are_items_questions_and_answers(in_process, layout, async_op):
    channel = in_process.create()
    sent = nested(layout)
    put = channel.put(sent, async_op=async_op, timeout_s=DEADLINE_S)
    assert put is None or put.wait() is None
    assert parts_of(channel.get(timeout_s=DEADLINE_S)) == parts_of(sent)
    other = in_process.run(lambda: channel.next_request(timeout_s=DEADLINE_S).answer(lambda item: item))
    assert parts_of(channel.ask(sent, timeout_s=DEADLINE_S)) == parts_of(sent)
    assert other.result(DEADLINE_S)


def test_an_answer_that_cannot_be_sent_gives_its_question_back(in_process, monkeypatch):
    channel = in_process.create()
    asked = channel.ask("question", async_op=True, timeout_s=DEADLINE_S)
    first = channel.next_request(timeout_s=DEADLINE_S)
    with monkeypatch.context() as patch:
        patch.setattr(Messenger, "request", fails)
        first.reply("lost")
        del first
        channel._connection()._messenger.submit(lambda: patch.undo())
        again = in_process.run(lambda: channel.next_request(timeout_s=DEADLINE_S).reply("answer"))
        again.result(DEADLINE_S)
    assert asked.wait(DEADLINE_S) == "answer"


def fails(*_args, **_options):
    raise MemoryError


def test_the_items_of_questions_are_forgotten_when_they_are_answered(backend):
    channel = Channel.create(backend.name())
    other = backend.run(roles.double_all, channel)
    channel.ask(1, timeout_s=DEADLINE_S)
    channel.close()
    other.result(DEADLINE_S)
    stats = channel.stats()
    assert (stats.num_items, stats.num_leased, stats.num_dead) == (0, 0, 0)


def test_the_handle_of_a_request_that_does_not_come_says_what_it_waits_for(backend):
    channel = Channel.create(backend.name())
    handle = channel.next_request("empty", async_op=True)
    told = f"lease on channel '{channel.name}', queue 'empty'"
    assert repr(handle) == f"<AsyncHandle {told}: pending>"
    with pytest.raises(ResultTimeout, match=told):
        handle.wait(0.01)


def test_answers_go_to_their_own_askers_whatever_their_order(backend):
    channel = Channel.create(backend.name())
    handles = [channel.ask(number, async_op=True) for number in range(8)]
    requests = channel.next_requests(8, min_items=8, timeout_s=DEADLINE_S)
    for request in reversed(requests):
        request.reply(request.item * 10)
    assert [handle.wait(DEADLINE_S) for handle in handles] == [number * 10 for number in range(8)]


def test_many_processes_ask_and_many_answer(backend):
    channel = Channel.create(backend.name())
    answering = [backend.run(roles.double_all, channel) for _ in range(2)]
    asking = [backend.run(roles.ask_all, channel, 50 * index, 50) for index in range(3)]
    for index, other in enumerate(asking):
        assert other.result(DEADLINE_S) == [2 * (50 * index + number) for number in range(50)]
    channel.close()
    assert sum(other.result(DEADLINE_S) for other in answering) == 150


def test_a_request_says_who_asked_and_how_often_it_was_given_out(backend):
    channel = Channel.create(backend.name())
    handle = channel.ask("why", async_op=True)
    request = channel.next_request(timeout_s=DEADLINE_S)
    assert (request.item, request.attempt) == ("why", 1)
    assert request.asked_by
    request.reply("so")
    assert handle.wait(DEADLINE_S) == "so"


def test_an_error_is_an_answer_that_the_asker_raises(backend):
    channel = Channel.create(backend.name())
    handle = channel.ask("why", async_op=True)
    channel.next_request(timeout_s=DEADLINE_S).fail(ZeroDivisionError("nobody knows"))
    with pytest.raises(ZeroDivisionError, match="nobody knows"):
        handle.wait(DEADLINE_S)


def test_the_class_of_an_answers_error_is_read_by_who_takes_it(backend):
    channel = Channel.create(backend.name())
    handle = channel.ask("why", async_op=True)
    doubled = handle.then(lambda answer: 2 * answer)
    slow_errors.readings.clear()
    channel.next_request(timeout_s=DEADLINE_S).fail(SlowError("so"))
    with pytest.raises(SlowError, match="so"):
        doubled.wait(DEADLINE_S)

    async def take():
        await handle

    with pytest.raises(SlowError, match="so"):
        asyncio.run(take())
    assert slow_errors.readings
    assert not any(slow_errors.readings)


def test_a_block_that_fails_answers_with_its_exception(backend):
    channel = Channel.create(backend.name())
    handle = channel.ask(0, async_op=True)
    with pytest.raises(ZeroDivisionError), channel.next_request(timeout_s=DEADLINE_S) as request:
        request.reply(1 / request.item)
    with pytest.raises(ZeroDivisionError):
        handle.wait(DEADLINE_S)


def test_an_answer_that_cannot_be_pickled_leaves_the_request_open(backend):
    channel = Channel.create(backend.name())
    handle = channel.ask("why", async_op=True)
    request = channel.next_request(timeout_s=DEADLINE_S)
    with pytest.raises(CodecError):
        request.reply(threading.Lock())
    request.reply("so")
    assert handle.wait(DEADLINE_S) == "so"
    with pytest.raises(ChannelArgumentError, match="answered before"):
        request.reply("again")


def test_a_request_that_is_dropped_is_given_to_the_next_one(backend):
    channel = Channel.create(backend.name())
    handle = channel.ask("why", async_op=True)
    request = channel.next_request(timeout_s=DEADLINE_S)
    del request
    gc.collect()
    request = channel.next_request(timeout_s=DEADLINE_S)
    request.reply("so")
    assert handle.wait(DEADLINE_S) == "so"


def test_an_answerer_that_dies_does_not_end_the_askers_wait(sockets):
    channel, ready = Channel.create(sockets.name()), Channel.create(sockets.name())
    other = sockets.run(roles.take_and_never_answer, channel, ready)
    handle = channel.ask("why", async_op=True)
    assert ready.get(timeout_s=DEADLINE_S) == "why"
    other.kill()
    request = channel.next_request(timeout_s=DEADLINE_S)
    assert request.attempt == 2
    request.reply("so")
    assert handle.wait(DEADLINE_S) == "so"


def test_an_asker_that_dies_does_no_harm_to_whoever_answers(sockets):
    channel = Channel.create(sockets.name())
    other = sockets.run(roles.ask_all, channel, 0, 1)
    request = channel.next_request(timeout_s=DEADLINE_S)
    other.kill()
    request.reply("too late")
    handle = channel.ask("why", async_op=True)
    channel.next_request(timeout_s=DEADLINE_S).reply("so")
    assert handle.wait(DEADLINE_S) == "so"


def test_a_question_that_nobody_can_answer_fails_when_it_is_a_dead_letter(sockets):
    channel = Channel.create(sockets.name(), max_attempts=1)
    ready = Channel.create(sockets.name())
    other = sockets.run(roles.take_and_never_answer, channel, ready)
    handle = channel.ask("why", async_op=True)
    ready.get(timeout_s=DEADLINE_S)
    other.kill()
    with pytest.raises(ChannelUnanswerable, match="given out 1 times"):
        handle.wait(DEADLINE_S)


@pytest.mark.usefixtures("patient")
def test_nobody_answers_in_time(backend):
    channel = Channel.create(backend.name())
    with pytest.raises(ChannelTimeout, match=r"ask not done after \d+\.\d s .*nobody has answered"):
        channel.ask("why", timeout_s=0.05)
    with pytest.raises(ChannelTimeout):
        channel.ask("why", async_op=True, timeout_s=0.05).wait(DEADLINE_S)


def ask_somebody_who_waits(channel, timeout_s):
    """(The handle of a question, the request that it is): somebody waits for it already, so it is taken in time."""
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(channel.next_request, timeout_s=DEADLINE_S)
        wait_until(lambda: channel.stats().num_getters == 1)
        handle = channel.ask("why?", timeout_s=timeout_s, async_op=True)
        return handle, taking.result(DEADLINE_S)


def test_a_late_answer_is_dropped(backend):
    channel = Channel.create(backend.name())
    early, request = ask_somebody_who_waits(channel, 1.0)
    with pytest.raises(ChannelTimeout):
        early.wait(DEADLINE_S)
    handle = channel.ask("late", async_op=True)
    request.reply(request.item)
    request = channel.next_request(timeout_s=DEADLINE_S)
    request.reply(request.item)
    assert handle.wait(DEADLINE_S) == "late"


def test_a_question_to_a_closed_channel_fails_at_once(backend):
    channel = Channel.create(backend.name())
    channel.close()
    with pytest.raises(ChannelClosed):
        channel.ask("why")
    with pytest.raises(ChannelClosed):
        channel.ask("why", async_op=True).wait(DEADLINE_S)


def test_a_channel_that_is_deleted_ends_the_wait_for_answers(backend):
    channel = Channel.create(backend.name())
    handle = channel.ask("why", async_op=True)
    assert channel.qsize() == 1
    channel.delete()
    with pytest.raises(ChannelLost):
        handle.wait(DEADLINE_S)


def test_the_end_of_the_queue_ends_the_loop(backend):
    channel = Channel.create(backend.name())
    handle = channel.ask("why", async_op=True)
    channel.end()
    for request in channel.requests():
        request.reply("so")
    assert handle.wait(DEADLINE_S) == "so"


def test_tasks_ask_and_answer_side_by_side(backend):
    channel = Channel.create(backend.name())

    async def answer():
        async for request in channel.requests():
            request.reply(request.item + 1)

    async def ask():
        answering = asyncio.create_task(answer())
        answers = await asyncio.gather(*(channel.ask(number, async_op=True) for number in range(20)))
        channel.close()
        await answering
        return answers

    assert asyncio.run(ask()) == list(range(1, 21))


def test_what_was_put_is_no_question_and_stays(backend):
    channel = Channel.create(backend.name())
    channel.put("an item")
    with pytest.raises(ChannelArgumentError, match="no question"):
        channel.next_request(timeout_s=DEADLINE_S)
    assert channel.get(timeout_s=DEADLINE_S) == "an item"


def test_a_loop_that_fails_gives_its_request_back_as_an_attempt(backend):
    channel = Channel.create(backend.name(), max_attempts=2)
    handle = channel.ask(0, async_op=True)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            roles.invert_all(channel)
    with pytest.raises(ChannelUnanswerable, match="loop was left"):
        handle.wait(DEADLINE_S)


def test_a_server_answers_with_what_its_function_raises_and_goes_on(backend):
    channel = Channel.create(backend.name())
    bad, good = channel.ask(0, async_op=True), channel.ask(4, async_op=True)
    channel.end()
    outcomes = [request.answer(lambda item: 1 / item) for request in channel.requests()]
    assert outcomes == [False, True]
    with pytest.raises(ZeroDivisionError):
        bad.wait(DEADLINE_S)
    assert good.wait(DEADLINE_S) == 0.25


class Interrupted(Exception):
    """What the signal handler raises."""


@pytest.mark.interrupted
def test_an_interrupted_ask_leaves_nothing_behind(backend):
    channel = Channel.create(backend.name())

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupted):  # noqa: PT012 - on a busy machine it comes before the question
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            channel.ask("early")
    finally:
        signal.signal(signal.SIGALRM, before)
    handle = channel.ask("late", async_op=True)
    for request in channel.requests(timeout_s=DEADLINE_S):
        request.reply(request.item)
        if request.item == "late":  # the other one has left its queue, or is about to
            break
    assert handle.wait(DEADLINE_S) == "late"


def take_plainly(channel):
    yield channel.get
    yield channel.get_nowait
    yield lambda: channel.get(async_op=True).wait(DEADLINE_S)
    yield lambda: channel.get_batch(max_items=2)
    yield lambda: channel.get_batch(max_items=2, async_op=True).wait(DEADLINE_S)
    yield channel.drain
    yield lambda: channel.lease(timeout_s=DEADLINE_S).__enter__()
    yield lambda: next(iter(channel.leases(timeout_s=DEADLINE_S)))
    yield lambda: next(iter(channel))


def test_what_was_asked_stays_where_it_is_for_whoever_would_not_answer(backend):
    channel = Channel.create(backend.name())
    handle = channel.ask("why", async_op=True)
    assert channel.peek() == "why"
    for take in take_plainly(channel):
        with pytest.raises(ChannelArgumentError, match="next_request"):
            take()
    request = channel.next_request(timeout_s=DEADLINE_S)
    assert (request.item, request.attempt) == ("why", 1)
    request.reply("so")
    assert handle.wait(DEADLINE_S) == "so"


def test_a_deadline_that_the_answerer_missed_is_told_as_its_own(backend):
    channel = Channel.create(backend.name())
    answering = backend.run(roles.fail_by_a_deadline, channel)
    with pytest.raises(ResultTimeout, match=r"policy\.act"):
        channel.ask("why", timeout_s=DEADLINE_S)
    answering.result(DEADLINE_S)


def test_questions_that_are_answered_leave_no_timers_behind(in_process, monkeypatch):
    channel = Channel.create(in_process.name())
    scheduled = []
    messenger = current_session().messenger
    call_later = messenger.call_later

    def note(delay_s, callback):
        timer = call_later(delay_s, callback)
        if delay_s == 3600:
            scheduled.append(timer)
        return timer

    monkeypatch.setattr(messenger, "call_later", note)
    handles = [channel.ask(number, async_op=True, timeout_s=3600) for number in range(5)]
    for request in channel.next_requests(5, min_items=5, timeout_s=DEADLINE_S):
        request.reply(request.item)
    assert [handle.wait(DEADLINE_S) for handle in handles] == list(range(5))
    assert scheduled
    wait_until(lambda: all(timer.callback is None for timer in scheduled))


# -- askers that give up ----------------------------------------------------------------------------


def test_a_question_that_was_not_answered_in_time_leaves_its_queue(backend):
    channel = Channel.create(backend.name())
    with pytest.raises(ChannelTimeout):
        channel.ask("why?", timeout_s=0.05)
    handle = channel.ask("why not?", timeout_s=0.05, async_op=True)
    with pytest.raises(ChannelTimeout):
        handle.wait(DEADLINE_S)
    wait_until(lambda: channel.stats().num_items == 0)


def test_a_question_whose_handle_is_dropped_leaves_its_queue_and_no_timer(in_process):
    channel = Channel.create(in_process.name())
    handle = channel.ask("why?", timeout_s=1000.0, async_op=True)
    wait_until(lambda: channel.qsize() == 1)
    asked = current_session().service(Asking)._asked
    (timer,) = [each.timer for each in asked.values()]
    del handle
    gc.collect()
    wait_until(lambda: channel.qsize() == 0)
    assert timer.callback is None
    assert asked == {}


def test_a_question_that_somebody_has_is_answered_though_nobody_waits(in_process):
    channel = Channel.create(in_process.name())
    handle, request = ask_somebody_who_waits(channel, 1.0)
    with pytest.raises(ChannelTimeout):
        handle.wait(DEADLINE_S)
    request.reply("because")
    wait_until(lambda: channel.stats().num_leased == 0)


def test_a_coroutine_waits_for_the_next_request_and_who_gives_up_takes_none(backend):
    channel = Channel.create(backend.name())

    async def serve():
        given_up = asyncio.ensure_future(channel.next_request(async_op=True).async_wait())
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        waiting = channel.next_request(async_op=True, timeout_s=DEADLINE_S)
        handles = [channel.ask(number, async_op=True) for number in range(3)]
        first = await waiting
        second = await channel.next_request(async_op=True, timeout_s=DEADLINE_S)
        assert (first.item, second.item) == (0, 1)
        dropped = channel.next_request(async_op=True)
        del second, dropped
        first.reply("first")
        again = [await channel.next_request(async_op=True, timeout_s=DEADLINE_S) for _ in range(2)]
        for request in again:
            request.reply(request.item)
        return [await handle for handle in handles]

    answers = asyncio.run(serve())
    assert answers == ["first", 1, 2]
    with pytest.raises(ChannelTimeout):
        asyncio.run(channel.next_request(async_op=True, timeout_s=0.01).async_wait())


def test_a_question_that_is_cancelled_leaves_its_queue_though_its_handle_is_kept(in_process):
    channel = in_process.create()
    cancelled, kept = (channel.ask(item, async_op=True) for item in ("cancelled", "kept"))
    assert cancelled.cancel()
    wait_until(lambda: channel.qsize() == 1)
    request = channel.next_request(timeout_s=DEADLINE_S)
    assert request.item == "kept"
    request.reply("so")
    assert kept.wait(DEADLINE_S) == "so"
