"""The end of a process that another one stands or falls with is noticed, whatever the kernel allows."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from comm_fixtures import DEADLINE_S, secret, session  # noqa: F401 - fixtures
from rlinf_scheduler.host import processes

WAITS = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
# Opens a pipe, and waits for the end of the process that has started it, as a guard does.
GUARDED = """
import os, sys
from rlinf_scheduler.ray_backend import guard
def refuse(pid):
    raise PermissionError(1, "Operation not permitted")
os.pidfd_open, guard.LOOK_S = refuse, 0.01
read, write = os.pipe()
driver = os.getpid()
if os.fork() == 0:
    os.close(write)
    os.write(1, b"r")
    guard._wait_for_end_of_parent(driver)
    os.write(1, b"e")
    os._exit(0)
sys.stdin.read()
os._exit(0)
"""


@pytest.fixture(params=["told by the kernel", "refused"])
def kernel(request, monkeypatch):
    if request.param == "refused":

        def refuse(pid):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(os, "pidfd_open", refuse)
        monkeypatch.setattr(processes, "LOOK_S", 0.01)


@pytest.fixture
def child():
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as process:
        yield process
        process.stdin.close()


def test_the_end_of_a_process_is_noticed_though_nobody_has_waited_for_it(kernel, session, child):  # noqa: F811
    gone = threading.Event()
    processes.watch_process(session, child.pid, Path(f"/proc/{child.pid}").exists, gone.set)
    session.service(lambda _session: None)  # the I/O thread has had its turn
    assert not gone.is_set()
    child.stdin.close()
    assert gone.wait(DEADLINE_S)


def test_another_process_with_the_number_is_not_taken_for_it(kernel, session, child):  # noqa: F811
    gone = threading.Event()
    processes.watch_process(session, child.pid, lambda: False, gone.set)
    assert gone.wait(DEADLINE_S)


def test_a_guard_waits_for_its_driver_also_where_the_kernel_does_not_tell_of_its_end():
    command = [sys.executable, "-c", GUARDED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout.read(1) == b"r"
        driver.stdin.close()
        assert driver.stdout.read(1) == b"e"
