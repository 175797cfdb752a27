"""`rlinf why`: another terminal asks a running job why it does not go on."""

import json
import os
import signal

import pytest

from programs import RLINF, Program, run_program
from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime

_DRIVER = """
from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime

with LocalRuntime():
    trajectories = Channel.create("trajectories")
    trajectories.put("one", weight=3)
    print("ready", flush=True)
    trajectories.get_batch(batch_weight=8)
"""


def rlinf_why(pid, *arguments):
    return run_program("-c", RLINF, "why", "--job", pid, *arguments)


@pytest.fixture
def driver():
    """A driver that waits for what does not come."""
    with Program("-c", _DRIVER) as process:
        assert process.stdout.readline() == "ready\n"
        yield process


def test_another_terminal_is_told_who_waits_and_for_what(driver):
    done = rlinf_why(driver.pid)
    assert done.returncode == 0, done.stderr
    assert "get_batch('trajectories', 8): 3 of 8 are there; its producers: driver waits itself" in done.stdout
    found = json.loads(rlinf_why(driver.pid, "--json").stdout)
    assert found["culprits"][0]["address"] == "driver"
    assert "rlinf-why" not in json.dumps(found)


def test_a_driver_that_is_stopped_is_seen_from_outside(driver):
    os.kill(driver.pid, signal.SIGSTOP)
    done = rlinf_why(driver.pid)
    assert done.stdout.startswith("driver is stopped: its process is stopped")


def test_a_job_in_which_nobody_waits_says_so():
    with LocalRuntime():
        Channel.create("idle")
        done = rlinf_why(os.getpid())
    assert done.stdout.startswith("nobody waits for anybody")
