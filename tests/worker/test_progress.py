"""The line that says on a terminal what a launch waits for."""

import io
import logging
import os
import re
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from rlinf.scheduler import NodePlacementStrategy, Worker
from rlinf_scheduler.events import WorkerLogged
from rlinf_scheduler.host import progress
from rlinf_scheduler.host.log_lines import receive_log_lines
from rlinf_scheduler.host.progress import Reminder, SlowStep, TerminalLine, is_wanted
from rlinf_scheduler.worker import progress as launch_progress
from rlinf_scheduler.worker.progress import ProgressLine, Standing, progress_line, shown_while_slow
from waits import wait_until

DEADLINE_S = 60.0
ERASE = "\r\x1b[K"


class Terminal:
    """A pseudo-terminal as standard error, and what a person would have seen on it."""

    def __init__(self, take):
        # Called in the test itself: between its phases pytest puts back what it captures with.
        self.take = take
        self.master, slave = os.openpty()
        self.stream = os.fdopen(slave, "w", buffering=1)
        os.set_blocking(self.master, False)
        self.text = ""

    def read(self):
        while True:
            try:
                self.text += os.read(self.master, 65536).decode()
            except BlockingIOError:
                return self.text

    def wait_for(self, part):
        deadline = time.monotonic() + DEADLINE_S
        pause = threading.Event()
        while part not in self.read():
            assert time.monotonic() < deadline, self.text
            pause.wait(0.01)

    def screen(self):
        """The lines as they stand there now."""
        lines = [""]
        for piece in re.split(r"(\r\n|\r\x1b\[K)", self.read()):
            if piece == "\r\n":
                lines.append("")
            elif piece == ERASE:
                lines[-1] = ""
            else:
                lines[-1] += piece
        return lines

    def close(self):
        self.stream.close()
        os.close(self.master)


@pytest.fixture
def terminal(monkeypatch):
    terminal = Terminal(lambda: monkeypatch.setattr("sys.stderr", terminal.stream))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(launch_progress, "_ERASING_S", DEADLINE_S)  # until it is gone, on a busy machine too
    for name in ("CI", "RLINF_PROGRESS"):
        monkeypatch.delenv(name, raising=False)
    yield terminal
    terminal.close()


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.worker.progress.SHOWN_AFTER_S", 0.0)


def standing(group="actor", num_ready=1, state="still in __init__"):
    return Standing(group, num_ready, 4, 2, state)


def test_several_launches_are_said_in_one_line():
    assert progress_line([(standing(), 1.2), (standing("rollout", 0, "importing"), 7.9)]) == (
        "starting actor: 1 of 4 ready, rank 2 still in __init__ (1 s); "
        "rollout: 0 of 4 ready, rank 2 importing (8 s)"
    )


def test_the_line_follows_a_launch_and_is_gone_at_its_end(session, terminal, at_once):
    terminal.take()
    reached = [0]
    with shown_while_slow(session, lambda: standing(num_ready=reached[0]), 60.0):
        terminal.wait_for("starting actor: 0 of 4 ready, rank 2 still in __init__")
        reached[0] = 3
        terminal.wait_for("starting actor: 3 of 4 ready")
        assert len(terminal.screen()) == 1
    assert terminal.screen() == [""]


def test_the_line_stays_while_another_launch_goes_on(session, terminal, at_once):
    terminal.take()
    with shown_while_slow(session, standing, 60.0):
        with shown_while_slow(session, lambda: standing("rollout"), 60.0):
            terminal.wait_for("; rollout: 1 of 4")
        deadline = time.monotonic() + DEADLINE_S
        while "rollout" in terminal.screen()[-1]:
            assert time.monotonic() < deadline
        assert terminal.screen()[-1].startswith("starting actor: 1 of 4 ready")
    assert terminal.screen() == [""]


def test_what_is_quick_is_not_shown(session, terminal, monkeypatch):
    terminal.take()
    monkeypatch.setattr(launch_progress, "SHOWN_AFTER_S", DEADLINE_S)
    with shown_while_slow(session, standing, 60.0):
        pass
    assert terminal.read() == ""


def test_the_line_of_a_launch_that_never_said_its_end_goes_with_its_deadline(
    session, terminal, at_once, monkeypatch
):
    terminal.take()
    showing = session.service(ProgressLine).showing(standing, DEADLINE_S)
    showing.__enter__()
    terminal.wait_for("starting actor")
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + DEADLINE_S)
    monkeypatch.setattr(launch_progress, "time", later)
    wait_until(lambda: terminal.screen() == [""])


