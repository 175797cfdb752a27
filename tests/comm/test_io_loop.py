import os
import signal
import threading
import time

import pytest

from rlinf.scheduler.comm.loop import MIN_SWEEP, READABLE, IoLoop

DEADLINE_S = 60.0


@pytest.fixture
def loop():
    loop = IoLoop("test")
    loop.start()
    yield loop
    loop.stop()
    loop.join(DEADLINE_S)


def run_on(loop, function):
    """The function's result, from the loop's thread."""
    results, done = [], threading.Event()
    loop.submit(lambda: (results.append(function()), done.set()))
    assert done.wait(DEADLINE_S)
    return results[0]


def test_submitted_callbacks_run_in_order_on_the_one_thread(loop):
    seen = []
    for number in range(1000):
        loop.submit(lambda number=number: seen.append((number, loop.is_current())))
    run_on(loop, lambda: None)
    assert seen == [(number, True) for number in range(1000)]


def test_what_is_to_run_soon_runs_at_once_on_the_thread_unless_something_waits_before_it(loop):
    def both():
        seen = []
        loop.run_soon(lambda: seen.append("at once"))
        loop.submit(lambda: seen.append("submitted"))
        loop.run_soon(lambda: seen.append("behind it"))
        return seen

    seen = run_on(loop, both)
    run_on(loop, lambda: None)
    assert seen == ["at once", "submitted", "behind it"]


def asleep(loop):
    """Wait until the thread sleeps and has nothing to do."""
    deadline = time.monotonic() + DEADLINE_S
    while not loop._sleeping or loop._ready:
        assert time.monotonic() < deadline
        os.sched_yield()
    return loop._num_sleeps


@pytest.mark.parametrize(("writes", "wake"), [(True, True), (False, False), (False, True)])
def test_the_thread_is_woken_for_what_is_handed_over_unless_that_was_written(loop, writes, wake):
    done = threading.Event()
    asleep(loop)
    loop.hand_over(done.set, lambda: writes, wake=wake)
    assert done.wait(DEADLINE_S)


def test_what_was_written_waits_for_the_next_waking_and_comes_first_then(loop):
    seen, reading_end, writing_end = [], *os.pipe()
    done = threading.Event()
    sleeps = asleep(loop)
    loop.register(
        reading_end, READABLE, lambda _events: (os.read(reading_end, 1), seen.append("read"), done.set())
    )
    loop.hand_over(lambda: seen.append("handed over"), lambda: True, wake=False)
    assert (seen, loop._num_sleeps) == ([], sleeps)
    os.write(writing_end, b"x")
    assert done.wait(DEADLINE_S)
    assert seen == ["handed over", "read"]
    run_on(loop, lambda: loop.unregister(reading_end))
    os.close(reading_end)
    os.close(writing_end)


def test_nobody_writes_what_something_else_stands_before(loop):
    seen = []
    loop.submit(lambda: loop.hand_over(lambda: seen.append("on it"), lambda: seen.append("no"), wake=False))
    run_on(loop, lambda: None)
    asleep(loop)
    loop.hand_over(lambda: seen.append("first"), lambda: True, wake=False)
    loop.hand_over(lambda: seen.append("second"), lambda: seen.append("no"), wake=False)
    run_on(loop, lambda: None)
    assert seen == ["on it", "first", "second"]


def test_what_was_handed_over_is_done_though_its_thread_was_interrupted_while_it_wrote(loop):
    done = threading.Event()
    asleep(loop)
    with pytest.raises(KeyboardInterrupt):
        loop.hand_over(done.set, lambda: signal.raise_signal(signal.SIGINT), wake=False)
    assert done.wait(DEADLINE_S)


def test_timers_run_in_the_order_of_their_times(loop):
    seen, done = [], threading.Event()
    loop.call_later(0.06, done.set)
    loop.call_later(0.04, lambda: seen.append("late"))
    loop.call_later(0.02, lambda: seen.append("early"))
    assert done.wait(DEADLINE_S)
    assert seen == ["early", "late"]


def test_what_many_ask_for_at_a_tick_runs_at_one_moment(loop):
    done = threading.Event()
    loop.call_at_tick(0.01, done.set)
    assert done.wait(DEADLINE_S)
    timers = [loop.call_at_tick(3600.0, lambda: None) for _ in range(100)]
    moments = run_on(loop, lambda: {when for when, _, timer in loop._timers if timer in timers})
    assert len(moments) <= 2  # an hour may have ended meanwhile


