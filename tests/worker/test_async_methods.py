"""`async def` methods run beside plain ones."""

import asyncio
import threading
from functools import partial

import pytest

from call_peers import Caller, Rank
from local_group import DEADLINE_S
from rlinf.scheduler import Worker
from rlinf_scheduler.errors import WorkerError


class Mixed(Worker):
    def __init__(self):
        super().__init__()
        self.inside, self.gate = threading.Event(), threading.Event()

    def block(self):
        self.inside.set()
        return self.gate.wait(DEADLINE_S)

    async def open(self):
        self.gate.set()
        return self.rank

    async def fail(self):
        raise LookupError("not here")

    async def leave(self):
        raise SystemExit(3)

    def make_coroutine(self):
        return self.open()

    async def count(self, number):
        for value in range(number):
            await asyncio.sleep(0)
            yield value

    async def stay(self):
        self.staying = asyncio.create_task(asyncio.sleep(600))
        self.inside.set()
        try:
            await self.staying
        except asyncio.CancelledError:
            return "left"

    async def hear(self):
        self.heard = asyncio.get_running_loop().create_future()
        self.inside.set()
        return await self.heard

    def end_stay(self):
        self.staying.cancel()

    def say(self, word):
        self.heard.set_result(word)

    def say_later(self, word):
        loop = self.heard.get_loop()
        # This thread may stand still before it has cancelled the first.
        loop.call_later(DEADLINE_S, self.heard.set_result, "not this").cancel()
        loop.call_later(0.02, self.heard.set_result, word)

    async def wait_for(self, number):
        self.present = getattr(self, "present", 0) + 1
        while self.present < number:
            await asyncio.sleep(0)


@pytest.fixture
def group(job):
    group = job.launch(Mixed, 2)
    yield group
    for worker in group.workers:
        worker.gate.set()


def test_an_async_method_runs_while_a_plain_one_blocks(group):
    blocked = group.block()
    for worker in group.workers:
        assert worker.inside.wait(DEADLINE_S)
    assert group.open().wait(DEADLINE_S) == [0, 1]
    assert blocked.wait(DEADLINE_S) == [True, True]


def test_an_async_generator_runs_while_a_plain_method_blocks(group):
    blocked = group.block()
    assert list(group.count(3)) == [[0, 0], [1, 1], [2, 2]]
    group.open().wait(DEADLINE_S)
    blocked.wait(DEADLINE_S)


def test_a_plain_method_cancels_a_task_answers_a_future_and_sets_a_timer_of_the_loop_that_sleeps(group):
    for waiting, ending, comes in (
        ("stay", group.end_stay, "left"),
        ("hear", partial(group.say, "a"), "a"),
        ("hear", partial(group.say_later, "b"), "b"),
    ):
        waited_for = getattr(group, waiting)()
        for worker in group.workers:
            assert worker.inside.wait(DEADLINE_S)
            worker.inside.clear()
        ending().wait(DEADLINE_S)
        assert waited_for.wait(DEADLINE_S) == [comes, comes]


def test_async_calls_run_beside_each_other(group):
    calls = [group.wait_for(5) for _ in range(5)]
    results = [call.wait(DEADLINE_S) for call in calls]
    assert results == [[None, None]] * 5


def test_what_an_async_method_raises_comes_to_the_caller_and_the_loop_lives_on(group):
    for method in ("fail", "leave"):
        with pytest.raises(WorkerError, match=r"not here|SystemExit"):
            getattr(group, method)().wait(DEADLINE_S)
    assert group.open().wait(DEADLINE_S) == [0, 1]


def test_a_plain_method_may_return_a_coroutine(group):
    assert group.make_coroutine().wait(DEADLINE_S) == [0, 1]


def test_an_async_method_does_not_stand_behind_a_plain_one_that_came_first(new_messenger):
    """Also when both come before the loop of plain methods runs."""
    rank = Rank(new_messenger("calc:0"), runs=False)
    caller = Caller(new_messenger("driver"), [rank.messenger.endpoint], warm=False)
    held = caller("hold", 0)
    assert caller("give_async").wait(DEADLINE_S) == [1]
    assert not held.done()
    rank.run()
    rank.worker.gate.set()
    assert held.wait(DEADLINE_S) == [0]
    rank.close()
