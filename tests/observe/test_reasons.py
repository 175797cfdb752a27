"""Errors at deadlines, and a Ctrl-C, say why nothing came."""

import os
import pickle
import re
import signal
import subprocess
import threading

import pytest
from msgspec.structs import replace

from programs import Program
from rlinf.scheduler import Channel, __version__
from rlinf.testing import LocalRuntime
from rlinf_scheduler.errors import (
    BatchTimeout,
    ChannelTimeout,
    ClusterError,
    CommError,
    CommTimeout,
    ResultTimeout,
)
from rlinf_scheduler.observe import reasons
from rlinf_scheduler.observe.outside import is_stopped
from rlinf_scheduler.observe.why import why_of_job
from rlinf_scheduler.session import current_session
from rlinf_scheduler.session.job_file import find_job
from waits import wait_until

DEADLINE_S = 60.0
WHY = "get_batch('trajectories', 8): 3 of 8 are there"


def waiting_for_a_batch(**options):
    channel = Channel.create("trajectories")
    channel.put("one", weight=3)
    return channel.get_batch(batch_weight=8, **options)


def test_a_deadline_says_why(monkeypatch):
    monkeypatch.setattr(reasons, "ASK_FROM_S", 0.1)
    for late in ("MIN_LATE_S", "MAX_LATE_S"):  # this machine may be busy
        monkeypatch.setattr(reasons, late, 20.0)
    with LocalRuntime(), pytest.raises(BatchTimeout) as caught:
        waiting_for_a_batch(timeout_s=0.1)
    assert WHY in caught.value.why
    assert WHY in str(caught.value).splitlines()[1]


def test_who_polls_asks_nobody():
    with LocalRuntime(), pytest.raises(BatchTimeout) as caught:
        waiting_for_a_batch(timeout_s=0.1)
    assert caught.value.why == ""


def test_a_stuck_io_thread_neither_delays_nor_replaces_what_ended_the_wait(monkeypatch):
    monkeypatch.setattr(reasons, "INTERRUPTED_S", 0.05)
    freed, told = threading.Event(), []
    with LocalRuntime():
        session = current_session()
        session.messenger.submit(lambda: freed.wait(DEADLINE_S))
        late, interrupted = ResultTimeout("actor.train()", 1.0, ["actor:1"]), KeyboardInterrupt()

        def explain():
            reasons.explain(session, late, 1.0, 1.05)
            monkeypatch.setattr(reasons, "ASK_EVERY_S", 0.0)
            reasons.explain(session, interrupted, None, 2.0)
            told.append(freed.is_set())

        explaining = threading.Thread(target=explain)
        explaining.start()
        wait_until(lambda: told)
        freed.set()
        explaining.join(DEADLINE_S)
    assert told == [False]
    assert (late.why, getattr(interrupted, "__notes__", [])) == ("", [])


def test_what_fails_while_a_reason_is_sought_takes_the_place_of_nothing(monkeypatch):
    def fail(*_):
        raise CommError("it cannot be asked")

    monkeypatch.setattr(reasons.Reasons, "reason", fail)
    with LocalRuntime(), pytest.raises(ResultTimeout), reasons.explaining(current_session(), 1.0):
        raise ResultTimeout("actor.train()", 1.0, ["actor:1"])


@pytest.mark.parametrize(
    "error",
    [
        ResultTimeout("actor.train()", 3.0, ["actor:1"]),
        ChannelTimeout("c", "q", "get", 1.5, "0 items"),
        CommTimeout("recv", "rollout:0", 1.5, "it to send"),
    ],
)
def test_the_reason_travels_with_the_error(error):
    before = str(error)
    error.explain("actor:1 is stopped")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == f"{before}\n  actor:1 is stopped"


_DRIVER = """
from rlinf.scheduler import Channel
from rlinf_scheduler.observe import reasons
from rlinf.testing import LocalRuntime

reasons.ASK_FROM_S, reasons.INTERRUPTED_S = 0.0, 20.0
with LocalRuntime():
    trajectories = Channel.create("trajectories")
    trajectories.put("one", weight=3)
    print("ready", flush=True)
    trajectories.get_batch(batch_weight=8)
"""


def test_a_driver_elsewhere_is_not_taken_for_the_process_of_its_number_here():
    with LocalRuntime(), subprocess.Popen(["sleep", "60"]) as stopped:
        try:
            os.kill(stopped.pid, signal.SIGSTOP)
            wait_until(lambda: is_stopped(stopped.pid))
            job = find_job(os.getpid())
            elsewhere = replace(job, pid=stopped.pid, home=replace(job.home, machine_id="elsewhere"))
            with pytest.raises(CommError):
                why_of_job(elsewhere, "rlinf-test")
        finally:
            stopped.kill()


def test_a_job_of_another_version_is_not_joined():
    with LocalRuntime():
        job = find_job(os.getpid())
        assert job.version == __version__
        for version, shown in (("9.9", "9.9"), ("", "unknown")):
            problem = rf"runs on version {shown} of rlinf-scheduler, and this program has {job.version}: use the same"
            with pytest.raises(ClusterError, match=problem):
                replace(job, version=version).attach("rlinf-test")


def test_ctrl_c_says_what_the_driver_waited_for():
    with Program("-c", _DRIVER) as process:
        assert process.stdout.readline() == "ready\n"
        wait_until(lambda: "get_batch" in str(why_of_job(find_job(process.pid), "rlinf-test")))
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
    assert "KeyboardInterrupt" in told
    assert re.search(rf"it waited for this: driver waits.* in {re.escape(WHY)}", told)
