"""Drivers with a Ray of their own that are interrupted, terminated and killed: nothing of them stays.

`ENDS=100` ends so many at random moments.
"""

import os
import random
import select
import signal
import sys
import time
import uuid
from pathlib import Path

import pytest

from programs import Program
from rlinf_scheduler.proc import end_all, living, marked

PROGRAM = Path(__file__).with_name("driver_that_is_ended.py")
# A rank in a call is given two seconds, and what is left another two; on a busy machine all takes longer.
SOON_S = 60.0
# In which it begins, starts its Ray, launches, and waits.
LIFE_S = 12.0
MARK = "RLINF_TEST_MARK"
STATUS = {
    signal.SIGINT: -signal.SIGINT,
    signal.SIGTERM: 128 + signal.SIGTERM,
    signal.SIGKILL: -signal.SIGKILL,
}


class Driver:
    """The program, in a session of its own."""

    def __init__(self):
        self._mark = uuid.uuid4().hex
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        environment[MARK] = self._mark
        self.process = Program(PROGRAM, with_ray=True, new_session=True, env=environment)

    def reach(self, stage):
        while (line := self.process.stdout.readline().strip()) != stage:
            assert line, self.process.stderr.read()

    def left(self):
        """What it has started and lives: Ray's processes stay in its session, its guard has its environment."""
        found = {*(each for each in living() if session_of(each.pid) == self.process.pid)}
        return [each for each in found.union(marked(MARK, self._mark)) if each.pid != self.process.pid]

    def end(self, number):
        """Send a signal; its status, and how long it took until nothing was left, in seconds."""
        self.process.send_signal(number)
        sent = time.monotonic()
        self.process.wait(SOON_S)
        while left := self.left():
            assert time.monotonic() - sent < SOON_S, left
            select.select([], [], [], 0.05)
        return self.process.returncode, time.monotonic() - sent

    def close(self):
        with self.process:  # which kills it
            pass
        end_all(self.left, 0.0)


def session_of(pid):
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


@pytest.fixture
def driver():
    driver = Driver()
    yield driver
    driver.close()


@pytest.mark.ray(own=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_nothing_outlives_a_driver_whose_threads_wait_for_ever(driver, number):
    driver.reach("busy")
    assert driver.end(number)[0] == STATUS[number]


@pytest.mark.ray(own=True)
@pytest.mark.timeout(0)
@pytest.mark.skipif("ENDS" not in os.environ, reason="ENDS=100 ends so many drivers")
def test_drivers_are_ended_at_random_moments():
    for count in range(int(os.environ["ENDS"])):
        dice = random.Random(count)
        number, after_s = dice.choice(list(STATUS)), dice.uniform(0.0, LIFE_S)
        driver = Driver()
        try:
            select.select([], [], [], after_s)
            status, took_s = driver.end(number)
        finally:
            driver.close()
        sys.stdout.write(f"{count}: {number.name} after {after_s:.1f} s: status {status}, {took_s:.1f} s\n")
        sys.stdout.flush()
        assert status != 0
