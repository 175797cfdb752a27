"""Ranks that are given up while they live: behind a link that is cut, or on a node that Ray declared dead."""

import os
import re
import signal
import threading

import pytest
from ray_workers import NeverReady, Probe

from forked_job import ForkedJob
from orphaned_ranks import ProcessesOutOfReach
from rlinf.scheduler import PackedPlacementStrategy
from rlinf_scheduler.comm.transport.peer_session import Loss
from rlinf_scheduler.errors import LaunchError, WorkerDied
from rlinf_scheduler.events import WorkerLost, WorkerStarted
from waits import wait_until

CUT = "unreachable for 30.0 s: silent"


@pytest.fixture
def job(monkeypatch):
    """Its ranks cannot be killed, and Ray says nothing of them."""
    monkeypatch.setattr("rlinf_scheduler.worker.supervision.UNSAID_GRACE_S", 100.0)
    monkeypatch.setattr("rlinf_scheduler.worker.supervision.STOP_GRACE_S", 0.0)
    processes = ProcessesOutOfReach()
    processes.watches = False
    job = ForkedJob(processes)
    yield job
    for process in processes.started:
        process._process.kill()
    job.close()


def give_up(job, name):
    """Lose a process, as if its link had been cut for too long."""
    peers = job.session.messenger.peers
    endpoint = job.session.directory.lookup(name, 60).endpoint
    job.session.messenger.submit(lambda: peers.lose(peers.at(endpoint), CUT, Loss.UNREACHABLE))


def test_calls_of_the_whole_group_end_at_once_later_ones_are_refused_and_it_ends_by_itself(job):
    group = Probe.create_group().launch(job, PackedPlacementStrategy(0, 1), name="cut")
    heard = threading.Event()
    job.session.bus.subscribe(lambda event: isinstance(event, WorkerLost) and heard.set())
    beside, its_own = group.execute_on(0).wait_for_gate(), group.execute_on(1).hold_the_process()
    wait_until(lambda: group.execute_on(1).is_held().wait(60) == [True])
    give_up(job, "cut:1")
    for call in (beside, its_own):
        with pytest.raises(WorkerDied, match=f"rank 1 of 'cut' died during .*: {CUT}"):
            call.wait(60)
    with pytest.raises(WorkerDied, match=CUT):
        group.add(1)
    assert heard.wait(60)
    wait_until(lambda: not job.processes.started[1]._process.is_alive())
    assert job.processes.started[0]._process.is_alive()


def test_a_call_to_a_rank_that_ignores_deaths_is_refused_with_the_same_words(job):
    group = Probe.create_group().launch(
        job, PackedPlacementStrategy(0, 1), name="cut tolerant", on_failure="ignore"
    )
    give_up(job, "cut tolerant:1")
    wait_until(lambda: not job.processes.started[1]._process.is_alive())
    with pytest.raises(WorkerDied, match=CUT):
        group.execute_on(1).add(1).wait(60)
    assert group.execute_on(0).add(1).wait(60) == [1]


def test_the_successor_of_a_rank_that_nobody_can_end_starts_when_that_is_fenced(job, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.worker.supervision.kill_process", lambda *_: False)
    monkeypatch.setattr("rlinf_scheduler.worker.successors.ENDED_WITHIN_S", 0.05)
    group = Probe.create_group().launch(
        job, PackedPlacementStrategy(0, 1), name="fenced", on_failure="restart"
    )
    before = job.session.directory.lookup("fenced:1", 60).endpoint
    started = []

    def hear(event):
        if isinstance(event, WorkerStarted) and event.group == "fenced":
            started.append(before.process_id in job.session.messenger.peers.fenced)

    job.session.bus.subscribe(hear)
    old = job.processes.started[1]._process
    os.kill(old.pid, signal.SIGSTOP)
    give_up(job, "fenced:1")
    assert group.add(1).wait(60) == [1, 2]
    wait_until(lambda: started == [True])
    assert old.is_alive()
    os.kill(old.pid, signal.SIGCONT)
    wait_until(lambda: not old.is_alive())  # it hears that it is dead
    assert group.add(1).wait(60) == [1, 2]


def test_a_launch_ends_with_a_rank_that_is_cut_off(job):
    launched = []

    def launch():
        try:
            NeverReady.create_group(1).launch(job, PackedPlacementStrategy(0, 1), name="starting")
        except LaunchError as error:
            launched.append(str(error))

    thread = threading.Thread(target=launch)
    thread.start()
    job.session.directory.lookup("starting:1", 60)
    give_up(job, "starting:1")
    thread.join(60)
    assert re.search(rf"rank 1 died while .*\n  {CUT}$", launched[0])
