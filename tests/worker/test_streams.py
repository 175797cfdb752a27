"""Methods that are generators: their values come as they are made, and a slow caller holds them back."""

import asyncio
import gc
import random
import signal
import threading
import weakref

import numpy as np
import pytest
from test_calls import living

from local_group import DEADLINE_S
from rlinf.scheduler import Worker
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.errors import ResultTimeout, UnevenStreams, WorkerError
from rlinf_scheduler.worker.stream import PREFETCH
from waits import wait_until


class Value:
    """What can be referred to weakly."""


class Player(Worker):
    def __init__(self):
        super().__init__()
        self.kept = []
        self.made, self.ended, self.gate = 0, [], threading.Event()

    def count(self, number, size=0):
        try:
            for value in range(number):
                self.made += 1
                yield np.full(size, value) if size else 10 * self.rank + value
        finally:
            self.ended.append("count")
        return "all"

    async def count_beside(self, number):
        try:
            for value in range(number):
                self.made += 1
                yield value
        finally:
            await asyncio.sleep(0)
            self.ended.append("beside")

    async def leave_slowly(self):
        try:
            while True:
                yield None
        finally:
            self.ended.append("leaving")
            while not self.gate.is_set():
                await asyncio.sleep(0.001)
            self.ended.append("left")

    def count_to_rank(self):
        yield from range(self.rank + 1)

    def fail_after(self, number, on_rank):
        yield from range(number)
        if self.rank == on_rank:
            raise LookupError("out of values")
        yield from self.wait_for_mail()

    def wait_for_mail(self):
        try:
            yield self.rank
            self.recv("calc", 1 - self.rank)
            yield None
        finally:
            self.ended.append("mail")

    def reuse_a_buffer(self, number, size):
        buffer = np.zeros(size)
        for value in range(number):
            buffer[:] = value
            yield buffer

    def make(self):
        made = Value()
        self.kept.append(weakref.ref(made))
        return made

    def give(self):
        while True:
            yield self.make()

    async def give_beside(self):
        while True:
            yield self.make()

    def give_what_cannot_be_sent(self):
        yield threading.Lock()

    def slow(self):
        self.gate.wait(DEADLINE_S)
        yield 1

    def echo(self, value):
        return value


@pytest.fixture
def group(job):
    return job.launch(Player, 2)


@pytest.fixture(params=["count", "count_beside"])
def count(group, request):
    return getattr(group, request.param)


def test_a_step_gives_a_value_of_each_rank(group):
    stream = group.count(3)
    assert list(stream) == [[0, 10], [1, 11], [2, 12]]
    assert stream.wait(DEADLINE_S) == ["all", "all"]
    assert stream.durations()["count"] > 0
    assert group.echo(1).wait(DEADLINE_S) == [1, 1]


def test_an_empty_stream_ends_at_once(count):
    assert list(count(0)) == []


def test_large_values_come_through_shared_memory_and_leave_nothing(group):
    before = living(Payload)
    sums = [int(left.sum() + right.sum()) for left, right in group.count(20, 100_000)]
    assert sums == [200_000 * value for value in range(20)]
    wait_until(lambda: len(living(Payload)) == len(before))


@pytest.mark.parametrize("size", [10, 1000, 100_000])
def test_a_value_is_as_it_was_when_it_was_given(group, size):
    steps = list(group.reuse_a_buffer(6, size))
    assert [int(value[0]) for step in steps for value in step] == [n for n in range(6) for _ in range(2)]


def test_a_slow_caller_holds_the_generator_back(group, count):
    stream = count(1000)
    first = group.workers[0]
    wait_until(lambda: first.made == PREFETCH)
    for step in range(1, 6):
        next(stream)
        wait_until(lambda step=step: first.made == PREFETCH + step - 1)
    assert threading.Event().wait(0.05) is False
    assert first.made == PREFETCH + 4


@pytest.mark.parametrize("method", ["give", "give_beside"])
def test_a_rank_that_is_held_back_keeps_no_value_that_it_has_given(group, method):
    with getattr(group, method)():
        kept = group.workers[0].kept
        wait_until(lambda: [each() for each in kept] == [None] * PREFETCH)


