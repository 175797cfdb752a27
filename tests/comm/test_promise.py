import asyncio
import concurrent.futures
import signal
import threading
from itertools import count

import pytest

from alarms import traced_by
from rlinf_scheduler.comm import AsyncHandle
from rlinf_scheduler.comm.promise import Promise

DEADLINE_S = 60.0


def test_a_result_wakes_every_waiter():
    promise, results = Promise(), []
    threads = [threading.Thread(target=lambda: results.append(promise.result(DEADLINE_S))) for _ in range(5)]
    for thread in threads:
        thread.start()
    promise.set_result("here")
    for thread in threads:
        thread.join(DEADLINE_S)
    assert results == ["here"] * 5


def test_the_first_outcome_stays():
    promise = Promise()
    promise.set_result(1)
    promise.set_exception(ValueError("late"))
    assert not promise.cancel()
    assert promise.result(0) == 1
    assert promise.exception(0) is None


def test_a_failure_is_raised_and_a_deadline_is_a_timeout():
    promise = Promise()
    with pytest.raises(concurrent.futures.TimeoutError):
        promise.result(0.001)
    promise.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        promise.result(0)


def test_cancelling_says_so_to_waiters_and_once_to_its_owner():
    told = []
    promise = Promise(lambda: told.append(1))
    assert promise.cancel()
    assert promise.cancel()
    assert told == [1]
    with pytest.raises(concurrent.futures.CancelledError):
        promise.result(0)
    promise.set_result("late")
    assert promise.cancelled()


def test_callbacks_run_once_each_before_and_after_the_end():
    promise, seen = Promise(), []
    promise.add_done_callback(lambda _: seen.append("before"))
    promise.add_done_callback(lambda _: 1 / 0)
    promise.set_result(None)
    promise.add_done_callback(lambda _: seen.append("after"))
    assert seen == ["before", "after"]


def step_in(act, other):
    """Do something, and another thing at each of its steps in turn; what both were done on, each time."""
    number = 0
    while True:
        promise, told, num_steps = Promise(), [], count()

        def trace(frame, event, _arg, promise=promise, told=told, num_steps=num_steps, number=number):
            frame.f_trace_opcodes = "comm/promise.py" in frame.f_code.co_filename
            if event == "opcode" and next(num_steps) == number:
                other(promise, told)
            return trace

        with traced_by(trace):
            act(promise, told)
        if next(num_steps) <= number:  # it was over before
            return
        yield promise, told
        number += 1


def add_callback(promise, told):
    promise.add_done_callback(lambda done: told.append(done.result(0)))


@pytest.mark.parametrize("act", [add_callback, lambda promise, _: promise.set_result("here")])
@pytest.mark.parametrize("other", [add_callback, lambda promise, _: promise.set_result("here")])
def test_who_comes_to_it_at_whatever_step_is_told_once(act, other):
    num_steps = 0
    for promise, told in step_in(act, other):
        num_steps += 1
        promise.set_result("here")
        assert told == ["here"] * [act, other].count(add_callback), f"step {num_steps}"
    assert num_steps > 20


def test_it_can_be_awaited():
    async def main():
        promise = Promise()
        threading.Timer(0.01, promise.set_result, ["there"]).start()
        return await AsyncHandle(promise)

    assert asyncio.run(main()) == "there"


@pytest.mark.interrupted
def test_a_signal_handler_that_asks_it_while_it_is_waited_for_holds_up_nobody():
    promise, asked = Promise(), []

    def ask(_number, _frame):
        promise.add_done_callback(lambda _: asked.append("callback"))
        # What completes it comes from another thread, which must not be held up by the waiter.
        completer = threading.Thread(target=promise.set_result, args=["done"])
        completer.start()
        asked.append(promise.result(DEADLINE_S))
        completer.join(DEADLINE_S)

    before = signal.signal(signal.SIGUSR1, ask)
    try:
        main = threading.main_thread().ident
        threading.Timer(0.02, signal.pthread_kill, [main, signal.SIGUSR1]).start()
        assert promise.result(DEADLINE_S) == "done"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sorted(asked) == ["callback", "done"]
