"""`rlinf top`: another terminal shows what a running job does."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import termios
import time

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from programs import RLINF, Program
from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.cli.main import app
from rlinf_scheduler.session import job_file
from rlinf_scheduler.session.job_file import find_job

DEADLINE_S = 60.0
SILENT = """
import sys
from rlinf.testing import LocalRuntime

with LocalRuntime():
    print("there", flush=True)
    sys.stdin.read()
"""


def rlinf_top(*arguments):
    """The command without a terminal. It attaches as another process does, and takes less time in this one."""
    return CliRunner().invoke(app, ["top", *arguments])


@pytest.fixture
def job():
    with LocalRuntime() as runtime:
        Channel.create("trajectories").put("one", weight=3)
        yield runtime


class Terminal:
    """A terminal in which the command runs."""

    def __init__(self, *arguments):
        self._ours, self._theirs = pty.openpty()
        termios.tcsetwinsize(self._theirs, (24, 80))
        self.before = termios.tcgetattr(self._theirs)
        pipes = {"stdin": self._theirs, "stdout": self._theirs, "stderr": self._theirs}
        self.process = Program("-c", RLINF, "top", *arguments, new_session=True, **pipes)
        self.text = ""

    def type(self, text):
        os.write(self._ours, text.encode())

    def wait_for(self, text):
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.text:
            assert self.process.poll() is None or select.select([self._ours], [], [], 0)[0], self.text
            assert select.select([self._ours], [], [], deadline - time.monotonic())[0], self.text
            self.text += os.read(self._ours, 1 << 16).decode(errors="replace")

    def end(self):
        """Its exit status, once it has ended; what it writes is read meanwhile."""
        is_over = False
        while not is_over or select.select([self._ours], [], [], 0)[0]:
            is_over = self.process.poll() is not None  # before the last look: what it wrote is there then
            if select.select([self._ours], [], [], 0.01)[0]:
                self.text += os.read(self._ours, 1 << 16).decode(errors="replace")
        return self.process.wait(DEADLINE_S)

    @property
    def settings(self):
        return termios.tcgetattr(self._theirs)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(DEADLINE_S)
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminal():
    opened = []

    def open_terminal(*arguments):
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()


def test_where_there_is_no_terminal_it_is_shown_once(job):
    done = rlinf_top("--job", str(os.getpid()))
    assert done.exit_code == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "driver" in done.stdout
    assert "trajectories" in done.stdout


def test_it_is_data_on_request_also_of_all_jobs(job):
    done = rlinf_top("--json", "--job", str(os.getpid()))
    found = json.loads(done.stdout)
    assert (found["driver_pid"], found["channels"][0]["name"]) == (os.getpid(), "trajectories")
    assert "rlinf-top" not in json.dumps(found["groups"])
    every = json.loads(rlinf_top("--json", "--all").stdout)
    assert os.getpid() in [status["driver_pid"] for status in every]


def test_a_job_of_another_version_is_left_out_of_all_and_said(job, monkeypatch):
    here = find_job(os.getpid())
    monkeypatch.setattr(job_file, "running_jobs", lambda: [replace(here, version="9.9"), here])
    done = rlinf_top("--json", "--all")
    assert [status["driver_pid"] for status in json.loads(done.stdout)] == [os.getpid()]
    assert "left out: " in done.stderr
    assert "runs on version 9.9" in done.stderr


def test_a_job_whose_driver_does_not_answer_is_left_out_of_all_and_said(job):
    with Program("-c", SILENT) as silent:
        assert silent.stdout.readline() == "there\n"
        os.kill(silent.pid, signal.SIGSTOP)
        done = rlinf_top("--json", "--all")
    shown = [status["driver_pid"] for status in json.loads(done.stdout)]
    assert os.getpid() in shown
    assert silent.pid not in shown
    assert "left out: " in done.stderr
    assert f"the job of process {silent.pid}" in done.stderr


def test_questions_without_an_answer_are_wrong(job):
    done = rlinf_top("--all", "--job", "1")
    assert (done.exit_code, "give one of the two" in done.stderr) == (2, True)
    done = rlinf_top("--once", "--job", "1")
    assert done.exit_code == 2
    assert re.search(rf"\b{os.getpid()}(\.\w+)?: ", done.stderr)


def test_it_looks_again_until_q_and_leaves_the_terminal_as_it_was(job, terminal):
    shown = terminal("--job", str(os.getpid()), "--interval", "0.1")
    shown.wait_for("trajectories")
    Channel.create("another")
    shown.wait_for("another")
    shown.type("q")
    assert shown.end() == 0
    assert shown.settings == shown.before
    assert shown.text.endswith("\x1b[?25h\x1b[?1049l")  # the cursor is back, and what stood there before


def test_ctrl_c_ends_it_without_a_word(job, terminal):
    shown = terminal("--job", str(os.getpid()))
    shown.wait_for("trajectories")
    shown.process.send_signal(signal.SIGINT)
    assert shown.end() == 0
    assert "Traceback" not in shown.text
    assert shown.settings == shown.before


def test_it_ends_with_its_job(terminal):
    with LocalRuntime():
        shown = terminal("--job", str(os.getpid()), "--interval", "0.1")
        shown.wait_for("driver")
    shown.wait_for("the job has ended")
    assert shown.end() == 0


def test_an_interval_that_is_too_short_is_refused_in_plain_words():
    done = CliRunner().invoke(app, ["top", "--interval", "-1"])
    assert done.exit_code == 2
    assert "-1: it is 0.1 seconds or more" in done.stderr
