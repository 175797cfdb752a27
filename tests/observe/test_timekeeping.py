"""What is counted of calls, phases and waits, and what is kept as spans."""

import asyncio
import signal
import threading
import time

import msgspec
import numpy as np
import pytest

from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.waits import CHANNEL, IDLE, MESSAGE, OTHER, RESULT, WEIGHTS, Wait, awaited, cause_of
from rlinf_scheduler.host.timing import Stopwatch, recording
from rlinf_scheduler.observe import timekeeping
from rlinf_scheduler.observe.timekeeping import (
    CALL,
    MAX_SUMS,
    NUM_RECENT,
    OTHERS,
    PUT,
    TIMES,
    WAIT,
    Cause,
    Site,
)
from waits import wait_until

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def times():
    TIMES.clear()
    yield TIMES
    TIMES.clear()


def complete_when_waited_for(promise, by):
    def complete():
        wait_until(lambda: promise._gates or promise._callbacks)
        promise.by = by
        promise.set_result("done")

    threading.Thread(target=complete, daemon=True).start()


class Request(Promise):
    def cause(self):
        return Cause(RESULT, ("rollout.generate",))


def test_a_wait_is_counted_by_what_it_was_for_and_who_ended_it(times):
    promise = Request()
    complete_when_waited_for(promise, "rollout:1")
    assert AsyncHandle(promise).wait(DEADLINE_S) == "done"
    (key, (count, seconds)), *more = times.waits.items()
    assert key == (Site(), Cause(RESULT, ("rollout.generate",)), "rollout:1")
    assert (count, more) == (1, [])
    (span,) = times.recent
    assert (span.kind, span.name, span.by, span.thread) == (
        WAIT,
        "rollout.generate()",
        "rollout:1",
        threading.get_ident(),
    )
    assert span.ended - span.began == pytest.approx(seconds)


def test_waits_at_a_channel_that_is_no_more_make_room_where_there_are_many(times, monkeypatch):
    for subject in ("short", "short", "kept"):
        times.note_wait(time.monotonic(), Cause(CHANNEL, "get", subject), "rollout:0")
    times.note_wait(time.monotonic(), Cause(WEIGHTS, "fetch_weights", "short"), "actor:0")
    times.count_as_others("short")
    assert len(times.waits) == 3
    monkeypatch.setattr(timekeeping, "MAX_SUMS", 6)
    times.count_as_others("short")
    assert {cause.operation: spent[0] for (_, cause, _), spent in times.waits.items()} == {
        "others": 2,
        "get('kept')": 1,
        "fetch_weights('short')": 1,
    }


def test_what_is_done_already_is_no_wait(times):
    assert AsyncHandle.completed(1).wait() == 1
    assert times.waits == {}


def test_a_wait_in_a_task_is_counted_likewise(times):
    async def wait():
        promise = Request()
        complete_when_waited_for(promise, "rollout:0")
        return await AsyncHandle(promise)

    assert asyncio.run(wait()) == "done"
    assert [key[1:] for key in times.waits] == [(Cause(RESULT, ("rollout.generate",)), "rollout:0")]


def test_a_wait_that_says_nothing_is_counted_under_the_function_it_is_in(times):
    def stand_here(promise):
        promise.wait(0.01)

    stand_here(Promise())
    ((_, cause, by),) = times.waits
    assert cause.kind == OTHER
    assert cause.operation.endswith("stand_here")
    assert by == ""


def test_an_idle_wait_is_none(times):
    @awaited(lambda _local: Wait(IDLE, "a call"))
    def stand_here(promise):
        promise.wait(0.01)

    stand_here(Promise())
    assert times.waits == {}


def test_a_describer_that_fails_costs_nothing_but_its_words(times):
    @awaited(lambda local: local["not there yet"])
    def stand_here(promise):
        promise.wait(0.01)

    stand_here(Promise())
    assert len(times.waits) == 1


@pytest.mark.interrupted
def test_a_signal_handler_that_raises_is_heard_while_a_wait_is_described(times):
    def on_alarm(_number, _frame):
        raise TimeoutError("the user's alarm")

    @awaited(lambda _local: signal.raise_signal(signal.SIGUSR1))
    def stand_here(promise):
        promise.wait(0.01)

    before = signal.signal(signal.SIGUSR1, on_alarm)
    try:
        with pytest.raises(TimeoutError, match="alarm"):
            stand_here(Promise())
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("wait", "by"),
    [
        (Wait(CHANNEL, "get('tasks', 'q7')", peers=("driver",), subject="tasks", detail="get"), ""),
        (Wait(RESULT, "a.f()", peers=("a:0",)), "a:0"),
    ],
)
def test_who_holds_a_channel_is_not_who_ended_a_wait_there(times, wait, by):
    @awaited(lambda _local: wait)
    def stand_here(promise):
        promise.wait(0.01)

    stand_here(Promise())
    assert [key[1:] for key in times.waits] == [(cause_of(wait), by)]


