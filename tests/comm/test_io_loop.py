import os
import threading

import pytest

from rlinf.scheduler.comm.loop import MAX_CANCELLED, READABLE, IoLoop

DEADLINE_S = 20.0


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


def test_timers_run_in_the_order_of_their_times(loop):
    seen, done = [], threading.Event()
    loop.call_later(0.06, done.set)
    loop.call_later(0.04, lambda: seen.append("late"))
    loop.call_later(0.02, lambda: seen.append("early"))
    assert done.wait(DEADLINE_S)
    assert seen == ["early", "late"]


def test_a_cancelled_timer_does_not_run_and_does_not_pile_up(loop):
    seen = []
    timers = [loop.call_later(DEADLINE_S, lambda: seen.append(1)) for _ in range(10 * MAX_CANCELLED)]
    for timer in timers:
        timer.cancel()
        timer.cancel()
    assert run_on(loop, lambda: len(loop._timers)) <= 2 * MAX_CANCELLED + 2
    run_on(loop, lambda: loop.call_later(0, lambda: seen.append(2)).cancel())
    run_on(loop, lambda: None)
    assert seen == []


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
