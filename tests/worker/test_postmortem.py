"""What processes died of, as the kernel says it: real processes, and a real control group where one can be made."""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from fake_control_groups import FakeControlGroups
from rlinf_scheduler.host import postmortem
from rlinf_scheduler.host.postmortem import Witnesses, words_of
from rlinf_scheduler.proc import birth_of

CGROUPS = Path("/sys/fs/cgroup")
MEMORY = CGROUPS / "memory" if (CGROUPS / "memory").is_dir() else CGROUPS
# The process is a child of a child, as a rank is nobody's here.
BETWEEN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=0)
print(child.pid, flush=True)
child.wait()
"""


def knows_statuses():
    """Whether the kernel tells of the end of processes that are not this one's."""
    child = subprocess.Popen(["true"])
    descriptor = os.pidfd_open(child.pid)
    child.wait()
    try:
        return postmortem._status_of_reaped(descriptor) == 0
    finally:
        os.close(descriptor)


needs_statuses = pytest.mark.skipif(not knows_statuses(), reason="the kernel is older than Linux 6.15")


@contextlib.contextmanager
def somebody(program):
    """A process that runs `program` once its input ends: its number, and what lets it go on and waits."""
    command = [sys.executable, "-c", BETWEEN, "import os, sys; sys.stdin.read(); " + program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, **pipes) as between:
        pid = int(between.stdout.readline())

        def go_on():
            between.stdin.close()
            between.wait(60)

        yield pid, go_on


@needs_statuses
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("os._exit(3)", "it ended with exit code 3"),
        ("1 / 0", "it ended with exit code 1"),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("os.kill(os.getpid(), 15)", "killed by SIGTERM"),
        ("os.kill(os.getpid(), 11)", "killed by SIGSEGV (Segmentation fault)"),
        ("os.kill(os.getpid(), 40)", "killed by signal 40 (Real-time signal 6)"),
    ],
)
def test_an_exit_code_or_a_signal_is_named(program, words):
    with somebody(program) as (pid, go_on):
        witness = Witnesses().watch(pid, birth_of(pid))
        go_on()
        assert witness.cause().removesuffix(", core dumped") == words


def test_who_lives_has_no_cause_and_who_was_not_seen_has_none_either():
    with somebody("pass") as (pid, go_on):
        assert Witnesses().watch(pid, birth_of(pid)).cause() == ""
        other = Witnesses().watch(pid, birth_of(pid) + 1)
        go_on()
        assert other.cause() == ""


def test_a_core_is_mentioned():
    assert words_of(signal.SIGABRT | 128) == "killed by SIGABRT (Aborted), core dumped"


@contextlib.contextmanager
def small_group(limit_bytes):
    """A control group with little memory."""
    folder = MEMORY / f"rlinf-test-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        limit = folder / ("memory.limit_in_bytes" if MEMORY != CGROUPS else "memory.max")
        limit.write_text(str(limit_bytes))
        yield folder
    finally:
        folder.rmdir()


@pytest.mark.parametrize("log", [Path("/dev/kmsg"), Path("/nowhere")], ids=["its log", "its count alone"])
def test_the_kernel_that_has_no_memory_is_named(log):
    with small_group(32 << 20) as group, somebody("bytearray(1 << 28)") as (pid, go_on):
        (group / "cgroup.procs").write_text(str(pid))
        witnesses = Witnesses(log=log)
        witness = witnesses.watch(pid, birth_of(pid))
        go_on()
        assert witness.cause() == "killed by the kernel: out of memory"


def machine(folder, number, version):
    """What the kernel would show of a process in a control group with that many kills."""
    system = FakeControlGroups(folder)
    system.mount(version)
    file = {1: "memory.oom_control", 2: "memory.events"}[version]
    system.group("/job", version, **{file: f"under_oom 0\noom_kill {number}\noom_group_kill 7\n"})
    system.place("1", "/job", version)
    return Witnesses(system.proc, Path("/nowhere"))


@pytest.mark.parametrize("version", [1, 2])
def test_kills_are_counted_in_both_kinds_of_control_groups_and_each_explains_one_death(tmp_path, version):
    witnesses = machine(tmp_path, 3, version)
    events = witnesses.memory_events(1)
    assert witnesses.num_kills(events) == 3
    witnesses.note_kill(events)
    machine(tmp_path, 4, version)
    assert witnesses.num_kills(events) == 3


def test_a_process_in_no_control_group_of_memory_has_no_count(tmp_path):
    witnesses = machine(tmp_path, 3, 2)
    (tmp_path / "proc/1/cgroup").write_text("1:name=systemd:/\n0::/elsewhere\n")
    assert witnesses.num_kills(witnesses.memory_events(1)) == 0
