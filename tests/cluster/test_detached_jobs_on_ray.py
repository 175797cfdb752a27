"""Jobs that outlive their drivers, on Ray: what a driver began goes on when that is killed, until somebody ends it."""

import json
import os
import queue
import select
import signal
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from page_programs import printed_by_process, programs_of, save
from programs import run_program
from rlinf.scheduler import Cluster, PackedPlacementStrategy, Worker
from rlinf_scheduler.cli.main import app
from rlinf_scheduler.errors import ClusterError, ClusterTimeout, ConfigError, WorkerDied
from rlinf_scheduler.events import JobLost
from rlinf_scheduler.ray_backend.holds import holds_in_cluster
from rlinf_scheduler.ray_backend.job_servers import detached_names, record_of
from rlinf_scheduler.session import set_current
from waits import wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "keep-a-job.md").read_text(encoding="utf-8")
DEADLINE_S = 120.0
# Ray itself gives up a process that is stopped after twenty seconds.
STOPPED_S = 15.0
# After the last line of the page's first program.
KILLED = """
        import os, sys
        from rlinf.scheduler import FlexiblePlacementStrategy
        with cluster.starting():
            for device, name, stays in ((0, "stays", True), (1, "goes", False)):
                Policy.create_group(0).launch(
                    cluster, FlexiblePlacementStrategy([[device]]), name=name, detached=stays
                )
        sys.stdout.flush()
        os.kill(os.getpid(), 9)
"""

# Other tests keep devices; here it is looked whether all are free again.
pytestmark = [pytest.mark.ray(first=True), pytest.mark.system]


class Alive(Worker):
    """Says which process it is."""

    def pid(self):
        return os.getpid()

    def extension(self):
        return os.environ.get("RLINF_EXT_MODULE")


@pytest.fixture
def ray_here(ray_address, monkeypatch):
    """Other programs of this machine find the Ray; this process has no job on it."""
    monkeypatch.setenv("RAY_ADDRESS", ray_address)
    set_current(None)


def rlinf(*arguments):
    done = CliRunner().invoke(app, ["jobs", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_programs_of_the_page_run_although_the_first_one_is_killed(ray_here, tmp_path):
    save(PAGE, tmp_path)
    serve, ask = programs_of(PAGE)
    killed = run_program("-c", serve.code.rstrip() + KILLED, cwd=tmp_path, with_ray=True, timeout=DEADLINE_S)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, serve.output), killed.stderr
    with Cluster(job="serving") as cluster:
        policy = cluster.attach("policy")
        wait_until(lambda: sorted(cluster.groups) == ["policy", "stays"])
        wait_until(lambda: len(holds_in_cluster()) == 1)  # of the group that has ended there is none
        (hold,) = holds_in_cluster()
        assert hold.devices == ("0",)
        assert hold.holder.startswith("job 'serving' (process ")
        # The Ray job in which its job server was started is over.
        os.kill(policy.health()[0].pid, signal.SIGKILL)
        wait_until(lambda: policy.health()[0].state != "alive")
        assert policy.act(1).wait(DEADLINE_S) == [11]
        assert policy.health()[0].num_restarts == 1
        (kept,) = json.loads(rlinf("--json"))["kept"]
        assert kept["name"] == "serving"
        assert [driver["pid"] for driver in kept["drivers"]] == [os.getpid()]
        assert sorted(kept["groups"], key=str) == [
            {"name": name, "world_size": 1, "ends_with": ""} for name in ("policy", "stays")
        ]
        shown = rlinf().splitlines()
        assert shown[0].startswith(f"serving: served by process {kept['pid']} since ")
        assert shown[1].startswith(f"  driver {os.getpid()} on ")
        assert "  group 'policy': 1 rank, detached" in shown
    assert printed_by_process(ask, tmp_path) == ask.output
    wait_until(lambda: detached_names() == [] and holds_in_cluster() == [])


def test_with_its_job_server_stopped_or_not_all_of_a_job_ends_and_its_devices_and_name_are_free(ray_here):
    with pytest.raises(ClusterError, match="no detached job 'fragile' runs on this Ray: there is none; "):
        Cluster(job="fragile")
    cluster = Cluster(job="fragile", detached=True)
    with pytest.raises(ConfigError, match="this process has part in job 'fragile' already"):
        Cluster(job="other")
    assert Cluster().num_nodes == cluster.num_nodes == 2
    assert cluster.lost_nodes == {}
    group = Alive.create_group().launch(cluster, PackedPlacementStrategy(0, 0), name="rank", detached=True)
    descriptor = os.pidfd_open(group.pid().wait(DEADLINE_S)[0])
    try:
        (kept,) = json.loads(rlinf("--json"))["kept"]
        # Neither the job server, in Ray's loop, nor this process, which only asks, is at work.
        assert "at work:" not in str(cluster.why()).splitlines()
        os.kill(kept["pid"], signal.SIGSTOP)
        began = time.monotonic()
        silent = json.loads(rlinf("--json", "--timeout-s", "1"))
        assert time.monotonic() - began < STOPPED_S
        assert [(job["name"], job["pid"]) for job in silent["kept"]] == [("fragile", None)]
        assert kept["pid"] not in [job["pid"] for job in silent["others"]]
        with pytest.raises(
            ClusterTimeout, match="`rlinf jobs stop fragile --force` kills it, and ends its job"
        ):
            record_of("fragile", 0.1)
        assert rlinf("stop", "fragile", "--force") == "job 'fragile' has ended\n"
        assert select.select([descriptor], [], [], DEADLINE_S)[0]
    finally:
        os.close(descriptor)
    wait_until(lambda: cluster._session.closed)
    with pytest.raises((WorkerDied, ClusterError), match="job 'fragile' has ended: its job server is gone"):
        group.pid()
    wait_until(lambda: detached_names() == [] and holds_in_cluster() == [])


def test_a_job_server_that_is_killed_ends_its_job_and_its_driver_hears_of_it(ray_here):
    cluster = Cluster(job="brief", detached=True)
    heard = queue.SimpleQueue()
    cluster.subscribe(heard.put)
    group = Alive.create_group().launch(cluster, PackedPlacementStrategy(0, 0), name="rank", detached=True)
    descriptor = os.pidfd_open(group.pid().wait(DEADLINE_S)[0])
    try:
        os.kill(json.loads(rlinf("--json"))["kept"][0]["pid"], signal.SIGKILL)
        assert select.select([descriptor], [], [], DEADLINE_S)[0]
    finally:
        os.close(descriptor)
    while not isinstance(event := heard.get(timeout=DEADLINE_S), JobLost):
        pass
    assert event.reason.startswith("job 'brief' has ended: its job server is gone: ")
    wait_until(lambda: detached_names() == [] and holds_in_cluster() == [])


def test_a_kept_job_has_the_log_folder_and_the_extension_of_the_driver_that_began_it(
    ray_here, tmp_path, monkeypatch
):
    monkeypatch.setenv("RLINF_EXT_MODULE", "colorsys")  # a module that is there
    with Cluster(job="logged", detached=True, log_folder=tmp_path / "logs") as cluster:
        group = Alive.create_group().launch(
            cluster, PackedPlacementStrategy(0, 0), name="rank", detached=True
        )
        assert cluster.log_folder == str(tmp_path / "logs")
        assert group.extension().wait(DEADLINE_S) == ["colorsys"]
        assert (tmp_path / "logs" / "rank-0.log").exists()
        cluster.stop_job()
    wait_until(lambda: detached_names() == [])
