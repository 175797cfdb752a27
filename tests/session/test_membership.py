"""What one process has in a job, and what becomes of it."""

import os
import signal
import threading

import pytest

from rlinf.testing import LocalRuntime
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.channel.connections import ChannelConnections
from rlinf_scheduler.comm import ClusterSecret
from rlinf_scheduler.errors import ClusterError, CommError
from rlinf_scheduler.events import WorkerLogged
from rlinf_scheduler.mailbox import open_mailbox
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.session import EventBus, Session, current_session, set_current
from rlinf_scheduler.weights import open_weights

DEADLINE_S = 60.0


class Interrupted(Exception):
    pass


class Counted:
    """A service that counts how often it is made."""

    made = 0

    def __init__(self, session):
        type(self).made += 1
        self.thread = threading.current_thread()
        self.on_io_thread = session.messenger.on_io_thread()


@pytest.fixture
def counted():
    return type("Counted", (Counted,), {"made": 0})


def test_a_service_is_made_once_on_the_io_thread_however_many_threads_ask(session, counted):
    found = []
    start = threading.Barrier(8)

    def ask():
        start.wait(DEADLINE_S)
        found.append(session.service(counted))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert counted.made == 1
    assert len({id(service) for service in found}) == 1
    assert found[0].on_io_thread


@pytest.mark.interrupted
def test_a_signal_handler_gets_the_service_that_the_interrupted_thread_is_waiting_for(session, counted):
    found = []
    blocked, go_on = threading.Event(), threading.Event()

    def hold_up():
        blocked.set()
        go_on.wait(DEADLINE_S)

    def handle(number, frame):
        go_on.set()
        found.append(session.service(counted))
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handle)
    try:
        session.messenger.submit(hold_up)
        assert blocked.wait(DEADLINE_S)
        with pytest.raises(Interrupted):  # noqa: PT012 - on a busy machine it comes before the thread waits
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            session.service(counted)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert session.service(counted) is found[0]
    assert counted.made == 1


@pytest.fixture
def in_no_job(monkeypatch):
    """Let nothing be open around the test; a job that other tests share is there again after it."""
    monkeypatch.setattr("rlinf_scheduler.session.session._current", None)
    monkeypatch.setattr("rlinf_scheduler.session.session._entered", [])


def test_what_a_service_raises_reaches_whoever_asked_and_the_next_one_tries_again(session):
    attempts = []

    def make(of):
        attempts.append(of)
        if len(attempts) == 1:
            raise LookupError("not yet")
        return "made"

    with pytest.raises(LookupError, match="not yet"):
        session.service(make)
    assert session.service(make) == "made"
    assert attempts == [session, session]


def test_what_was_provided_stands_for_the_service_and_is_a_fact(session, counted):
    assert session.fact(counted) is None
    session.provide(counted, "instead")
    assert session.service(counted) == session.fact(counted) == "instead"
    assert counted.made == 0
    assert session.fact(Topology) == Topology.parse("1")


def test_a_session_that_was_left_makes_no_service_any_more(session, counted):
    kept = session.service(counted)
    session.close()
    assert session.service(counted) is kept
    with pytest.raises(CommError, match="left the cluster"):
        session.service(open_weights)


def test_a_step_that_cannot_be_undone_keeps_up_no_other_and_the_order_is_the_reverse(session, caplog):
    undone = []
    session.on_close_last(lambda: undone.append("last"))
    session.on_close(lambda: undone.append("first added"))
    session.on_close(lambda: 1 / 0)
    session.on_close(lambda: undone.append("last added"))
    session.close()
    session.close()
    assert undone == ["last added", "first added", "last"]
    assert "a step failed" in caplog.text


def test_the_services_of_a_session_are_of_one_messenger_and_there_is_one_of_each(session):
    for make in (ChannelConnections, open_mailbox, open_weights):
        assert session.service(make) is session.service(make)


def test_only_a_bus_with_listeners_has_a_thread():
    bus = EventBus()
    before = set(threading.enumerate())
    bus.emit(WorkerLogged("nobody", 0, 20, "hears this"))
    assert bus.flush()
    assert set(threading.enumerate()) <= before
    heard = []
    bus.subscribe(heard.append)
    event = WorkerLogged("somebody", 0, 20, "hears this")
    bus.emit(event)
    assert bus.flush(DEADLINE_S)
    assert heard == [event]
    bus.close()
    EventBus().close()


def test_a_session_has_one_thread_of_its_own():
    before = set(threading.enumerate())
    with LocalRuntime():
        Channel.create("items").put(1)
        assert [t.name for t in threading.enumerate() if t not in before] == ["comm-driver"]


def test_a_forked_child_may_join_as_a_process_of_its_own(session):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(ClusterError, match="forked child"):
                current_session()
            with pytest.raises(CommError, match="forked child"):
                session.service(open_weights)
            with LocalRuntime():
                Channel.create("own").put("works")
                assert Channel.connect("own").get(timeout_s=DEADLINE_S) == "works"
            os.write(writer, b"done")
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"done"
    os.close(reader)
    assert not session.closed


def test_a_session_that_ends_takes_away_no_other_ones_place():
    first, second = (Session(ClusterSecret.generate(), name) for name in ("first", "second"))
    with first:
        set_current(second)
    assert current_session() is second
    second.close()
    with pytest.raises(ClusterError, match="no cluster in this process"):
        current_session()


@pytest.mark.usefixtures("in_no_job")
def test_who_leaves_an_inner_job_is_in_the_outer_one_again():
    with LocalRuntime() as outer:
        channel = Channel.create("outer")
        with pytest.raises(ZeroDivisionError), LocalRuntime(), LocalRuntime():
            raise ZeroDivisionError
        assert current_session() is outer
        channel.put("item")
        assert Channel.connect("outer").get(timeout_s=DEADLINE_S) == "item"
    with pytest.raises(ClusterError, match="no cluster in this process"):
        current_session()


@pytest.mark.usefixtures("in_no_job")
def test_who_leaves_a_job_is_again_in_the_one_that_was_opened_before_without_a_block():
    cluster = Session(ClusterSecret.generate(), "cluster")
    set_current(cluster)
    with LocalRuntime():
        pass
    assert current_session() is cluster
    cluster.close()
    with LocalRuntime():
        pass
    with pytest.raises(ClusterError, match="no cluster in this process"):
        current_session()


@pytest.mark.usefixtures("in_no_job")
def test_an_inner_job_that_fails_is_told_of_until_it_is_left():
    with LocalRuntime() as outer:
        with LocalRuntime() as inner:
            inner.leave("it is cut off")
            with pytest.raises(ClusterError, match="it is cut off"):
                current_session()
        assert current_session() is outer


@pytest.mark.usefixtures("in_no_job")
def test_who_leaves_the_outer_job_first_is_in_none_afterwards():
    with LocalRuntime() as outer, LocalRuntime() as inner:
        outer.close()
        assert current_session() is inner
    with pytest.raises(ClusterError, match="no cluster in this process"):
        current_session()


def test_a_forked_child_is_in_no_job_of_its_parents():
    with LocalRuntime(), LocalRuntime() as inner:
        child = os.fork()
        if child == 0:
            try:
                inner.__exit__(None, None, None)
                with pytest.raises(ClusterError, match="forked child"):
                    current_session()
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
