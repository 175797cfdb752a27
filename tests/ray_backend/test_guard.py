"""What a driver has started ends with it, however it ended: on real processes, without Ray."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from waits import wait_until

PROGRAM = """
import os, signal, subprocess, sys
from rlinf_scheduler.ray_backend.guard import Guard

STAYS = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"

def start():
    child = subprocess.Popen([sys.executable, "-c", STAYS], stdout=subprocess.PIPE)
    child.stdout.readline()
    return child.pid

logs = sys.argv[1] + "/session_2026-01-02_03-04-05_678901_%d/logs" % os.getpid()
os.makedirs(logs)
guard = Guard(grace_s=0.1)
with guard.marking():
    marked = start()
# As Ray's agents: a title, an environment that cannot be read, a log of the session's.
with open(logs + "/agent.log", "w") as log:
    titled = subprocess.Popen(["ray::Agent", "600"], executable="/bin/sleep", env={}, stdout=log).pid
print(marked, titled, guard._process.pid, start(), flush=True)
if sys.argv[2] == "stop":
    guard.stop()
    print("stopped", flush=True)
signal.pause()
"""
SOON_S = 60.0


@contextlib.contextmanager
def driver(folder, what):
    """A driver with a guard; descriptors of what it has started, the last one of what is not the guard's to end."""
    command = [sys.executable, "-c", PROGRAM, folder, what]
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        pids = process.stdout.readline().split()
        descriptors = [os.pidfd_open(int(pid)) for pid in pids]
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
        stack.callback(signal.pidfd_send_signal, descriptors[-1], signal.SIGKILL)
        if what == "stay":
            wait_until(lambda: ignores_sigterm(pids[2]))
        yield process, descriptors


def ignores_sigterm(pid):
    """Whether it does: so a guard is ready."""
    (ignored,) = (
        line.split()[1]
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("SigIgn:")
    )
    return bool(int(ignored, 16) & 1 << (signal.SIGTERM - 1))


def has_ended(descriptor, timeout_s=SOON_S):
    return bool(select.select([descriptor], [], [], timeout_s)[0])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_what_a_driver_has_started_ends_with_it_and_nothing_else(tmp_path, number):
    with driver(tmp_path, "stay") as (process, (marked, titled, guard, other)):
        process.send_signal(number)
        assert all(map(has_ended, (marked, titled, guard)))
        assert not has_ended(other, 0)


def test_a_guard_that_is_stopped_has_ended_what_was_left_and_itself(tmp_path):
    with driver(tmp_path, "stop") as (process, (marked, titled, guard, other)):
        assert process.stdout.readline() == "stopped\n"
        assert all(has_ended(each, 0) for each in (marked, titled, guard))
        assert not has_ended(other, 0)
        assert process.poll() is None


def test_a_guard_outlives_what_is_sent_to_everybody(tmp_path):
    with driver(tmp_path, "stay") as (process, (marked, _titled, guard, _other)):
        signal.pidfd_send_signal(guard, signal.SIGTERM)
        process.kill()
        assert has_ended(marked)
