"""A process's membership in the job."""

import os
import select
import signal
import threading

import pytest

from rlinf_scheduler.channel import Channel, ChannelSpec, host_channel
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import CommError
from rlinf_scheduler.events import JobLost
from rlinf_scheduler.session import Session, current_or_none, set_current
from rlinf_scheduler.session import session as session_module
from scarce_threads import refuse_thread_object
from waits import wait_until

DEADLINE_S = 60.0


def fail():
    raise SystemExit("a mistake")


@pytest.fixture
def left_beside(session):
    """A session that is being left, until what it gives is set."""
    undoing, go_on = threading.Event(), threading.Event()

    def undo():
        undoing.set()
        go_on.wait(DEADLINE_S)

    session.on_close_last(undo)
    session.leave("Ray's head is gone")
    assert undoing.wait(DEADLINE_S)
    yield go_on
    go_on.set()


def check_closing_waits(session, left_beside):
    closing = threading.Thread(target=session.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    left_beside.set()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_driver_whose_io_thread_ends_leaves_the_job_and_undoes_what_it_did(session, caplog):
    undone, heard = threading.Event(), []
    session.bus.subscribe(heard.append)
    session.on_close_last(undone.set)
    session.messenger.submit(fail)
    assert undone.wait(DEADLINE_S)
    assert session.closed
    assert heard == [JobLost(session.failure)]
    assert current_or_none() is None
    assert "I/O thread ended: SystemExit('a mistake')" in session.failure
    assert any(
        record.levelname == "CRITICAL" and "leaves the job" in record.message for record in caplog.records
    )


def test_a_listener_that_closes_what_is_being_left_holds_up_nobody(session):
    outlives, left = [], threading.Event()

    def close(_event):
        wait_until(lambda: not session.bus._events.empty())  # the bus is being closed
        session.close()

    def note(_left):
        outlives.append(session.bus._thread.is_alive())
        left.set()

    session.bus.subscribe(close)
    session.leave("Ray's head is gone")
    (leaving,) = session._leaving
    leaving.add_done_callback(note)
    assert left.wait(DEADLINE_S)
    assert outlives == [False]


@pytest.mark.parametrize("how", ["by its I/O thread", "in its I/O thread's place"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_process_that_has_to_leave_the_job_does_so_though_it_can_start_no_thread(session, monkeypatch, how):
    refused = refuse_thread_object(monkeypatch)
    undone = threading.Event()
    session.on_close(undone.set)
    if how == "by its I/O thread":
        session.messenger.submit(lambda: session.leave("Ray's head is gone"))
    else:
        session.messenger.submit(fail)
    assert undone.wait(DEADLINE_S)
    assert refused.is_set()
    assert session.closed


def test_who_closes_while_the_job_is_left_beside_waits_until_that_is_done(session, left_beside):
    check_closing_waits(session, left_beside)
    with pytest.raises(CommError, match="Ray's head is gone"):
        session.directory.lookup("nobody", 0.0)


def test_a_driver_that_leaves_in_order_has_not_failed(session):
    heard = []
    session.bus.subscribe(heard.append)
    session.close()
    assert session.closed
    assert not session.failure
    assert heard == []


def test_a_thread_that_waits_when_the_program_is_interrupted_is_told_so(secret):
    told = Promise()

    def work(session):
        channel = Channel.connect(host_channel(session, ChannelSpec("nothing comes")).spec.name)
        taking = channel.get(async_op=True)
        taking.settled.add_done_callback(lambda done: told.set_result(done.exception(0)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Session(secret, "driver") as session:
        work(session)
    assert "this process was interrupted, and has left the cluster" in str(told.result(DEADLINE_S))


def test_a_job_that_is_lost_in_two_ways_at_once_is_left_when_all_is_undone(session, left_beside):
    session.leave("another driver has stopped it")
    assert session.failure == "Ray's head is gone"
    # The second one finds nothing to undo.
    wait_until(lambda: [thread.name for thread in threading.enumerate()].count("rlinf-leave-job") == 1)
    check_closing_waits(session, left_beside)


def test_a_child_that_is_forked_while_the_job_is_left_does_not_wait_for_its_parents_thread(
    session, left_beside, monkeypatch
):
    monkeypatch.setattr(session_module, "UNDONE_WITHIN_S", DEADLINE_S)
    set_current(session)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            session.close()
            status = 0
        finally:
            os._exit(status)
    descriptor = os.pidfd_open(child)
    ended, _, _ = select.select([descriptor], [], [], DEADLINE_S / 2)
    os.close(descriptor)
    if not ended:
        os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == 0
