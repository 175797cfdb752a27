"""A look at a job that fails costs that look only; and a clock that jumps, nothing."""

import time
from pathlib import Path

import pytest

from rlinf.testing import LocalRuntime
from rlinf_scheduler.observe.own_stats import OwnStats
from rlinf_scheduler.observe.status_service import TIMEOUT_S, StatusService, begin_status, received
from rlinf_scheduler.session import current_session
from waits import wait_until


def test_after_a_look_that_failed_the_job_can_be_looked_at_again(monkeypatch):
    with LocalRuntime():
        session = current_session()
        service = session.service(StatusService)
        with monkeypatch.context() as patch:
            patch.setattr(
                session.service(OwnStats), "now", lambda: Path("/nowhere").read_text()
            )  # no file can be opened
            with pytest.raises(Exception, match="nowhere"):
                received(begin_status(session))
        service._asked_at -= TIMEOUT_S
        assert received(begin_status(session)).driver_pid > 0


def test_rates_are_of_the_last_look_also_when_the_clock_was_set_back(monkeypatch):
    with LocalRuntime():
        session = current_session()
        service = session.service(StatusService)
        received(begin_status(session))
        monkeypatch.setattr(time, "time", lambda now=time.time: now() - 3600)
        before, _ = service._base
        assert before.at_s > received(begin_status(session, 0.0)).at_s + 3000
        wait_until(lambda: received(begin_status(session, 0.0)) and service._base[0] is not before)
