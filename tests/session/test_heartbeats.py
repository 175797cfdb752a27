"""Real processes that are stopped: the home tells of it, and of their going on."""

import queue

import death_roles
from job_processes import Job
from rlinf_scheduler.comm.transport.peer_session import GRACE_S
from rlinf_scheduler.config.cluster_config import DEFAULT_UNREACHABLE_AFTER_S
from rlinf_scheduler.events import WorkerResponsive, WorkerUnresponsive

DEADLINE_S = 60.0


def test_a_stopped_process_is_told_of_and_so_is_its_going_on():
    # Side by side: it takes the same seconds of both.
    with Job("unix") as near, Job("tcp") as far:
        watched = [Watched(job) for job in (near, far)]
        for each in watched:
            each.other.stop()
        for each in watched:
            silent = each.told.get(timeout=DEADLINE_S)
            assert isinstance(silent, WorkerUnresponsive)
            assert (silent.group, silent.rank) == ("rollout", 3)
            assert silent.reason.startswith("nothing heard for ")
            assert silent.silent_s < GRACE_S / 2
        for each in watched:
            each.other.go_on()
            again = each.told.get(timeout=DEADLINE_S)
            assert isinstance(again, WorkerResponsive)
            assert (again.group, again.rank) == ("rollout", 3)
            assert each.endpoint.process_id not in each.job.driver.messenger.peers.fenced


class Watched:
    """A rank of a job, and what the job's driver is told of it."""

    def __init__(self, job):
        self.job = job
        self.told = queue.SimpleQueue()
        job.driver.bus.subscribe(self.told.put)
        self.other = job.start(death_roles.greet, name="rollout:3", where="there")
        self.endpoint = self.other.receive()


def test_the_default_in_the_config_is_that_of_a_session():
    assert DEFAULT_UNREACHABLE_AFTER_S == GRACE_S
