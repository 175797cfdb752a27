import os
import signal
import threading

import pytest

from rlinf_scheduler.comm.loop import MIN_SWEEP, READABLE, IoLoop

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


def test_timers_run_in_the_order_of_their_times(loop):
    seen, done = [], threading.Event()

    def begin():
        running, moment = loop.now, loop.now()
        loop.now = lambda: moment
        loop.call_later(0.06, done.set)
        loop.call_later(0.04, lambda: seen.append("late"))
        loop.call_later(0.02, lambda: seen.append("early"))
        loop.now = running

    run_on(loop, begin)
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
