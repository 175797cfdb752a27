"""What a launch that fails gives back of the devices that were held for it; Ray's part is recorded."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from forked_job import ForkedJob
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import LaunchError
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.ray_backend.holds import Taken
from rlinf_scheduler.session import Session
from rlinf_scheduler.worker.processes import Processes


class RecordedHolds:
    """Takes what nobody has taken, one hold a device."""

    def __init__(self):
        self.held = set()

    def take(self, wanted):
        names = {name for each in wanted for name in each.names}
        taken = sorted(names - self.held)
        self.held |= names
        return taken

    def release(self, taken):
        self.held -= set(taken)


@pytest.fixture
def processes():
    job = ForkedJob()
    # A rank's: the home's asks Ray, which starts one where there is none.
    with Session(job.session.secret, "actor:0", home=job.session.home) as session:
        session.provide(Topology, job.topology)
        made = Processes(session)
        made._holds = RecordedHolds()
        yield made
    job.close()


def test_devices_of_a_launch_that_fails_are_free_again(processes):
    give_back = processes.reserve("actor", {0: ["0", "1"]}, 0)
    assert processes._holds.held == {"0", "1"}
    give_back()
    assert processes._holds.held == set()


def test_another_group_of_the_job_keeps_the_devices_that_it_shares_with_one_that_fails(processes):
    of_actor = processes.reserve("actor", {0: ["0", "1"]}, 0)
    of_rollout = processes.reserve("rollout", {0: ["1"]}, 0)
    of_actor()
    assert "1" in processes._holds.held
    of_rollout()  # it took nothing, and was the last one that counted on them
    assert processes._holds.held == set()


def test_launches_that_come_and_go_leave_no_entry_behind(processes):
    stays = processes.reserve("actor", {0: ["0", "1"]}, 0)
    for _ in range(50):
        processes.reserve("rollout", {0: ["1"]}, 0)  # it ends with the job
        processes.reserve("reward", {0: ["1"]}, 0)()
    assert (len(processes._relied), len(processes._unused)) == (2, 0)
    stays()
    assert len(processes._unused) == 1
    assert "1" in processes._holds.held


def test_a_launch_that_is_refused_keeps_nothing_for_others(processes, monkeypatch):
    give_back = processes.reserve("actor", {0: ["0"]}, 0)
    with monkeypatch.context() as patch:
        patch.setattr(processes._holds, "take", lambda _wanted: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            processes.reserve("rollout", {0: ["0"]}, 0)
    give_back()
    assert processes._holds.held == set()


def test_who_wants_devices_while_they_go_back_gets_them_anew(processes, monkeypatch):
    give_back = processes.reserve("actor", {0: ["0"]}, 0)
    going, release = threading.Event(), processes._holds.release

    def release_slowly(taken):
        going.set()
        may_end.wait(0.2)  # nobody sets it: others have the time to see what is on its way back
        release(taken)

    may_end = threading.Event()
    monkeypatch.setattr(processes._holds, "release", release_slowly)
    with ThreadPoolExecutor() as threads:
        gone = threads.submit(give_back)
        assert going.wait(60)
        threads.submit(processes.reserve, "rollout", {0: ["0"]}, 0).result(60)
        gone.result(60)
    assert processes._holds.held == {"0"}


def test_a_launch_that_waits_for_devices_can_be_given_up(processes, monkeypatch):
    given_up, asked = Promise(), threading.Event()

    def refuse(wanted):
        asked.set()
        raise Taken(wanted[0].node_id, wanted[0].names, [])

    monkeypatch.setattr(processes._holds, "take", refuse)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(processes.reserve, "actor", {0: ["0"]}, 3600, given_up)
        assert asked.wait(60)
        given_up.set_result(None)
        with pytest.raises(LaunchError, match="it was ended while it waited for devices"):
            waiting.result(60)
    assert not processes._relied
