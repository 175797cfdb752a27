"""Waiting for several results."""

import asyncio
import threading

import pytest

from local_group import DEADLINE_S
from rlinf.scheduler import Worker, as_completed, wait_all, wait_first
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import CallCancelled, ResultTimeout, WorkerError
from rlinf_scheduler.observe.timekeeping import TIMES
from waits import wait_until


class Stage(Worker):
    def __init__(self):
        super().__init__()
        self.gate = threading.Event()

    def hold(self):
        self.gate.wait(DEADLINE_S)
        return "held"

    def wait_for_the_other(self):
        return self.recv("actor", 0)

    def give(self, value):
        return value

    def fail(self):
        raise LookupError("no data")


@pytest.fixture
def groups(job):
    rollout, actor = job.launch(Stage, 1, name="rollout"), job.launch(Stage, 1, name="actor")
    yield rollout, actor
    for group in (rollout, actor):
        group.workers[0].gate.set()


def test_a_wait_for_several_ranks_that_ends_at_its_deadline_is_put_down_to_the_one_that_is_missing(job):
    group = job.launch(Stage, 3, name="put-down")
    for number in (0, 2):
        group.workers[number].gate.set()
    held = group.hold()
    wait_until(lambda: repr(held).endswith("2 of 3 ranks have answered>"))
    with pytest.raises(ResultTimeout):
        held.wait(0.01)
    group.workers[1].gate.set()
    assert {by for _, cause, by in TIMES.waits if "put-down" in cause.operation} == {"put-down:1"}
    assert held.wait(DEADLINE_S) == ["held"] * 3


def test_wait_all_gives_results_in_the_order_of_its_arguments(groups):
    rollout, actor = groups
    held, given = rollout.hold(), actor.give(2)
    given.wait(DEADLINE_S)
    rollout.workers[0].gate.set()
    assert wait_all([held, given], timeout_s=DEADLINE_S) == [["held"], [2]]


def test_a_failure_ends_the_wait_for_all_others_at_once(groups):
    rollout, actor = groups
    held = rollout.hold()
    with pytest.raises(WorkerError, match="no data"):
        wait_all([held, actor.fail()], timeout_s=DEADLINE_S)
    assert not held.done()


def test_without_fail_fast_all_are_waited_for_first(groups):
    rollout, actor = groups
    held = rollout.hold()
    threading.Timer(0.05, rollout.workers[0].gate.set).start()
    with pytest.raises(WorkerError, match="no data"):
        wait_all([held, actor.fail()], fail_fast=False, timeout_s=DEADLINE_S)
    assert held.done()


def test_a_failing_component_can_free_one_that_waits_for_it(groups):
    rollout, actor = groups
    waiting = rollout.wait_for_the_other()
    with pytest.raises(WorkerError, match="no data"):
        wait_all([waiting, actor.fail()], cancel=True, timeout_s=DEADLINE_S)
    assert [type(end) for end in waiting.results(True, DEADLINE_S)] == [CallCancelled]
    assert rollout.give(1).wait(DEADLINE_S) == [1]


def test_a_deadline_says_what_is_missing(groups):
    rollout, actor = groups
    with pytest.raises(ResultTimeout, match=r"still missing: rollout.hold\(\) on rollout:0"):
        wait_all([rollout.hold(), actor.give(1)], timeout_s=0.02)


def test_results_come_in_the_order_in_which_they_are_done(groups):
    rollout, actor = groups
    held, given = rollout.hold(), actor.give(2)
    completed = as_completed([held, given], DEADLINE_S)
    assert next(completed) is given
    rollout.workers[0].gate.set()
    assert next(completed) is held
    assert list(completed) == []


def test_the_first_that_is_done(groups):
    rollout, actor = groups
    failed = actor.fail()
    assert wait_first([rollout.hold(), failed], DEADLINE_S) is failed
    with pytest.raises(WorkerError):
        failed.wait(DEADLINE_S)
    with pytest.raises(ValueError, match="at least one"):
        wait_first([])


def test_handles_can_stand_among_results(groups):
    _, actor = groups
    promise = Promise()
    handle = AsyncHandle(promise, None, "get from 'rollouts'")
    with pytest.raises(WorkerError, match="no data"):
        wait_all([handle, actor.fail()], timeout_s=DEADLINE_S)
    with pytest.raises(ResultTimeout, match="get from 'rollouts'"):
        wait_all([handle], timeout_s=0.01)
    promise.set_result(4)
    assert wait_all([handle, actor.give(1)], timeout_s=DEADLINE_S) == [4, [1]]


def test_nothing_is_left_with_what_goes_on(groups):
    rollout, actor = groups
    held = rollout.hold()
    wait_first([held, actor.give(1)], DEADLINE_S).wait()
    with pytest.raises(ResultTimeout):
        wait_all([held], timeout_s=0.01)
    assert len(held.settled._callbacks) == 1  # of the group itself


def test_results_can_be_gathered_by_an_event_loop(groups):
    rollout, actor = groups

    async def run():
        return await asyncio.gather(rollout.give(1).async_wait(), actor.give(2).async_wait())

    assert asyncio.run(run()) == [[1], [2]]


def test_an_empty_list_is_done():
    assert wait_all([]) == []
    assert list(as_completed([])) == []
