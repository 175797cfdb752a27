"""The orderly end of a group: what was called is answered, what does not end is killed; real processes, no Ray."""

import asyncio
import logging
import threading
import time

import pytest

from rlinf.scheduler import PackedPlacementStrategy, Worker
from rlinf.scheduler.errors import ConfigError, WorkerDied
from rlinf.scheduler.worker import supervision
from waits import wait_until

DEADLINE_S = 20.0


class Slow(Worker):
    """Takes its time."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()

    def answer(self, value, after_s=0.0):
        self.gate.wait(after_s)
        return value

    async def answer_beside(self, value):
        await asyncio.sleep(0.1)
        return value

    def count(self, number):
        yield from range(number)

    def hold(self):
        self.gate.wait()


@pytest.fixture
def slow(forked_job):
    return Slow.create_group().launch(forked_job, PackedPlacementStrategy(0, 1), name="slow")


def test_what_was_called_is_answered_and_then_every_rank_ends(forked_job, slow):
    answers = [slow.answer(1, after_s=0.2), slow.answer(2), slow.answer_beside(3)]
    slow.shutdown()
    assert forked_job.living == 0
    assert [answer.wait(DEADLINE_S) for answer in answers] == [[1, 1], [2, 2], [3, 3]]
    assert "slow" not in forked_job.groups


def test_a_group_without_calls_ends_at_once(forked_job, slow):
    began = time.monotonic()
    slow.shutdown(DEADLINE_S)
    assert time.monotonic() - began < DEADLINE_S / 2
    assert forked_job.living == 0
    slow.shutdown()
    slow.terminate()


def test_what_does_not_end_in_time_is_killed_and_its_calls_say_so(forked_job, slow):
    held = slow.execute_on(1).hold()
    slow.shutdown(0.3)
    assert forked_job.living == 0
    with pytest.raises(WorkerDied):
        held.wait(DEADLINE_S)
    with pytest.raises(WorkerDied, match="the group was terminated"):
        slow.answer(1)


def test_a_stream_is_read_to_its_end(forked_job, slow):
    numbers = slow.execute_on(0).count(5)
    ending = threading.Thread(target=slow.shutdown)
    ending.start()
    assert [each for (each,) in numbers] == [0, 1, 2, 3, 4]
    ending.join(DEADLINE_S)
    assert forked_job.living == 0


def test_a_block_ends_its_group_in_order_and_by_force_if_it_raises(forked_job, slow):
    with slow as group:
        answer = group.answer(1, after_s=0.2)
    assert answer.wait(DEADLINE_S) == [1, 1]
    assert forked_job.living == 0
    again = Slow.create_group().launch(forked_job, PackedPlacementStrategy(0, 1), name="slow")
    again.hold()
    with pytest.raises(LookupError), again:
        raise LookupError
    assert forked_job.living == 0


def test_who_is_waited_for_without_a_deadline_is_told_and_can_still_be_ended(
    forked_job, slow, monkeypatch, caplog
):
    monkeypatch.setattr(supervision, "TELL_S", 0.0)
    slow.execute_on(1).hold()
    ending = threading.Thread(target=slow.shutdown)
    with caplog.at_level(logging.WARNING):
        ending.start()
        wait_until(lambda: any("waits for calls of slow:1" in message for message in caplog.messages))
    assert forked_job.living
    slow.terminate()
    ending.join(DEADLINE_S)
    assert not ending.is_alive()
    assert forked_job.living == 0


def test_a_timeout_that_is_none_is_refused(forked_job, slow):
    with pytest.raises(ConfigError, match="timeout_s=-1"):
        slow.shutdown(-1)