def test_a_long_line_is_cut_at_the_width_of_the_terminal(session, terminal, at_once):
    terminal.take()
    with shown_while_slow(session, lambda: standing(state="x" * 500), 60.0):
        terminal.wait_for("…")
        assert len(terminal.screen()[-1]) < 80


def test_a_line_that_a_worker_logs_takes_its_place(session, terminal, at_once, monkeypatch):
    terminal.take()
    handler = logging.StreamHandler(terminal.stream)
    logger = logging.getLogger("rlinf.worker.actor")
    monkeypatch.setattr(logger, "handlers", [handler])
    receive_log_lines(session)
    with shown_while_slow(session, standing, 60.0):
        terminal.wait_for("starting actor")
        session.log_bus.emit(WorkerLogged("actor", 2, 30, "loading the checkpoint"))
        terminal.wait_for("loading the checkpoint\r\n")
        terminal.wait_for("checkpoint\r\n" + ERASE + "starting actor")
    assert terminal.screen() == ["[actor:2] loading the checkpoint", ""]


def test_a_terminal_that_is_gone_is_no_trouble(session, terminal, at_once):
    terminal.take()
    line = session.service(TerminalLine)
    line.show("something")
    terminal.stream.close()
    line.show("something else")
    line.erase()


@pytest.mark.parametrize("variables", [{"RLINF_PROGRESS": "0"}, {"CI": "true"}, {"TERM": "dumb"}])
def test_nobody_is_shown_a_line_who_does_not_want_it(terminal, variables):
    assert is_wanted(terminal.stream, {"TERM": "xterm"})
    assert not is_wanted(terminal.stream, {"TERM": "xterm", **variables})


def test_what_is_no_terminal_is_written_nothing(session, monkeypatch, at_once):
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    assert not is_wanted(None, {})
    with shown_while_slow(session, standing, 60.0):
        pass
    assert written.getvalue() == ""


@pytest.fixture
def logged(monkeypatch, caplog):
    """The log of a process without a terminal, in which waits are soon told of; what it says, as it comes."""
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.delenv("RLINF_PROGRESS", raising=False)
    monkeypatch.setattr(progress, "FIRST_AFTER_S", 0.01)
    monkeypatch.setattr(progress, "AGAIN_AFTER_S", 0.01)
    monkeypatch.setattr(launch_progress, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(launch_progress, "_LOOKED_AT_EVERY_S", 0.01)
    return lambda: [re.sub(r"\(\d+ s\)", "(some s)", message) for message in caplog.messages]


def test_without_a_terminal_the_log_says_what_a_slow_launch_waits_for_and_again(session, logged):
    with shown_while_slow(session, standing, 60.0):
        wait_until(lambda: len(logged()) >= 2)
    assert set(logged()) == {"starting actor: 1 of 4 ready, rank 2 still in __init__ (some s)"}


def test_the_log_says_what_a_step_waits_for_that_goes_on(logged):
    step = SlowStep("opening the cluster", "a Ray")
    with step.told():
        wait_until(lambda: "opening the cluster: waiting for a Ray (some s)" in logged())
        step.waits_for = "its nodes"
        wait_until(lambda: "opening the cluster: waiting for its nodes (some s)" in logged())


def test_a_quiet_run_has_nothing_in_its_log(session, logged, monkeypatch):
    monkeypatch.setenv("RLINF_PROGRESS", "0")
    step = SlowStep("opening the cluster", "a Ray")
    threads = set(sys._current_frames())
    with step.told(), shown_while_slow(session, standing, 60.0):
        assert set(sys._current_frames()) <= threads
    assert logged() == []


def test_a_wait_is_told_of_after_five_seconds_and_every_ten():
    reminder = Reminder()
    assert [second for second in range(40) if reminder.is_due(second)] == [5, 15, 25, 35]
    assert not reminder.is_due(0)  # the next one begins
    assert [second for second in range(20) if reminder.is_due(second)] == [5, 15]


class Loader(Worker):
    """Is ready when somebody opens a pipe at its other end."""

    def __init__(self, path):
        with open(path, encoding="ascii"):
            pass


@pytest.mark.ray
def test_a_launch_says_which_rank_is_still_loading(ray_cluster, terminal, tmp_path):
    terminal.take()
    path = tmp_path / "loading"
    os.mkfifo(path)

    def launch():
        Loader.create_group(str(path)).launch(
            ray_cluster, placement_strategy=NodePlacementStrategy([0]), name="loaders"
        ).terminate()

    launching = threading.Thread(target=launch)
    launching.start()
    terminal.wait_for("starting loaders: 0 of 1 ready, rank 0 still in __init__")
    with path.open("w", encoding="ascii"):
        pass
    launching.join(DEADLINE_S)
    assert terminal.screen()[-1] == ""
