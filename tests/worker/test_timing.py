"""Durations that travel with results."""

import asyncio
import time

import pytest

from local_group import DEADLINE_S
from rlinf.scheduler import Worker
from rlinf_scheduler.errors import ConfigError, WorkerError
from rlinf_scheduler.host.timing import Stopwatch, recording, reduce_durations, timer
from rlinf_scheduler.observe.timekeeping import TIMES, current_step


class Timed(Worker):
    def step(self):
        for _ in range(3):
            with self.timer("generate"):
                time.perf_counter()
        self.train()
        return self.rank

    @Worker.timer
    def train(self):
        with self.timer("backward") as part:
            pass
        return part.elapsed_s

    @Worker.timer("other")
    async def run(self):
        await asyncio.gather(self._part("a"), self._part("b"))

    async def _part(self, name):
        with self.timer(name):
            await asyncio.sleep(0)

    def fail(self):
        with self.timer("generate"):
            raise LookupError("nothing")


def test_durations_travel_with_the_result(job):
    group = job.launch(Timed, 2)
    result = group.step()
    assert set(result.durations()) == {"generate", "train", "backward", "step"}
    lists = result.durations(reduce=None)
    assert [len(each) for each in lists.values()] == [2] * 4
    assert result.durations(reduce="max")["step"] == max(lists["step"])
    assert result.wait(DEADLINE_S) == [0, 1]


def test_a_decorated_method_is_measured_under_its_own_name_once(job):
    group = job.launch(Timed, 1)
    durations = group.train().durations()
    assert set(durations) == {"train", "backward"}
    assert durations["train"] >= durations["backward"]


def test_tasks_of_one_call_write_into_its_durations_and_not_into_anothers(job):
    group = job.launch(Timed, 1)
    results = [group.run() for _ in range(3)]
    for result in results:
        assert set(result.durations()) == {"other", "a", "b", "run"}


def test_a_call_that_failed_says_how_long_it_took_until_then(job):
    group = job.launch(Timed, 1)
    result = group.fail()
    assert set(result.durations()) == {"generate", "fail"}
    with pytest.raises(WorkerError):
        result.wait(DEADLINE_S)


def test_blocks_of_one_name_add_up_also_in_each_other():
    durations = {}
    with recording(durations, "f", "driver"):
        part = Stopwatch("part")
        with part:
            with part:
                pass
            inner = part.elapsed_s
    assert durations["part"] == pytest.approx(inner + part.elapsed_s)


def test_outside_a_call_nothing_is_kept_and_nothing_fails():
    with timer("alone") as part:
        pass
    assert part.elapsed_s > 0


@pytest.mark.parametrize(
    ("reduce", "value"), [("max", 3.0), ("min", 1.0), ("sum", 4.0), ("mean", 2.0), (None, [1.0, 3.0])]
)
def test_ranks_are_reduced(reduce, value):
    assert reduce_durations([{"x": 1.0}, {"x": 3.0}, {}], reduce) == {"x": value}


def test_an_unknown_reduction_says_which_there_are():
    with pytest.raises(ConfigError, match="max, min, sum, mean"):
        reduce_durations([{"x": 1.0}], "median")


def test_a_generator_cannot_be_decorated():
    with pytest.raises(ConfigError, match="generator"):

        @Worker.timer
        def play(self):
            yield 1


def test_a_phase_that_an_interruption_has_cut_short_ends_with_its_call_though_its_timer_is_used_again():
    watch, durations = Stopwatch("generate"), {}
    with recording({}, "step", "driver"):
        watch.__enter__()  # and an interruption comes before the block begins
    with recording(durations, "step", "driver"):
        with watch:
            assert [work.name for work in TIMES.open_works()] == ["step", "generate"]
        assert [work.name for work in TIMES.open_works()] == ["step"]
    assert list(durations) == ["generate"]
    assert not watch._entered


def test_a_step_whose_block_was_not_left_ends_with_its_call():
    block = Worker.at_step(811)
    with recording({}, "train", "driver"):
        block.__enter__()  # and an interruption comes before the block begins
        assert current_step() == 811
    assert current_step() is None
