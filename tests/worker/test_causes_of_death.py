"""What is said of a rank that died: the cause, the method and for how long, in the call and in later ones; no Ray."""

import os
import re
import signal
import threading

import pytest
from test_postmortem import needs_statuses

from rlinf.scheduler import PackedPlacementStrategy, Worker
from rlinf_scheduler.errors import WorkerDied
from rlinf_scheduler.events import WorkerLost
from rlinf_scheduler.worker import supervision
from waits import wait_until

DEADLINE_S = 60.0


class Mortal(Worker):
    """Dies of many things."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()

    def die_when_there(self, path):
        wait_until(path.exists)
        self.die(self.rank)

    def answer(self):
        return self.rank

    def die(self, rank, after_s=0.0, code=None):
        if self.rank == rank:
            self.gate.wait(after_s)
            os.kill(os.getpid(), signal.SIGKILL) if code is None else os._exit(code)
        self.gate.wait()


@pytest.fixture
def mortal(forked_job):
    return Mortal.create_group().launch(forked_job, PackedPlacementStrategy(0, 1), name="mortal")


@needs_statuses
@pytest.mark.parametrize(
    ("code", "words"), [(None, "killed by SIGKILL"), (7, "it ended with exit code 7")], ids=["signal", "exit"]
)
def test_the_cause_the_method_and_how_long_it_ran_are_told_in_the_call_and_in_later_ones(
    forked_job, mortal, code, words
):
    events = []
    forked_job.session.bus.subscribe(events.append)
    mortal.answer().wait(DEADLINE_S)
    with pytest.raises(WorkerDied) as first:
        mortal.die(1, 0.3, code).wait(DEADLINE_S)
    cause = rf"process \d+ on node 0 \(127\.0\.0\.1\): {words}, (0\.[3-9]|[1-9]\d*\.\d) s into die\(\)"
    assert re.match(rf"rank 1 of 'mortal' died during die\(\): {cause}", str(first.value)), first.value
    with pytest.raises(WorkerDied) as later:
        mortal.answer()
    assert re.match(rf"rank 1 of 'mortal' died: {cause}", str(later.value)), later.value
    wait_until(lambda: any(isinstance(each, WorkerLost) for each in events))
    assert re.match(cause, next(each.reason for each in events if isinstance(each, WorkerLost)))


@needs_statuses
def test_of_several_calls_the_one_that_ran_is_named(mortal, tmp_path):
    both_are_made = tmp_path / "both are made"
    ran, waited = mortal.execute_on(0).die_when_there(both_are_made), mortal.answer()
    both_are_made.touch()
    for call in (ran, waited):
        with pytest.raises(WorkerDied, match=r"killed by SIGKILL, \d+\.\d s into die_when_there\(\)"):
            call.wait(DEADLINE_S)


def test_of_calls_that_end_with_a_connection_the_one_that_ran_is_named(forked_job, tmp_path, monkeypatch):
    """As where Ray says later that the process has ended, or never."""
    monkeypatch.setattr(supervision, "UNSAID_GRACE_S", 0.05)
    monkeypatch.setattr(supervision, "STOP_GRACE_S", 0.0)
    forked_job.processes.watches, both_are_made = False, tmp_path / "both are made"
    mortal = Mortal.create_group().launch(forked_job, PackedPlacementStrategy(0, 0), name="unsaid")
    ran, waited = mortal.die_when_there(both_are_made), mortal.answer()
    both_are_made.touch()
    for call in (ran, waited):
        with pytest.raises(WorkerDied, match=r"its process has ended.*, \d+\.\d s into die_when_there\(\)"):
            call.wait(DEADLINE_S)


@needs_statuses
def test_of_a_rank_between_calls_none_is_named(forked_job, mortal):
    mortal.answer().wait(DEADLINE_S)
    gone = mortal.execute_on(1)
    forked_job.processes.started[1].kill()
    wait_until(lambda: mortal.health()[1].state == "dead")
    with pytest.raises(WorkerDied, match=r"1\): killed by SIGKILL$"):
        gone.answer()
