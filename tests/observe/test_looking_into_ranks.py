"""Stacks, profiles, breakpoints and watch-dogs of ranks that are real processes."""

import json
import math
import os
import queue
import re
import signal
import time

import pytest
from hanging_workers import Hanging

from forked_job import ForkedJob
from programs import RLINF, run_program
from rlinf.scheduler import Channel, PackedPlacementStrategy
from rlinf_scheduler.errors import ConfigError, WorkerError
from rlinf_scheduler.events import Stalled, WorkerPrinted
from rlinf_scheduler.host.output import LogFolder
from rlinf_scheduler.observe import survey
from rlinf_scheduler.observe.outside import is_stopped
from rlinf_scheduler.observe.survey import AskActivity, Survey
from rlinf_scheduler.observe.why import why
from waits import seen, wait_until

DEADLINE_S = 60.0
STALL_S = 0.05


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    job = ForkedJob()
    job.session.provide(LogFolder, LogFolder(str(tmp_path_factory.mktemp("logs") / "job")))
    group = Hanging.create_group().launch(
        job, PackedPlacementStrategy(0, 1), name="actor", stall_after_s=STALL_S
    )
    yield job, group
    job.close()


@pytest.fixture
def group(launched):
    return launched[1]


@pytest.fixture
def events(job):
    heard = queue.SimpleQueue()
    job.session.bus.subscribe(heard.put)

    def next_of(kind):
        while not isinstance(event := heard.get(timeout=DEADLINE_S), kind):
            pass
        return event

    return next_of


def test_the_stack_of_a_rank_that_works_and_of_one_that_is_idle(group, tmp_path):
    gate = tmp_path / "gate"
    result = group.execute_on(1).work(str(gate))
    try:
        idle, works = seen(group.stack, lambda both: "is idle" in both[0].at and "runs work()" in both[1].at)
    finally:
        gate.touch()
        result.wait(DEADLINE_S)
    assert (idle.at, idle.threads) == ("actor:0 is idle: no call runs there", ())
    assert works.address == "actor:1"
    assert "hanging_workers.py" in str(works)
    assert re.search(r"Hanging\.work", str(works))


def test_a_rank_that_has_failed_is_told_of_while_its_caller_has_not_taken_that(job, group, tmp_path):
    os.mkfifo(gate := tmp_path / "gate")
    result = group.fail_first(str(gate))
    try:
        told = (
            "actor:0 has failed in fail_first(): LookupError: no data; driver has not taken that result yet"
        )
        wait_until(lambda: told in str(why(job.session)))
    finally:
        gate.open("wb").close()
    with pytest.raises(WorkerError):
        result.wait(DEADLINE_S)
    result.results(return_exceptions=True, timeout_s=DEADLINE_S)
    assert "has failed" not in str(why(job.session))


def test_who_asks_while_all_are_asked_gets_what_is_found_then(job, group):
    (pid,) = group.execute_on(0).where().wait(DEADLINE_S)
    roll, found = job.session.service(Survey), []

    def ask():
        roll._last = None
        for _ in range(3):
            wanted = AskActivity(within_s=DEADLINE_S, max_age_s=DEADLINE_S)
            roll.activity(wanted).add_done_callback(lambda look: found.append(look.result(0)))

    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: is_stopped(pid))
        job.session.messenger.submit(ask)
        wait_until(lambda: len(found) == 3)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "actor:0" in [each.process for each in found[0].silent]
    assert found[0] is found[1] is found[2]


def test_the_stack_of_a_rank_whose_interpreter_is_held_and_of_one_that_is_stopped(
    group, tmp_path, monkeypatch
):
    monkeypatch.setattr(survey, "SIGNAL_AFTER_S", 0.0)  # as when two of its heartbeats are missing
    os.mkfifo(gate := tmp_path / "gate")
    (pid,) = group.execute_on(0).where().wait(DEADLINE_S)
    held = group.execute_on(1).hold_the_interpreter(str(gate))
    os.kill(pid, signal.SIGSTOP)
    try:
        stopped, stuck = seen(
            group.stack,
            lambda both: "is stopped" in both[0].at and "(the GIL)" in both[1].at and both[1].threads,
        )
    finally:
        os.kill(pid, signal.SIGCONT)
        gate.write_bytes(b".")
        held.wait(DEADLINE_S)
    assert stopped.at.startswith("actor:0 is stopped")
    assert stuck.threads[0].frames[0].function == "hold_the_interpreter"


