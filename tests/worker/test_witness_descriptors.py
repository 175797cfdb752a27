"""What sees ranks of this machine end holds a descriptor for each: it is given back however Ray tells of the end."""

import os
from concurrent.futures import Future

import pytest
from ray.exceptions import ActorUnavailableError
from ray_workers import Probe

from forked_job import ForkedJob, ForkedProcess, ForkedProcesses
from rlinf.scheduler import PackedPlacementStrategy
from rlinf_scheduler.errors import LaunchError
from rlinf_scheduler.worker import launch
from waits import wait_until


class ToldProcess(ForkedProcess):
    """A process of whose end nothing is known but what the test says."""

    def run(self, spec):
        self._pipe.send(spec)
        self.told = Future()
        return self.told


class ToldProcesses(ForkedProcesses):
    process_class = ToldProcess


@pytest.fixture
def told_job():
    job = ForkedJob(ToldProcesses())
    yield job
    job.close()


def num_witnesses():
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found += "pidfd" in os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:  # the listing's own
            continue
    return found


def bring_up(job):
    return Probe.create_group().launch(job, PackedPlacementStrategy(0, 0), name="seen")


def test_a_rank_that_ray_does_not_reach_leaves_no_descriptor(told_job):
    before = num_witnesses()
    bring_up(told_job)
    assert num_witnesses() == before + 1
    (process,) = told_job.processes.started
    process.told.set_exception(ActorUnavailableError("not now", b"0" * 16))
    wait_until(lambda: num_witnesses() == before)


def test_a_rank_whose_end_is_told_before_its_start_leaves_no_descriptor(told_job, monkeypatch):
    before = num_witnesses()
    told_first = launch._Launch._on_started

    def on_started(self, started, request):
        told_job.processes.started[0].told.set_exception(RuntimeError("connection error code 2"))
        told_first(self, started, request)

    monkeypatch.setattr(launch._Launch, "_on_started", on_started)
    with pytest.raises(LaunchError, match="rank 0 died"):
        bring_up(told_job)
    wait_until(lambda: num_witnesses() == before)


def test_a_rank_that_outlives_its_job_leaves_no_descriptor(told_job):
    before = num_witnesses()
    bring_up(told_job)
    told_job.session.close()
    told_job.processes.started[0].told.set_exception(RuntimeError("connection error code 2"))
    assert num_witnesses() == before