def test_causes_leave_out_what_differs_from_one_wait_to_the_next():
    channel = Wait(CHANNEL, "get_batch('tasks', 'step 812', 4096)", subject="tasks", detail="get_batch")
    assert cause_of(channel) == (CHANNEL, "get_batch", "tasks")
    assert cause_of(channel).operation == "get_batch('tasks')"
    weights = Wait(WEIGHTS, "fetch_weights('policy', min_version=7)", subject="policy")
    assert cause_of(weights).operation == "fetch_weights('policy')"
    assert Cause(MESSAGE, ("send", "a:0", "a:1")).operation == "send('a:0', 'a:1')"


def test_phases_are_counted_where_they_are_with_what_is_waited_in_them(times):
    with recording({}, "train", "driver"), Stopwatch("learn"):
        with Stopwatch("forward"):
            Promise().wait(0.01)
        with Stopwatch("learn"):  # of itself
            pass
    assert set(times.phases) == {Site("train", "learn"), Site("train", "learn/forward")}
    assert times.phases[Site("train", "learn")][0] == 2
    ((site, *_),) = times.waits
    assert site == Site("train", "learn/forward")
    assert times.calls["train"][0] == 1
    assert times.calls["train"][1] >= times.phases[Site("train", "learn/forward")][1]


def test_a_call_is_a_span_with_its_caller(times):
    with recording({}, "train", "driver"):
        Promise().wait(0.01)
    call = times.recent[-1]
    assert (call.kind, call.name, call.by) == (CALL, "train", "driver")
    assert times.since == pytest.approx(call.began)


def test_tasks_of_a_call_are_in_it(times):
    async def part():
        with Stopwatch("score"):
            pass

    async def both():
        await asyncio.gather(part(), part())

    with recording({}, "judge", "driver"):
        asyncio.run(both())
    assert times.phases[Site("judge", "score")][0] == 2


def test_a_timer_may_be_left_in_another_context(times):
    def generate():
        with Stopwatch("values"):
            yield 1

    import contextvars

    values = generate()
    assert contextvars.copy_context().run(next, values) == 1
    assert list(values) == []
    assert times.phases[Site("", "values")][0] == 1


def test_what_is_short_is_counted_and_not_kept(times):
    for _ in range(100):
        times.note_wait(time.monotonic(), Cause(CHANNEL, "put", "tasks"), "")
    ((count, seconds),) = times.waits.values()
    assert count == 100
    assert seconds >= 0
    assert len(times.recent) < 100  # but for one, perhaps, in which the thread was made to wait


def test_memory_is_bounded(times):
    for number in range(MAX_SUMS + 10):
        times.note_wait(time.monotonic(), Cause(OTHER, f"step {number}"), "")
    assert len(times.waits) == MAX_SUMS + 1
    assert times.waits[Site(), Cause(OTHER, OTHERS), ""][0] == 10
    long_ago = time.monotonic() - 1
    for _ in range(NUM_RECENT + 10):
        times.note_phase(Site("f", "g"), long_ago, long_ago + 0.5)
    assert len(times.recent) == NUM_RECENT


def test_every_span_goes_to_the_span_file_while_there_is_one(times, monkeypatch):
    monkeypatch.setattr(timekeeping, "SHORT_S", DEADLINE_S)  # this thread may be held up
    spooled = []
    times.trace(spooled.append)
    times.note_wait(time.monotonic(), Cause(OTHER, "a moment"), "")
    times.note_moved(PUT, time.monotonic(), "put", "tasks", (("env:0", 3),))
    times.trace(None)
    times.note_wait(time.monotonic(), Cause(OTHER, "a moment"), "")
    times.note_moved(PUT, time.monotonic(), "put", "tasks", (("env:0", 4),))
    assert [(span.kind, span.items) for span in spooled] == [(WAIT, ()), (PUT, (("env:0", 3),))]
    # What took no while is no part of the report, traced or not.
    assert not times.recent


@pytest.mark.parametrize(("name", "counted"), [("\ud800", "\\ud800"), (3, "3"), (np.str_("learn"), "learn")])
def test_a_timer_of_any_name_can_be_told_of(times, name, counted):
    durations = {}
    with recording(durations, "train", "driver"), Stopwatch(name):
        pass
    assert list(times.phases) == [Site("train", counted)]
    assert list(durations) == [counted]
    msgspec.msgpack.encode(list(times.phases))


class Known(Promise):
    """It is known what it is counted as; putting a wait for it in words costs more than all the rest."""

    def cause(self):
        return Unworded(CHANNEL, "get", "tasks")

    def awaits(self):
        raise AssertionError("nobody asked what is waited for")


class Unworded(Cause):
    @property
    def operation(self):
        raise AssertionError("nobody asked for words")


@pytest.mark.parametrize("in_a_task", [False, True])
def test_a_wait_whose_cause_is_known_is_counted_without_words(times, in_a_task):
    promise = Known()
    times.short_s = DEADLINE_S
    complete_when_waited_for(promise, "rollout:0")
    handle = AsyncHandle(promise)
    assert (asyncio.run(handle.async_wait()) if in_a_task else handle.wait()) == "done"
    assert [key[1:] for key in times.waits] == [(promise.cause(), "rollout:0")]
