"""A flag that is set once and waited for by any thread."""

import threading

from rlinf.scheduler.worker.flag import Flag


def test_every_waiting_thread_is_woken():
    flag = Flag()
    results = []
    threads = [threading.Thread(target=lambda: results.append(flag.wait(20))) for _ in range(8)]
    for thread in threads:
        thread.start()
    flag.set()
    for thread in threads:
        thread.join(20)
    assert results == [True] * 8


def test_waits_that_end_early_leave_nothing_behind():
    flag = Flag()
    for _ in range(100):
        assert not flag.wait(0.0)
    assert not flag._waiters


def test_a_callback_runs_once_whether_it_comes_before_or_after():
    flag = Flag()
    called = []
    flag.when_set(lambda: called.append("before"))
    forgotten = lambda: called.append("forgotten")  # noqa: E731
    flag.when_set(forgotten)
    assert flag.forget(forgotten)
    assert not flag.forget(forgotten)
    flag.set()
    flag.when_set(lambda: called.append("after"))
    assert called == ["before", "after"]


def test_a_timeout_of_any_length_is_accepted():
    flag = Flag()
    threading.Timer(0.01, flag.set).start()
    assert flag.wait(1e20)
    assert Flag().wait(-1) is False