def test_a_timer_of_thirty_days_does_not_end_the_thread(loop):
    for days in (30, 36_500):
        loop.call_later(days * 86_400, lambda: None)
        assert run_on(loop, lambda: "alive") == "alive"
    assert run_on(loop, lambda: loop._until_next_timer() * 1000 < 2**31)


def test_a_cancelled_timer_does_not_run_and_does_not_pile_up(loop):
    seen = []
    for _ in range(10 * MIN_SWEEP):
        timer = loop.call_later(DEADLINE_S, lambda: seen.append(1))
        timer.cancel()
        timer.cancel()
    assert run_on(loop, lambda: len(loop._timers)) <= MIN_SWEEP
    run_on(loop, lambda: loop.call_later(0, lambda: seen.append(2)).cancel())
    run_on(loop, lambda: None)
    assert seen == []


def test_living_timers_among_many_cancelled_ones_still_run(loop):
    seen, done = [], threading.Event()

    def crowd():
        for number in range(5 * MIN_SWEEP):
            timer = loop.call_later(0.01, lambda number=number: seen.append(number))
            if number % 2:
                timer.cancel()
        loop.call_later(0.02, done.set)

    run_on(loop, crowd)
    assert done.wait(DEADLINE_S)
    assert seen == list(range(0, 5 * MIN_SWEEP, 2))


def test_a_ready_descriptor_calls_its_handler(loop):
    fd = os.eventfd(0)
    try:
        ready = threading.Event()

        def on_ready(_events):
            os.eventfd_read(fd)
            ready.set()

        loop.register(fd, READABLE, on_ready)
        os.eventfd_write(fd, 1)
        assert ready.wait(DEADLINE_S)
        run_on(loop, lambda: loop.unregister(fd))
    finally:
        os.close(fd)


def test_what_became_ready_is_not_told_to_what_has_its_number_by_now(loop):
    told, done, fd, other = [], threading.Event(), os.eventfd(0), os.eventfd(0)
    loop.register(fd, READABLE, lambda _events: told.append("before"))

    def reuse():
        loop.unregister(fd)
        os.dup2(other, fd)
        loop.register(fd, READABLE, lambda _events: told.append("now"))
        done.set()

    asleep(loop)
    loop._ready.append(reuse)  # as of a thread that has not come to waking it yet
    os.eventfd_write(fd, 1)
    assert done.wait(DEADLINE_S)
    run_on(loop, lambda: loop.unregister(fd))
    os.close(fd)
    os.close(other)
    assert told == []


def test_a_failing_callback_is_reported_and_the_thread_goes_on(loop, caplog):
    loop.submit(lambda: 1 / 0)
    loop.call_later(0, lambda: 1 / 0)
    assert run_on(loop, lambda: "alive") == "alive"
    assert "a callback on the I/O thread failed" in caplog.text


class Interrupted(Exception):
    """What the signal handler raises."""


@pytest.mark.interrupted
def test_whoever_is_interrupted_while_it_submits_loses_nobody_elses_wake_up(loop):
    def interrupt(_number, _frame):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    interruptions, main = 0, threading.main_thread().ident
    try:
        for _ in range(200):
            thread = threading.Thread(target=signal.pthread_kill, args=(main, signal.SIGUSR1))
            try:
                thread.start()
                # Bounded: an exception of a handler may be lost, in a destructor for example.
                for _ in range(2000):
                    loop.submit(lambda: None)
                thread.join(DEADLINE_S)  # on a busy machine the signal comes late
            except Interrupted:
                interruptions += 1
            thread.join(DEADLINE_S)
            assert run_on(loop, lambda: "awake") == "awake"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert interruptions >= 50


def test_a_thread_that_ends_unexpectedly_says_so_and_runs_its_last_acts(caplog):
    failures, ended = [], threading.Event()
    loop = IoLoop("doomed", lambda error: (failures.append(error), ended.set()))
    last = threading.Event()
    loop.at_end(last.set)
    loop.start()

    def exit_the_thread():
        raise SystemExit("as a library may")

    loop.submit(exit_the_thread)
    assert ended.wait(DEADLINE_S)
    assert last.is_set()
    assert isinstance(failures[0], SystemExit)
    assert "the I/O thread 'doomed' ended" in caplog.text
    assert caplog.records[-1].levelname == "CRITICAL"
    # Whatever comes now is run by whoever brings it.
    seen = []
    loop.submit(lambda: seen.append(threading.get_ident()))
    assert seen == [threading.get_ident()]
