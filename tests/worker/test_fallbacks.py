"""Processes of one machine that cannot share memory are told of by the job's home."""

import queue

import pytest

from rlinf_scheduler.comm import Endpoint
from rlinf_scheduler.events import TransportFellBack
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.observed import tell_of_fallbacks
from rlinf_scheduler.session import Session
from rlinf_scheduler.worker.node_watch import Fallbacks

DEADLINE_S = 60.0


def heard(session, kind):
    events = queue.SimpleQueue()
    session.bus.subscribe(lambda event: isinstance(event, kind) and events.put(event))
    return events


@pytest.fixture
def job(secret):
    with Session(secret, "driver") as home:
        yield home


def test_two_processes_at_one_address_on_different_machines_are_in_containers(job):
    events, fallbacks = heard(job, TransportFellBack), job.service(Fallbacks)
    ends = [Endpoint(f"id{i}", machine, "", "") for i, machine in enumerate(("a", "b", "b"))]
    for rank, end in enumerate(ends):
        job.messenger.submit(lambda rank=rank, end=end: fallbacks.note("10.0.0.1", f"actor:{rank}", end))
    told = events.get(timeout=DEADLINE_S)
    assert told.process == "actor:1"
    assert "'actor:1' and 'actor:0' run at 10.0.0.1 and share neither files" in told.reason
    job.bus.flush()
    assert events.empty()


def test_a_process_without_shared_memory_tells_the_home_why(job, secret, monkeypatch):
    def refuse(*_):
        raise OSError("memfd_create: not permitted")

    job.service(Fallbacks)
    events = heard(job, TransportFellBack)
    monkeypatch.setattr("rlinf_scheduler.comm.shm.payloads.Arena", refuse)
    with Session(secret, "actor:0", home=job.messenger.endpoint) as session:
        tell_of_fallbacks(session)
        told = events.get(timeout=DEADLINE_S)
    assert told.process == "actor:0"
    assert told.reason == (
        "'actor:0' does without shared memory: it cannot be made here (memfd_create: not permitted)"
    )


@pytest.mark.ray
def test_a_process_that_says_so_before_it_reports_that_it_runs_is_heard(ray_cluster):
    session = ray_cluster.session
    events = heard(session, TransportFellBack)
    why = "said before anything was launched"
    session.messenger.notify(session.home, protocol.FELL_BACK, protocol.FellBack(why))
    assert events.get(timeout=DEADLINE_S).reason.endswith(why)
