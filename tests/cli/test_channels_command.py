"""`rlinf channels`: another terminal looks at the channels of a running job, which is one process here."""

from __future__ import annotations

import json
import os
import re
import stat
from types import SimpleNamespace

import pytest

from programs import RLINF, run_program
from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.comm.rundir import JOB_NAME
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.session import job_file
from rlinf_scheduler.session.job_file import running_jobs

DEADLINE_S = 60.0


def rlinf_channels(*arguments):
    return run_program("-c", RLINF, "channels", *arguments)


@pytest.fixture
def job():
    with LocalRuntime() as runtime:
        yield runtime


def test_another_terminal_sees_the_channels_of_a_job(job):
    channel = Channel.create("rollouts", maxsize=2)
    channel.put("an item")
    done = rlinf_channels("--job", str(os.getpid()))
    assert done.returncode == 0, done.stderr
    assert "channel 'rollouts': 1 item in 1 queue" in done.stdout
    assert "used by driver" in done.stdout


def test_it_is_data_on_request(job):
    Channel.create("rollouts").put("an item")
    Channel.create("others")
    done = rlinf_channels("--job", str(os.getpid()), "--json", "rollouts")
    (report,) = json.loads(done.stdout)
    assert (report["name"], report["num_items"]) == ("rollouts", 1)


def test_a_job_without_channels_and_a_channel_that_is_not_there_are_told(job):
    done = rlinf_channels("--job", str(os.getpid()))
    assert (done.returncode, done.stdout) == (1, "the job has no channels\n")
    done = rlinf_channels("--job", str(os.getpid()), "rolouts")
    assert done.returncode == 2
    assert "rolouts" in done.stderr


def test_a_job_that_is_not_there_is_an_error_that_names_those_that_are(job):
    done = rlinf_channels("--job", "1")
    assert done.returncode == 2
    # Another test of this process may have left a job of its own.
    assert re.search(rf"{os.getpid()}(\.\w+)?: ", done.stderr)


def test_only_its_user_can_read_what_lets_a_process_take_part(job):
    path = job.messenger.run_directory / JOB_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_job_that_has_ended_is_not_there_any_more():
    with LocalRuntime() as runtime:
        home = runtime.home
        assert home in [job.home for job in running_jobs()]
    assert home not in [job.home for job in running_jobs()]


def test_what_a_job_says_of_itself_does_not_show_its_key(job):
    (mine,) = [each for each in running_jobs() if each.home == job.home]
    assert repr(mine.key) not in repr(mine)


def test_of_several_jobs_one_is_chosen_by_the_option_that_is_named(monkeypatch):
    jobs = [job_file.RunningJob(pid, f"{pid}.py", 0.0, b"", None, True) for pid in (24434, 9)]
    monkeypatch.setattr(job_file, "running_jobs", lambda: jobs)
    with pytest.raises(ClusterError, match=r"`--job 24434`.*:\n  24434: 24434\.py\n  9: 9\.py"):
        job_file.find_job()
    assert job_file.find_job(9) is jobs[1]


def test_of_the_jobs_of_one_process_each_has_a_name_to_choose_it_by(monkeypatch):
    homes = [SimpleNamespace(process_id=each * 8) for each in ("a1", "b2")]
    jobs = [job_file.RunningJob(9, "9.py", 0.0, b"", home, True) for home in homes]
    monkeypatch.setattr(job_file, "running_jobs", lambda: jobs)
    with pytest.raises(ClusterError, match=r"`--job 9.a1a1a1`.*:\n  9.a1a1a1: 9\.py\n  9.b2b2b2: 9\.py"):
        job_file.find_job()
    assert [job_file.find_job(which) for which in (9, "9.a1a1a1", "9.b2b2b2")] == [jobs[0], *jobs]


def test_a_job_that_outlives_its_drivers_is_chosen_by_its_name_too(monkeypatch):
    kept = [
        job_file.RunningJob(pid, "job", 0.0, b"", None, True, detached=name)
        for pid, name in ((7, "night"), (8, "7"))
    ]
    jobs = [*kept, job_file.RunningJob(9, "9.py", 0.0, b"", None, True)]
    monkeypatch.setattr(job_file, "running_jobs", lambda: jobs)
    assert [job_file.find_job(which) for which in ("night", "7", 7, "8", "9")] == [
        jobs[0],
        jobs[0],
        jobs[0],
        jobs[1],
        jobs[2],
    ]
    with pytest.raises(
        ClusterError, match=r"no job of this machine is called 'nigth'; did you mean 'night'\?"
    ):
        job_file.find_job("nigth")
    with pytest.raises(
        ClusterError, match="no job's driver is process 10 of this machine; there are\n  7: job\n  8"
    ):
        job_file.find_job("10")


def test_of_jobs_of_one_name_on_several_rays_none_is_chosen_by_that(monkeypatch):
    jobs = [job_file.RunningJob(pid, "job", 0.0, b"", None, True, detached="night") for pid in (7, 8)]
    monkeypatch.setattr(job_file, "running_jobs", lambda: jobs)
    with pytest.raises(
        ClusterError, match=r"several jobs are called 'night'.*`--job 7`.*:\n  7: job\n  8: job"
    ):
        job_file.find_job("night")
    assert job_file.find_job("8") is jobs[1]
