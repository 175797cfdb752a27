"""A process's membership in the job."""

import threading

import pytest

from rlinf.scheduler.session import current_or_none

DEADLINE_S = 60.0


def fail():
    raise SystemExit("a mistake")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_driver_whose_io_thread_ends_leaves_the_job_and_undoes_what_it_did(session, caplog):
    undone = threading.Event()
    session.on_close(undone.set)
    session.messenger.submit(fail)
    assert undone.wait(DEADLINE_S)
    assert session.closed
    assert current_or_none() is None
    assert "I/O thread ended: SystemExit('a mistake')" in session.failure
    assert any(
        record.levelname == "CRITICAL" and "leaves the job" in record.message for record in caplog.records
    )


def test_a_driver_that_leaves_in_order_has_not_failed(session):
    session.close()
    assert session.closed
    assert not session.failure
