"""The end of a process whose Ray's head does not answer."""

import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.ray_backend import holds, leaving

DEADLINE_S = 60.0
STATUS = 7
# What C code has printed lies in its own buffer, for a pipe is no terminal.
PROGRAM = """
import ctypes, sys
from rlinf_scheduler.ray_backend import leaving
leaving._end_without_ray()
print("of Python")
ctypes.CDLL(None).printf(b"of C\\n")
sys.exit(7)
"""


def test_a_process_that_ends_without_ray_has_its_own_status_and_has_written_all_that_it_printed():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, sorted(done.stdout.splitlines())) == (STATUS, ["of C", "of Python"]), done.stderr


# As a process that has joined a Ray and finds its head silent when it ends.
SILENT_AT_THE_END = """
import atexit
from rlinf_scheduler.ray_backend import leaving
leaving.ray.shutdown = lambda **_: print("Ray's part")
leaving.end_ray_by_own_callback()
if {silent}:
    atexit.register(leaving._end_without_ray)
"""


@pytest.mark.parametrize(("silent", "said"), [(True, ""), (False, "Ray's part\n")])
def test_who_finds_at_its_end_that_the_head_is_silent_ends_without_rays_part(silent, said):
    program = SILENT_AT_THE_END.format(silent=silent)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout) == (0, said), done.stderr


class StuckRay:
    """A Ray that is never left, and whose head takes connections and says nothing."""

    def __init__(self, monkeypatch, address):
        self.leaves, self.ended = threading.Event(), []
        self.goes_on = threading.Event()
        self.interrupts = 0
        context = SimpleNamespace(gcs_address=address)
        monkeypatch.setattr(leaving.ray, "is_initialized", lambda: True)
        monkeypatch.setattr(leaving.ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(leaving.ray, "shutdown", self._shutdown)
        monkeypatch.setattr(leaving, "_end_without_ray", lambda: self.ended.append(True))
        monkeypatch.setattr(leaving, "_left_alone", [])

    def _shutdown(self):
        self.leaves.set()
        interrupts, self.interrupts = self.interrupts, 0  # once: who is interrupted may begin to leave anew
        if interrupts:
            signal.pthread_kill(interrupts, signal.SIGINT)
        self.goes_on.wait(DEADLINE_S)


@pytest.fixture
def stuck(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        ray = StuckRay(monkeypatch, f"127.0.0.1:{server.getsockname()[1]}")
        yield ray
        ray.goes_on.set()


@pytest.mark.interrupted
def test_who_is_interrupted_while_a_head_is_looked_at_does_not_wait_for_it_at_its_end(stuck, monkeypatch):
    monkeypatch.setattr(leaving, "ask_raylets", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        leaving.leave_ray()
    assert stuck.ended
    assert stuck.leaves.wait(DEADLINE_S)


@pytest.mark.interrupted
def test_who_is_interrupted_while_a_silent_head_is_left_does_not_wait_for_it_at_its_end(stuck, monkeypatch):
    monkeypatch.setattr(leaving, "_LOOK_S", 0.0)
    monkeypatch.setattr(leaving, "SHUTDOWN_WITHIN_S", DEADLINE_S)
    stuck.interrupts = threading.get_ident()
    with pytest.raises(KeyboardInterrupt):
        leaving.leave_ray()
    assert stuck.ended


def test_a_head_that_cannot_be_asked_for_want_of_descriptors_is_left_as_one_that_is_silent(
    stuck, monkeypatch
):
    def refuse(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(leaving, "ask_raylets", refuse)
    monkeypatch.setattr(leaving, "SHUTDOWN_WITHIN_S", 0.01)
    leaving.leave_ray()
    assert stuck.ended


@pytest.fixture
def no_thread(monkeypatch):
    """At the end of a process Python 3.12.1 starts none."""

    def refuse(*_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(leaving, "run_beside", refuse)


def test_a_silent_head_is_left_where_no_thread_can_be_had(stuck, no_thread, monkeypatch):
    monkeypatch.setattr(leaving, "_LOOK_S", 0.01)
    leaving.leave_ray()
    assert stuck.ended
    assert not stuck.leaves.is_set()
    with pytest.raises(ClusterError, match="has not left its last Ray yet"):
        leaving.check_left()


@pytest.mark.parametrize("answers", [True, False])
def test_devices_are_given_back_where_no_thread_can_be_had(stuck, no_thread, monkeypatch, answers):
    removed = []
    monkeypatch.setattr(leaving, "_answers", lambda _: answers)
    monkeypatch.setattr(holds, "remove_placement_group", removed.append)
    group = SimpleNamespace(id=1)
    holds.DeviceHolds("job").release([group])
    assert removed == ([group] if answers else [])


def test_devices_are_given_back_without_waiting_for_a_head_that_is_silent(stuck, monkeypatch):
    removed = threading.Event()

    def remove(_):  # as Ray does, which waits a minute for its head
        stuck.goes_on.wait(DEADLINE_S)
        removed.set()

    monkeypatch.setattr(holds, "remove_placement_group", remove)
    monkeypatch.setattr(leaving, "_LOOK_S", 0.01)
    monkeypatch.setattr(leaving, "SHUTDOWN_WITHIN_S", 0.01)
    holds.DeviceHolds("job").release([SimpleNamespace(id=1)])
    assert not removed.is_set()
    stuck.goes_on.set()
    assert removed.wait(DEADLINE_S)


def test_devices_are_given_back_as_long_as_the_head_answers(stuck, monkeypatch):
    removed, looks = [], [True, True]

    def answers(_):
        if not (looks and looks.pop()):
            stuck.goes_on.set()
        return True

    monkeypatch.setattr(
        holds, "remove_placement_group", lambda _: removed.append(stuck.goes_on.wait(DEADLINE_S))
    )
    monkeypatch.setattr(leaving, "_answers", answers)
    monkeypatch.setattr(leaving, "SHUTDOWN_WITHIN_S", 0.01)
    holds.DeviceHolds("job").release([SimpleNamespace(id=1)])
    assert removed == [True]


def test_an_error_that_ends_the_program_is_not_told_to_rays_head_first(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", leaving.worker.custom_excepthook)
    leaving.show_errors_at_once()
    assert sys.excepthook is leaving.worker.normal_excepthook
    monkeypatch.setattr(sys, "excepthook", print)
    leaving.show_errors_at_once()
    assert sys.excepthook is print
