"""Processes are told apart, and none is ended by mistake."""

import os
import signal
import subprocess
import sys

import pytest

from rlinf_scheduler.proc import (
    ProcessId,
    held,
    living,
    marked,
    send,
    wait_for_ends,
    with_descendants,
)


def process(pid, start=1):
    return ProcessId(pid, start, "p")


@pytest.fixture
def sleeper():
    """A process that was started with a mark, and ends when it is told."""
    with subprocess.Popen(
        [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"],
        stdout=subprocess.PIPE,
        env={**os.environ, "A_MARK": "mine"},
    ) as started:
        started.stdout.readline()
        yield started
        started.kill()


def own(found, popen):
    return [process for process in found if process.pid == popen.pid]


def test_descendants_are_children_and_theirs_and_nobody_elses():
    everybody = {process(1): 0, process(2): 1, process(3): 2, process(4): 1, process(5): 4}
    assert set(with_descendants([process(2)], everybody)) == {process(2), process(3)}


def test_a_number_that_another_process_has_by_now_is_not_followed():
    everybody = {process(2, start=9): 1, process(3): 2}
    assert with_descendants([process(2, start=1)], everybody) == []


def test_a_process_is_found_by_the_variable_that_it_was_started_with(sleeper):
    assert len(own(marked("A_MARK", "mine"), sleeper)) == 1
    assert not own(marked("A_MARK", "min"), sleeper)
    assert not own(marked("A_MARK", "mine!"), sleeper)


def test_a_signal_reaches_the_process_and_its_end_is_waited_for(sleeper):
    (found,) = own(living(), sleeper)
    with held([found]) as descriptors:
        assert wait_for_ends(descriptors.values(), 0.0) == set(descriptors.values())
        send(descriptors.values(), signal.SIGTERM)
        assert wait_for_ends(descriptors.values(), 60) == set()
        send(descriptors.values(), signal.SIGTERM)  # it is gone: nothing happens
    assert sleeper.wait(60) == -signal.SIGTERM


def test_who_began_at_another_time_is_not_held(sleeper):
    (found,) = own(living(), sleeper)
    with held([ProcessId(found.pid, found.start - 1, found.name)]) as descriptors:
        assert descriptors == {}


def test_who_has_ended_and_was_not_buried_does_not_live(sleeper):
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not own(living(), sleeper)


TITLED = """
import os
from rlinf_scheduler.host.processes import set_title
os.getpid = os.getppid  # as where /proc is that of a namespace around this process's
set_title("actor:0")
print(open("/proc/self/cmdline").read().strip(chr(0)))
"""


def test_a_process_has_its_title_where_it_has_another_number_than_in_proc():
    done = subprocess.run([sys.executable, "-c", TITLED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "actor:0\n")