@pytest.mark.parametrize("way", ["close", "drop", "with"])
def test_the_generators_end_when_nobody_wants_their_values_any_more(group, count, way):
    stream = count(1000)
    next(stream)
    if way == "close":
        stream.close()
        assert list(stream) == []
    elif way == "with":
        with stream:
            next(stream)
    del stream
    gc.collect()
    wait_until(lambda: all(worker.ended for worker in group.workers))
    assert group.echo(2).wait(DEADLINE_S) == [2, 2]
    wait_until(lambda: not any(loop._jobs for loop in group.loops))


def test_a_generator_that_is_ended_twice_comes_to_its_end(group):
    stream = group.leave_slowly()
    next(stream)
    stream.close()
    wait_until(lambda: all(worker.ended for worker in group.workers))
    stream.close()
    assert group.echo(1).wait(DEADLINE_S) == [1, 1]  # the ranks have heard of it
    for worker in group.workers:
        worker.gate.set()
    wait_until(lambda: not any(loop._jobs for loop in group.loops))
    assert [worker.ended for worker in group.workers] == [["leaving", "left"]] * 2


def test_a_generator_that_waits_in_the_library_ends_too(group):
    with group.wait_for_mail() as stream:
        assert next(stream) == [0, 1]
    wait_until(lambda: all(worker.ended for worker in group.workers))


def test_what_a_rank_raises_comes_after_its_values_and_ends_all(group):
    got = []
    with group.fail_after(3, 1) as stream:
        with pytest.raises(WorkerError, match="out of values"):
            got.extend(stream)
        assert got == [[0, 0], [1, 1], [2, 2]][: len(got)]
    wait_until(lambda: group.workers[0].ended)
    assert group.echo(2).wait(DEADLINE_S) == [2, 2]


def test_the_values_of_a_rank_come_before_what_it_raises(group):
    got = []
    with pytest.raises(WorkerError, match="out of values"):
        got.extend(group[1].fail_after(3, 1))
    assert got == [[0], [1], [2]]


def test_a_value_that_cannot_be_sent_is_the_calls_failure(group):
    with pytest.raises(WorkerError, match="cannot be"):
        next(group.give_what_cannot_be_sent())


def test_ranks_of_different_length_are_an_error_unless_they_are_asked_for_one_by_one(group):
    stream = group.count_to_rank()
    assert next(stream) == [0, 0]
    with pytest.raises(UnevenStreams, match="ranks 0 ended after 1 values"):
        next(stream)
    assert list(group.count_to_rank().rank(1)) == [0, 1]
    assert sorted(group.count_to_rank().as_ready()) == [(0, 0), (1, 0), (1, 1)]


def test_a_step_can_have_a_deadline_and_be_made_again(group):
    stream = group.slow()
    stream.timeout_s = 0.02
    with pytest.raises(ResultTimeout, match=r"a value of calc.slow\(\): .*calc:0, calc:1"):
        next(stream)
    for worker in group.workers:
        worker.gate.set()
    stream.timeout_s = DEADLINE_S
    assert list(stream) == [[1, 1]]


def test_a_stream_can_be_iterated_by_an_event_loop(group, count):
    async def run():
        return [values async for values in count(4)]

    steps = asyncio.run(run())
    assert len(steps) == 4


def test_two_streams_of_a_group_do_not_mix(group):
    first, second = group.count_beside(3), group.count_beside(3)
    for value in range(3):
        assert next(first) == next(second) == [value, value]


def test_a_stream_of_one_rank_and_of_scattered_arguments(group):
    assert list(group[1].count(2)) == [[10], [11]]
    assert list(group.scatter([2, 2]).count()) == [[0, 10], [1, 11]]


class Interrupted(Exception):
    pass


@pytest.mark.interrupted
def test_an_interruption_neither_loses_a_value_nor_gives_one_twice(group):
    def interrupt(_signal, _frame):
        raise Interrupted

    former = signal.signal(signal.SIGALRM, interrupt)
    chance = random.Random(5)
    got, num_interrupted = [], 0
    stream = group.count(400)
    try:
        while len(got) < 400:
            value = None
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 1e-3))
                # As `for` does it; after the call of a builtin, `next`, Python may lose what that returned.
                value = stream.__next__()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                num_interrupted += 1
            if value is not None:
                got.append(value)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert got == [[value, 10 + value] for value in range(400)]
    assert num_interrupted > 10
