"""Ranks that nobody is left for end by themselves: their node's process of Ray's is gone, or the job's home."""

import contextlib
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ray_workers import Probe

from forked_job import ForkedJob
from orphaned_ranks import (
    BehindRaylets,
    BehindRayletsAndScripts,
    BehindScripts,
    LastingProcesses,
    ProcessesOutOfReach,
    launch_and_wait,
)
from rlinf.scheduler import PackedPlacementStrategy
from rlinf_scheduler.errors import WorkerDied
from rlinf_scheduler.events import NodeLost
from rlinf_scheduler.worker.node_watch import NodeWatch
from waits import DEADLINE_S, wait_until

# It takes a second; on a busy machine more.
SOON_S = 60.0
# A launch and two calls.
START_S = 3 * DEADLINE_S


@contextlib.contextmanager
def job_of(processes):
    job = ForkedJob(processes)
    try:
        yield job
    finally:
        for process in processes.started:
            process._process.kill()
        job.close()


@contextlib.contextmanager
def watching(pids):
    """Descriptors of processes, which are readable once they have ended."""
    with contextlib.ExitStack() as stack:
        descriptors = []
        for pid in pids:
            descriptors.append(os.pidfd_open(pid))
            stack.callback(os.close, descriptors[-1])
        yield descriptors


def launch_two(job, *, busy, **options):
    """Two ranks and their process ids; if they are `busy`, they are in a call that does not return."""
    group = Probe.create_group().launch(job, PackedPlacementStrategy(0, 1), name="left", **options)
    pids = [who["pid"] for who in group.who().wait(60)]
    waiting = group.hold_the_process() if busy else None
    wait_until(lambda: not busy or all(group.is_held().wait(60)))
    return group, waiting, pids


def assert_all_end(descriptors):
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], SOON_S)[0]


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a call"])
def test_ranks_end_with_the_process_that_started_them(busy):
    with job_of(BehindRaylets()) as job:
        _group, _waiting, pids = launch_two(job, busy=busy)
        with watching(pids) as ranks:
            for process in job.processes.started:
                os.kill(process._process.pid, signal.SIGKILL)
            assert_all_end(ranks)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a call"])
def test_ranks_end_when_the_jobs_home_is_gone_without_a_word(busy, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.worker.supervision.STOP_GRACE_S", 0.0)
    # As on another machine: nobody but the ranks themselves can end them.
    monkeypatch.setattr("rlinf_scheduler.worker.supervision.kill_process", lambda *_: None)

    def fail():
        raise SystemExit("a mistake")

    with job_of(ProcessesOutOfReach()) as job:
        _group, _waiting, pids = launch_two(job, busy=busy)
        with watching(pids) as ranks:
            job.session.messenger.submit(fail)
            assert_all_end(ranks)


def test_the_end_of_a_script_that_started_a_rank_says_nothing_of_the_node():
    """Without a raylet among its ancestors a rank stands and falls with its parent, and alone."""
    with job_of(BehindScripts()) as job:
        events = []
        job.session.bus.subscribe(events.append)
        job.processes.watches = False
        group, _waiting, pids = launch_two(job, busy=False, on_failure="ignore")
        with watching(pids[:1]) as ended:
            script = parent_of(pids[0])
            os.kill(script, signal.SIGKILL)
            assert_all_end(ended)
        told = (
            rf"rank 0 of 'left' died.*: the process that started it \(wrap\.sh, process {script}\) ended at"
        )
        with pytest.raises(WorkerDied, match=told):
            group.execute_on(0).who().wait(60)
        assert group.execute_on(1).who().wait(60)[0]["pid"] == pids[1]
        assert not any(isinstance(each, NodeLost) for each in events)


def test_a_rank_outlives_the_script_between_it_and_its_raylet_and_ends_with_the_raylet():
    with job_of(BehindRayletsAndScripts()) as job:
        job.processes.watches = False  # whoever else tells of the end may do so first
        events = []
        job.session.bus.subscribe(events.append)
        group, _waiting, pids = launch_two(job, busy=False)
        with watching([pids[0], parent_of(pids[0])]) as (rank, script):
            raylet = parent_of(parent_of(pids[0]))
            os.kill(parent_of(pids[0]), signal.SIGKILL)
            assert_all_end([script])
            assert group.execute_on(0).who().wait(60)[0]["pid"] == pids[0]
            os.kill(raylet, signal.SIGKILL)
            assert_all_end([rank])
        wait_until(lambda: any(isinstance(each, NodeLost) for each in events))


@pytest.mark.timeout(START_S + 2 * SOON_S)
@pytest.mark.parametrize("state", ["idle", "busy", "busy, threadless"])
def test_ranks_and_what_they_have_started_end_when_their_launcher_is_killed(state):
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    driver = context.Process(target=launch_and_wait, args=(theirs, state))
    driver.start()
    theirs.close()
    try:
        assert ours.poll(START_S)
        pids = ours.recv()
        assert len(pids) == 4
        with watching(pids) as ended:
            driver.kill()
            assert_all_end(ended)
    finally:
        driver.kill()
        driver.join(SOON_S)
        ours.close()


@pytest.mark.parametrize("end", ["kill", "terminate", "shutdown"])
def test_what_ranks_have_started_ends_with_them_however_they_end(forked_job, end):
    group = Probe.create_group().launch(forked_job, PackedPlacementStrategy(0, 1), name="parents")
    with watching(group.start_a_child().wait(60)) as children:
        if end == "kill":
            for process in forked_job.processes.started:
                process.kill()
        else:
            getattr(group, end)()
        assert_all_end(children)


CHILDREN = """
import subprocess, sys
from rlinf_scheduler.host.processes import end_descendants
sleep = [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"]
script = "import subprocess, sys; p = subprocess.Popen(%r); print(p.pid, flush=True); p.wait()" % (sleep,)
child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
grandchild = child.stdout.readline().strip() or child.stdout.readline().strip()
end_descendants()
print(child.wait(20), grandchild, flush=True)
"""


def test_descendants_are_ended_and_the_process_itself_is_not():
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN], capture_output=True, text=True, timeout=60, check=True
    )
    status, grandchild = done.stdout.split()
    assert status == str(-signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{grandchild}").exists())


def test_where_rays_head_is_gone_ranks_end_themselves_when_their_home_leaves():
    with job_of(LastingProcesses()) as job:
        _, _, pids = launch_two(job, busy=False)
        job.session.service(NodeWatch).headless = "Ray's head has not answered for 30 s"
        with watching(pids) as descriptors:
            job.session.leave("Ray's head is gone")
            assert_all_end(descriptors)
