"""What a launch that fails gives back of the devices that were held for it; Ray's part is recorded."""

import pytest

from forked_job import ForkedJob
from rlinf.scheduler.planning import Topology
from rlinf.scheduler.session import Session
from rlinf.scheduler.worker.processes import Processes


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


def test_a_launch_that_is_refused_keeps_nothing_for_others(processes, monkeypatch):
    give_back = processes.reserve("actor", {0: ["0"]}, 0)
    with monkeypatch.context() as patch:
        patch.setattr(processes._holds, "take", lambda _wanted: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            processes.reserve("rollout", {0: ["0"]}, 0)
    give_back()
    assert processes._holds.held == set()
