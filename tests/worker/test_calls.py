"""Calls on ranks, without Ray: how arguments and results travel, and what interruptions and deaths leave behind."""

import asyncio
import contextlib
import multiprocessing
import random
import signal
import threading

import numpy as np
import pytest

from call_peers import (
    DEADLINE_S,
    MIB,
    Caller,
    Rank,
    Receptions,
    call_and_stay,
    leave_a_place_open,
    living,
    serve_calls,
)
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.errors import ResultTimeout, WorkerDied, WorkerError
from waits import wait_until


@pytest.fixture
def new_rank(new_messenger):
    with contextlib.ExitStack() as stack:
        numbers = iter(range(100))

        def make():
            rank = Rank(new_messenger(f"calc:{next(numbers)}"))
            stack.callback(rank.close)
            return rank

        yield make


@pytest.fixture
def rank(new_rank):
    return new_rank()


@pytest.fixture
def ranks(new_rank):
    return [new_rank() for _ in range(3)]


@pytest.fixture
def new_caller(new_messenger):
    return lambda *ranks: Caller(new_messenger("driver"), [rank.messenger.endpoint for rank in ranks])


@pytest.fixture
def start(secret):
    """Starts a process of `call_peers`; gives it, its pipe and what it said first."""
    context = multiprocessing.get_context("forkserver")
    with contextlib.ExitStack() as stack:

        def run(function, *args):
            ours, theirs = context.Pipe()
            process = context.Process(target=function, args=(theirs, secret, *args), daemon=True)
            process.start()
            theirs.close()
            stack.callback(ours.close)
            stack.callback(process.join, DEADLINE_S)
            stack.callback(process.kill)
            assert ours.poll(DEADLINE_S)
            return process, ours, ours.recv()

        yield run


def big(value):
    return np.full(MIB, value, np.uint8)


def test_large_arguments_and_results_do_not_travel_through_the_socket(rank, new_caller):
    caller = new_caller(rank)
    here, there = Receptions(caller.messenger), Receptions(rank.messenger)
    (result,) = caller("double_in_place", big(2)).wait(DEADLINE_S)
    assert (result == 4).all()
    assert max(here.sizes + there.sizes) < 1024


def test_small_arguments_and_results_travel_in_the_message(rank, new_caller):
    caller = new_caller(rank)
    here, there = Receptions(caller.messenger), Receptions(rank.messenger)
    (result,) = caller("double_in_place", np.ones(1024, np.uint8)).wait(DEADLINE_S)
    assert (result == 2).all()
    assert min(here.sizes + there.sizes) > 1024


def test_arguments_for_several_ranks_are_written_once_and_each_rank_may_change_its_own(ranks, new_caller):
    caller = new_caller(*ranks)
    before = living(Payload)
    argument = big(3)
    call = caller("hold", argument)
    for rank in ranks:
        assert rank.worker.inside.wait(DEADLINE_S)
    assert len(living(Payload)) == len(before) + 1
    for rank in ranks:
        rank.worker.gate.set()
    call.wait(DEADLINE_S)
    results = caller("double_in_place", argument).wait(DEADLINE_S)
    assert [int(result.sum()) for result in results] == [6 * MIB] * 3
    assert (argument == 3).all()


@pytest.mark.parametrize("size", [1 << 10, 40 << 10, 1 << 20])
def test_arguments_are_those_of_the_moment_of_the_call(rank, new_caller, size):
    caller = new_caller(rank)
    held = caller("hold", 0)
    # The call is sent after the argument was changed.
    sent = threading.Event()
    caller.messenger.submit(lambda: sent.wait(DEADLINE_S))
    argument = np.ones(size, np.uint8)
    call = caller("double_in_place", argument)
    argument[:] = 9
    sent.set()
    rank.worker.gate.set()
    assert held.wait(DEADLINE_S) == [0]
    assert (call.wait(DEADLINE_S)[0] == 2).all()


def test_what_a_rank_keeps_of_its_arguments_stays_and_nothing_else_does(rank, new_caller):
    before = living(Payload)
    caller = new_caller(rank)
    caller("keep", big(7)).wait(DEADLINE_S)
    for value in range(50):
        caller("note", big(value)).wait(DEADLINE_S)
    assert (rank.worker.kept == 7).all()
    wait_until(lambda: len(living(Payload)) == len(before))


def test_an_idle_rank_keeps_nothing_of_its_last_call(rank, new_caller):
    before = living(ReceivedPayload)
    caller = new_caller(rank)
    caller("double_in_place", big(1)).wait(DEADLINE_S)
    wait_until(lambda: len(living(ReceivedPayload)) == len(before))


def test_a_rank_that_cannot_read_its_arguments_gets_bytes_and_keeps_the_order_of_calls(rank, new_caller):
    caller = new_caller(rank)
    there = Receptions(rank.messenger)
    there.unreadable = 1
    calls = [caller("note", big(1)), caller("note", 2), caller("note", 3)]
    (result,), *_ = [call.wait(DEADLINE_S) for call in calls]
    assert (result == 1).all()
    assert rank.worker.heard[-3:] == [1, 2, 3]
    assert max(there.sizes) > MIB