def test_a_profile_says_where_ranks_spend_their_time(group, tmp_path):
    gate = tmp_path / "gate"
    result = group.execute_on(0).work(str(gate))
    try:
        wait_until(lambda: "runs work()" in group.stack()[0].at)
        path = group.profile(0.3, tmp_path / "actor.json", rate_hz=50)
    finally:
        gate.touch()
        result.wait(DEADLINE_S)
    file = json.loads(path.read_text())
    of_main = next(each for each in file["profiles"] if each["name"] == "actor:0 MainThread")
    names = {file["shared"]["frames"][number]["name"] for stack in of_main["samples"] for number in stack}
    assert "Hanging.work" in names
    assert sum(of_main["weights"]) == pytest.approx(of_main["endValue"])
    assert any(each["name"] == "actor:1 MainThread" for each in file["profiles"])


@pytest.mark.parametrize("options", [{"seconds": 0}, {"seconds": -1}, {"seconds": 1, "rate_hz": 0}])
def test_a_profile_of_no_time_is_refused(group, options):
    with pytest.raises(ConfigError, match=r"seconds|rate_hz"):
        group.profile(**options)


def test_a_breakpoint_says_how_to_get_there_and_goes_on_afterwards(group, events, capfd):
    result = group.execute_on(0).stop_for_a_debugger()
    lines = ()
    while not any("is at a breakpoint" in line for line in lines):
        lines = events(WorkerPrinted).lines
    told = next(line for line in lines if "is at a breakpoint" in line)
    path = re.fullmatch(
        r"actor:0 is at a breakpoint in hanging_workers.py:\d+: on .*, run `rlinf pdb (.*)`", told
    )[1]
    typed = "p answer + 1\nanswer = 43\ncontinue\n"
    done = run_program("-c", RLINF, "pdb", path, input=typed)
    assert "42" in done.stdout
    assert result.wait(DEADLINE_S) == [43]


def test_a_call_that_stalls_is_an_event_with_the_reason(job, group, events):
    result = group.execute_on(0).receive("actor", 1)
    try:
        stalled = events(Stalled)
        while "actor:1 is idle" not in stalled.why:
            stalled = events(Stalled)
    finally:
        result.cancel()
    told = stalled.group, stalled.operation, stalled.processes
    assert told == ("actor", "receive()", ("actor:0",))
    assert stalled.waited_s >= STALL_S


def test_a_stream_that_owes_a_value_is_an_event_and_one_whose_values_are_not_taken_is_none(
    group, events, tmp_path
):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    began, told = time.monotonic(), []
    untaken, late = group.execute_on(0).make_values(10, gate), group.execute_on(1).make_values(1, gate)
    with untaken, late:
        assert (next(untaken), next(late)) == ([0], [0])
        wait_until(lambda: untaken._call.owed_since(0) == math.inf)
        owed_s = time.monotonic() - began
        while not any(each.processes == ("actor:1",) and each.waited_s > 4 * owed_s for each in told):
            told.append(events(Stalled))
        with gate.open("wb") as file:
            file.write(b".")
        assert list(late) == [[1]]
    # Of an earlier call there may come one late.
    streams = [each for each in told if each.operation == "make_values()"]
    assert not [each for each in streams if "actor:0" in each.processes and each.waited_s > owed_s]


def test_an_operation_on_a_channel_that_stalls_is_an_event(job, group, events):
    channel = Channel.create("watched", stall_after_s=STALL_S)
    waiting = channel.get(async_op=True)
    stalled = events(Stalled)
    while not stalled.channel:
        stalled = events(Stalled)
    waiting.cancel()
    assert (stalled.channel, stalled.operation, stalled.processes) == (
        "watched",
        "get at queue 'default'",
        ("driver",),
    )
