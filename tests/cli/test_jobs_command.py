"""`rlinf jobs`: what it shows where no cluster runs; tests/cluster/test_kept_jobs_on_ray.py has the rest."""

import json
import os
import re
import time

import msgspec
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from rlinf.testing import LocalRuntime
from rlinf_scheduler import detached
from rlinf_scheduler.cli import jobs
from rlinf_scheduler.cli.main import app
from rlinf_scheduler.ray_backend import addresses
from rlinf_scheduler.session.job_file import RunningJob, find_job


@pytest.fixture
def no_cluster(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(addresses, "_announced_here", list)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def rlinf(*arguments):
    return CliRunner().invoke(app, ["jobs", *arguments])


def test_a_job_that_ends_with_its_driver_is_shown_by_the_drivers_process(no_cluster):
    with LocalRuntime():
        shown, data = rlinf(), rlinf("--json")
    assert shown.exit_code == data.exit_code == 0
    assert re.search(
        rf"^process {os.getpid()}(\.\w+)? has run a job of its own since \d\d:\d\d:\d\d, until it ends: .*python",
        shown.stdout,
        re.M,
    )
    assert os.getpid() in [job["pid"] for job in json.loads(data.stdout)["others"]]
    assert json.loads(data.stdout)["kept"] == []


def test_each_of_several_jobs_of_a_process_is_shown_by_the_name_that_chooses_it(no_cluster):
    with LocalRuntime() as one, LocalRuntime() as other:
        shown, data = rlinf(), json.loads(rlinf("--json").stdout)
        names = [job["name"] for job in data["others"] if job["pid"] == os.getpid()]
        homes = [find_job(name).home for name in names]
    assert one.home in homes
    assert other.home in homes
    assert len(set(homes)) == len(homes)
    for name in names:
        assert re.search(rf"^process {re.escape(name)} has run a job of its own since ", shown.stdout, re.M)


def test_a_job_server_of_another_cluster_is_not_said_to_end_with_its_driver():
    shown = jobs._other("4711", RunningJob(4711, "serve.py", 0.0, b"", None, False, detached="serving"))
    assert re.search(r"^process 4711 has served job 'serving' on another cluster since ", shown)


def test_without_a_cluster_there_is_nothing_to_stop(no_cluster):
    done = rlinf("stop", "serving")
    assert done.exit_code == 2
    assert "no cluster runs here; `rlinf node start --head` begins one" in done.stderr


def test_kept_jobs_that_say_nothing_that_can_be_read_are_shown_with_the_reason():
    with LocalRuntime():
        job = find_job(os.getpid())
        records = {"old": msgspec.msgpack.encode(replace(job, version="9.9")), "odd one": b"\xc1"}
        reports = [detached._report(*each, time.monotonic() + 30.0) for each in records.items()]
    old, unknown, odd = jobs._lines(reports)
    assert old.startswith(f"old: served by process {os.getpid()} since ")
    assert re.search("^  who takes part is not known: the job of process .* runs on version 9.9", unknown)
    assert re.search(
        "^odd one: what its job server says cannot be read .*stop 'odd one' --force` ends it", odd
    )
    assert "runs on version 9.9" in jobs._as_data(reports[0])["problem"]
