"""Steps of ranks that `cluster.profiling` names: in a report of torch's profiler, or in a window of another one's."""

import gzip
import json
import logging

import pytest
import torch

from forked_job import ForkedJob
from local_group import LocalJob
from rlinf.scheduler import PackedPlacementStrategy, Worker
from rlinf_scheduler.hardware import profilers
from rlinf_scheduler.hardware.profilers import ProfilingConfig
from rlinf_scheduler.host.info import JobSettings, Role
from rlinf_scheduler.session import current_or_none, set_current

DEADLINE_S = 60


class Stepper(Worker):
    def train(self, steps):
        for step in steps:
            with self.at_step(step), self.at_step(step):
                torch.ones(4, 3) @ torch.ones(3, 2)
        return True


def trained(job, profiling):
    job.session.provide(JobSettings, JobSettings(profiling=profiling))
    group = Stepper.create_group().launch(job, PackedPlacementStrategy(0, 1), name="actor")
    assert group.train([0, 1, 2, 3, 3]).wait(DEADLINE_S) == [True, True]


@pytest.fixture
def job():
    job = ForkedJob()
    yield job
    job.close()


def test_torchs_profiler_records_the_steps_and_ranks_that_are_named(job, tmp_path):
    folder = tmp_path / "reports"
    names = {"worker_groups": ("Actor",), "ranks": (1,), "steps": (1, 3)}
    trained(job, ProfilingConfig("torch", **names, output_dir=str(folder), flags=("record_shapes",)))
    files = sorted(folder.iterdir())
    assert [file.name.partition("-step-")[2] for file in files] == [
        "1.json.gz",
        "3-2.json.gz",
        "3.json.gz",
    ]
    assert all(file.name.startswith("rlinf-profile-actor-1-") for file in files)
    with gzip.open(files[0]) as file:
        events = json.load(file)["traceEvents"]
    (product,) = [event for event in events if event["name"] == "aten::mm"]
    assert product["args"]["Input Dims"] == [[4, 3], [3, 2]]


@pytest.fixture
def windows(monkeypatch):
    """What torch is told of windows and ranges."""
    told = []

    class Recorder:
        def __getattr__(self, name):
            return self if name in ("cuda", "profiler", "nvtx") else lambda *args: told.append((name, *args))

    monkeypatch.setattr(profilers, "_torch", Recorder)
    return told


@pytest.fixture
def rank(monkeypatch):
    """A worker of a group, here."""
    job = LocalJob()
    set_current(job.session)
    job.session.provide(Role, Role.alone())
    yield lambda profiling: job.session.provide(JobSettings, JobSettings(profiling=profiling))
    job.session.close()


def test_a_profiler_that_a_rank_runs_under_has_a_window_a_step(rank, windows):
    rank(ProfilingConfig("nsight", worker_groups=("local",), steps=(2,)))
    assert Stepper().train([1, 2, 3])
    assert windows == [("start",), ("range_push", "step 2"), ("range_pop",), ("stop",)]


def test_without_steps_and_in_other_groups_there_is_none(rank, windows):
    rank(ProfilingConfig("nsight", worker_groups=("local",)))
    Stepper().train([1])
    rank(ProfilingConfig("nsight", worker_groups=("others",), steps=(1,)))
    Stepper().train([1])
    assert windows == []


def test_a_window_of_the_programs_own_is_left_open(rank, windows):
    rank(ProfilingConfig("nsight", worker_groups=("local",), steps=(1,)))
    profilers.CAPTURE.open()
    Stepper().train([1])
    profilers.CAPTURE.close()
    assert windows == [("start",), ("stop",)]


def test_a_profiler_that_fails_ends_no_step(rank, caplog, monkeypatch):
    def broken():
        raise RuntimeError("no CUDA here")

    monkeypatch.setattr(profilers, "_torch", broken)
    rank(ProfilingConfig("nsight", worker_groups=("local",), steps=(1, 2)))
    with caplog.at_level(logging.WARNING):
        assert Stepper().train([1, 2])
    assert "a step is not profiled: RuntimeError: no CUDA here" in caplog.text
    assert current_or_none() is not None
