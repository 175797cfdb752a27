"""Real processes that are stopped: the home tells of it, and of their going on."""

import queue

import pytest

import death_roles
from job_processes import Job
from rlinf.scheduler.comm.transport.peer_session import GRACE_S
from rlinf.scheduler.config.cluster_config import DEFAULT_UNREACHABLE_AFTER_S
from rlinf.scheduler.events import WorkerResponsive, WorkerUnresponsive

DEADLINE_S = 60.0


@pytest.fixture(params=["unix", "tcp"])
def job(request):
    with Job(request.param) as made:
        yield made


def test_a_stopped_process_is_told_of_and_so_is_its_going_on(job):
    told = queue.SimpleQueue()
    job.driver.bus.subscribe(told.put)
    other = job.start(death_roles.greet, name="rollout:3", where="there")
    endpoint = other.receive()
    other.stop()
    silent = told.get(timeout=DEADLINE_S)
    assert isinstance(silent, WorkerUnresponsive)
    assert (silent.group, silent.rank) == ("rollout", 3)
    assert silent.reason.startswith("nothing heard for ")
    assert silent.silent_s < GRACE_S / 2
    other.go_on()
    again = told.get(timeout=DEADLINE_S)
    assert isinstance(again, WorkerResponsive)
    assert (again.group, again.rank) == ("rollout", 3)
    assert endpoint.process_id not in job.driver.messenger.peers.fenced


def test_the_default_in_the_config_is_that_of_a_session():
    assert DEFAULT_UNREACHABLE_AFTER_S == GRACE_S
