"""Ranks that are stopped: given up in the end, and ended by force."""

import os
import signal
import subprocess
import sys

import pytest
from ray_workers import Probe

from forked_job import ForkedJob
from orphaned_ranks import ProcessesOutOfReach
from rlinf.scheduler import PackedPlacementStrategy
from rlinf_scheduler.errors import ConfigError, WorkerDied
from rlinf_scheduler.host.processes import kill_process
from rlinf_scheduler.proc import birth_of
from waits import wait_until


@pytest.fixture
def job():
    """What starts its ranks cannot end them: as Ray, which asks a process to end."""
    job = ForkedJob(ProcessesOutOfReach())
    yield job
    for process in job.processes.started:
        process._process.kill()
    job.close()


def launch(job, name, **options):
    group = Probe.create_group().launch(job, PackedPlacementStrategy(0, 1), name=name, **options)
    return group, [who["pid"] for who in group.who().wait(60)]


def test_terminate_ends_a_stopped_rank(job, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.worker.supervision.STOP_GRACE_S", 0.1)
    group, pids = launch(job, "stopped")
    os.kill(pids[1], signal.SIGSTOP)
    group.terminate()
    wait_until(lambda: job.living == 0)


def test_a_rank_that_is_stopped_for_too_long_is_dead_and_ended(job):
    group, pids = launch(job, "given up", unresponsive_after_s=7.0)
    os.kill(pids[1], signal.SIGSTOP)
    with pytest.raises(
        WorkerDied, match=r"rank 1 of 'given up' died .*nothing heard for ([789]|\d\d) s: it is stopped"
    ):
        group.hold_the_process().wait(60)
    wait_until(lambda: not job.processes.started[1]._process.is_alive())
    assert job.processes.started[0]._process.is_alive()


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_that_is_none_is_refused_before_anything_starts(job, seconds):
    with pytest.raises(ConfigError, match="unresponsive_after_s"):
        launch(job, "refused", unresponsive_after_s=seconds)
    assert job.processes.started == []


def test_another_process_with_the_same_number_is_left_alone():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        born = birth_of(process.pid)
        assert not kill_process(process.pid, born + 1, "its id")
        assert process.poll() is None
        assert kill_process(process.pid, born, "its id")
        assert process.wait(60) == -signal.SIGKILL
    assert not kill_process(process.pid, born, "its id")
