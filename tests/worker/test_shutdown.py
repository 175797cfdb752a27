"""The orderly end of a group: what was called is answered, what does not end is killed; real processes, no Ray."""

import asyncio
import logging
import re
import threading
import time

import pytest

from rlinf.scheduler import PackedPlacementStrategy, Worker, wait_all
from rlinf_scheduler.errors import ConfigError, LaunchTimeout, PlacementError, WorkerDied
from rlinf_scheduler.worker import supervision
from waits import wait_until

DEADLINE_S = 60.0


class Slow(Worker):
    """Takes its time."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.is_held = False

    def answer(self, value, after_s=0.0):
        self.gate.wait(after_s)
        return value

    async def answer_beside(self, value):
        await asyncio.sleep(0.1)
        return value

    def count(self, number):
        yield from range(number)

    def hold(self):
        self.is_held = True
        self.gate.wait()

    async def holds(self):
        return self.is_held


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


def test_what_does_not_end_in_time_is_killed_and_its_calls_say_so(forked_job, slow, caplog):
    held = slow.execute_on(1).hold()
    wait_until(lambda: slow.execute_on(1).holds().wait(DEADLINE_S) == [True])
    with caplog.at_level(logging.WARNING):
        slow.shutdown(0.3)
    assert forked_job.living == 0
    ended = r"group\.shutdown\(timeout_s=0\.3\) ended it"
    with pytest.raises(
        WorkerDied, match=rf"rank 1 of 'slow' died during hold\(\): {ended}, \d+\.\d s into hold\(\)$"
    ):
        held.wait(DEADLINE_S)
    (told,) = [each for each in caplog.messages if "by force" in each]
    assert re.fullmatch(
        r"group\.shutdown\(timeout_s=0\.3\) of group 'slow' ended by force: (slow:0; )?slow:1, \d+\.\d s into hold\(\)",
        told,
    )
    # On a busy machine the other one takes longer than that, too.
    assert "slow:0" in told or slow.health()[0].reason == "the group was terminated"
    assert slow.health()[1].reason == "group.shutdown(timeout_s=0.3) ended it"
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


def test_a_view_cannot_end_the_group(forked_job, slow):
    view = slow[0:1]
    for end in (view.shutdown, view.terminate, view.__enter__):
        with pytest.raises(
            PlacementError, match=r"all 2 ranks of 'slow', and this is a view of some \(0\): call it on"
        ):
            end()
    with pytest.raises(PlacementError, match=r"restart\(1\): .* is a view without that rank"):
        view.restart(1)
    assert slow.answer(1).wait(DEADLINE_S) == [1, 1]
    slow[0:2].shutdown(DEADLINE_S)
    assert forked_job.living == 0


def test_a_timeout_that_is_none_is_refused(slow):
    answer = slow.answer(1)
    for bad in (-1, "2", True, float("nan")):
        for wait in (slow.shutdown, answer.wait, answer.durations):
            with pytest.raises(
                ConfigError, match=f"timeout_s={bad!r}: it is a number of seconds from 0, or None"
            ):
                wait(timeout_s=bad)
        with pytest.raises(ConfigError, match=f"timeout_s={bad!r}"):
            wait_all([answer], timeout_s=bad)
        with pytest.raises(ConfigError, match=f"timeout_s={bad!r}: it is a number of seconds from 0"):
            slow.restart(0, timeout_s=bad)
    assert answer.wait(DEADLINE_S) == [1, 1]
    assert [each.num_restarts for each in slow.health()] == [0, 0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"launch_timeout_s": None}, "launch_timeout_s=None: it is a number of seconds from 0"),
        ({"launch_timeout_s": -1}, "launch_timeout_s=-1: it is a number of seconds from 0"),
        ({"wait_s": "2"}, "wait_s='2': it is a number of seconds from 0"),
        ({"name": 3}, "group name 3: it is text"),
        (
            {"max_restarts": 3},
            "max_restarts= is for ranks that come back, and with on_failure='fail' none does",
        ),
        ({"restart_window_s": 60, "on_failure": "ignore"}, "restart_window_s= is for ranks that come back"),
    ],
)
def test_launches_that_cannot_be_meant_are_refused_before_anything_starts(forked_job, options, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        Slow.create_group().launch(forked_job, PackedPlacementStrategy(0, 1), **options)
    assert not forked_job.processes.started


def test_a_short_launch_timeout_is_told_as_it_was_given(forked_job):
    with pytest.raises(LaunchTimeout, match=r"not ready after 0\.001 s"):
        Slow.create_group().launch(forked_job, PackedPlacementStrategy(0, 1), launch_timeout_s=0.001)