def test_a_caller_that_cannot_read_a_result_gets_bytes_and_the_method_runs_once(rank, new_caller):
    before = living(Payload)
    caller = new_caller(rank)
    here = Receptions(caller.messenger)
    here.unreadable = 1
    (result,) = caller("note", big(5)).wait(DEADLINE_S)
    assert (result == 5).all()
    assert rank.worker.heard.count(5) == 1
    assert max(here.sizes) > MIB
    wait_until(lambda: len(living(Payload)) == len(before))


def test_a_call_whose_arguments_never_come_holds_nobody_up_after_its_caller_is_dead(rank, new_caller, start):
    there = Receptions(rank.messenger)
    there.unreadable = 1
    process, _, refused = start(leave_a_place_open, rank.messenger.endpoint)
    assert refused
    caller_waits = threading.Thread(target=lambda: process.join(DEADLINE_S))
    caller_waits.start()
    process.kill()
    caller_waits.join(DEADLINE_S)
    assert new_caller(rank)("note", 4).wait(DEADLINE_S) == [4]


@pytest.mark.parametrize("method", ["hold", "note"])
def test_a_caller_that_is_killed_leaves_nothing_in_its_ranks(rank, new_caller, start, method):
    before = living(Payload)
    process, _, _ = start(call_and_stay, rank.messenger.endpoint, method)
    if method == "hold":
        assert rank.worker.inside.wait(DEADLINE_S)
    process.kill()
    process.join(DEADLINE_S)
    rank.worker.gate.set()
    assert new_caller(rank)("note", 4).wait(DEADLINE_S) == [4]
    wait_until(lambda: len(living(Payload)) == len(before))


def test_a_rank_that_is_killed_fails_the_call_and_leaves_nothing_with_its_caller(new_messenger, start):
    before = living(Payload)
    process, _, endpoint = start(serve_calls)
    caller = Caller(new_messenger("driver"), [endpoint])
    call = caller("hold", big(1))
    queued = caller("note", big(2))
    process.kill()
    for result in (call, queued):
        with pytest.raises(WorkerDied, match="it is gone"):
            result.wait(DEADLINE_S)
    wait_until(lambda: len(living(Payload)) == len(before))


def test_a_result_outlives_its_rank(new_messenger, start):
    process, _, endpoint = start(serve_calls)
    caller = Caller(new_messenger("driver"), [endpoint])
    call = caller("make", 6)
    wait_until(call.done)
    process.kill()
    process.join(DEADLINE_S)
    assert (call.wait(DEADLINE_S)[0] == 6).all()


def test_a_result_is_loaded_once_and_waited_for_as_often_as_one_likes(rank, new_caller):
    call = new_caller(rank)("make", 6)
    assert call.wait(DEADLINE_S)[0] is call.wait(DEADLINE_S)[0]
    with pytest.raises(WorkerError, match="no such thing"):
        new_caller(rank)("fail").wait(DEADLINE_S)


def test_a_result_can_be_awaited_under_both_names_and_an_await_that_is_cancelled_leaves_nothing(
    rank, new_caller
):
    caller = new_caller(rank)

    async def run():
        call = caller("hold", 1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(call.async_wait(), 0.01)
        assert not call._call.settled._callbacks
        rank.worker.gate.set()
        return await call.async_wait(), await call, await caller("note", 2)

    assert asyncio.run(run()) == ([1], [1], [2])


def test_a_wait_that_ran_out_of_time_can_be_made_again(rank, new_caller):
    call = new_caller(rank)("hold", 1)
    with pytest.raises(ResultTimeout, match="calc:0"):
        call.wait(0.01)
    rank.worker.gate.set()
    assert call.wait(DEADLINE_S) == [1]


class Interrupted(Exception):
    pass


@pytest.fixture
def alarm():
    """Raises in the main thread, a while after it is set."""

    def interrupt(_signal, _frame):
        raise Interrupted

    former = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


@pytest.mark.interrupted
def test_an_interruption_anywhere_loses_no_result_and_calls_all_ranks_or_none(ranks, new_caller, alarm):
    before = living(Payload)
    caller = new_caller(*ranks)
    chance = random.Random(8)
    num_interrupted = 0
    for value in range(300):
        call, results = None, None
        argument = big(value % 200) if value % 3 == 0 else value % 200
        try:
            alarm(chance.uniform(1e-5, 2e-3))
            call = caller("note", argument)
            results = call.wait(DEADLINE_S)
            alarm(0)
        except Interrupted:
            num_interrupted += 1
        if call is not None:
            results = call.wait(DEADLINE_S)
            assert [int(np.max(result)) for result in results] == [value % 200] * 3
    assert num_interrupted > 30
    caller("note", 201).wait(DEADLINE_S)
    heard = [rank.worker.heard for rank in ranks]
    assert heard[0] == heard[1] == heard[2]
    del call, results
    wait_until(lambda: len(living(Payload)) == len(before))


@pytest.mark.interrupted
def test_a_signal_handler_that_calls_the_group_ends_and_so_does_what_it_interrupted(rank, new_caller):
    caller = new_caller(rank)
    answers = []
    former = signal.signal(signal.SIGALRM, lambda *_: answers.append(caller("note", 1).wait(DEADLINE_S)))
    try:
        chance = random.Random(3)
        for _ in range(200):
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 5e-4))
            assert caller("note", 2).wait(DEADLINE_S) == [2]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert len(answers) > 20
    assert all(answer == [1] for answer in answers)
