"""Stories of the real machines: every promise is kept, and a seed always tells the same one."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from effort import tries
from rlinf_scheduler.host.progress import PROGRESS_VARIABLE
from simulator import draw_script, simulate, tell
from simulator.__main__ import main
from simulator.script import Fault

ROOT = Path(__file__).parents[2]
# So many are about everything that is looked for below; `make simulate` tells more.
NUM_SEEDS = 120


@cache
def told_of(seed):
    """The report of a seed's story."""
    return simulate(seed)


@pytest.mark.parametrize(
    "seeds", [range(begin, begin + 30) for begin in range(0, max(NUM_SEEDS, tries(NUM_SEEDS)), 30)], ids=str
)
def test_every_promise_is_kept_in_the_stories_of(seeds):
    for seed in seeds:
        report = told_of(seed)
        if report.violation is not None:
            pytest.fail("\n".join([f"seed {seed}: {report.violation}", *tell(report)]))


def test_the_same_seed_gives_the_same_history():
    assert simulate(11).history == told_of(11).history
    assert told_of(11).digest != told_of(12).digest


def test_a_history_does_not_depend_on_the_process_that_tells_it():
    program = "from simulator import simulate; print(*(simulate(seed).digest for seed in range(3)))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    told = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True
    )
    assert told.stdout.decode().split() == [told_of(seed).digest for seed in range(3)]


def test_stories_are_about_everything_that_can_go_wrong():
    faults, endings = set(), set()
    for seed in range(NUM_SEEDS):
        faults |= {step.kind for step in draw_script(seed).steps if isinstance(step, Fault)}
        endings |= {event[5] for event in told_of(seed).history if event[2] == "ends"}
    assert faults == {
        "cut",
        "stall",
        "pause",
        "die",
        "pause server",
        "kill server",
        "close",
        "lose node",
        "resize",
    }
    assert endings >= {
        "accepted",
        "taken",
        "timed out",
        "unanswered",
        "cancelled",
        "dropped",
        "lost",
        "closed",
    }
    assert endings >= {"full", "empty", "impossible"}


OF_CHANNELS = {"put", "get", "batch", "group", "peek", "drain", "end", "flush", "join", "leave", "lease"}


def test_stories_are_about_all_that_can_become_of_a_call():
    endings = {
        event[3:6:2] for seed in range(NUM_SEEDS) for event in told_of(seed).history if event[2] == "ends"
    }
    of_channels = {ending for kind, ending in endings if kind in OF_CHANNELS}
    of_all = {"taken", "timed out", "cancelled", "dropped", "lost"}
    assert of_channels >= of_all | {"accepted", "closed", "full", "empty"}
    assert endings >= {
        (kind, ending) for kind in ("send", "recv", "fetch") for ending in of_all | {"not found"}
    }
    assert endings >= {("send", "unanswered"), ("fetch", "over")}


def test_stories_are_about_channels_mailboxes_and_weights():
    kinds = {call.kind for seed in range(50) for call in draw_script(seed).calls}
    of_subscriptions = {"subscribe", "unsubscribe"}
    assert kinds == OF_CHANNELS | of_subscriptions | {"send", "recv", "publish", "fetch"}


def test_stories_are_about_ranks_that_train_die_and_are_told_of_the_end():
    outcomes = set()
    for seed in range(NUM_SEEDS):
        outcomes |= {event[5] for event in told_of(seed).history if event[2:4] == ("ends", "step")}
    assert outcomes >= {"taken", "dropped", "timed out", "ended", "closed", "impossible", "empty"}


def test_stories_are_about_leases_that_are_kept_given_back_and_lapse():
    said, became = set(), set()
    for seed in (*range(NUM_SEEDS), 485):
        history = told_of(seed).history
        became |= {event[5] for event in history if event[2:4] == ("ends", "lease")}
        said |= {event[4] for event in history if event[2] == "settles lease"}
    assert became >= {"taken", "dropped", "timed out", "cancelled", "lost", "closed"}
    assert said >= {"done", "failed", "failed, later", "late", "left"}


def test_stories_are_about_channels_that_are_saved():
    told = [event for seed in range(NUM_SEEDS) for event in told_of(seed).history]
    assert sum(event[1] == "checkpoint" and event[3] == "is there" for event in told) > 20
    assert any(
        event[4:] for event in told if event[2] == "saves"
    )  # with a lease that is acknowledged by that


def test_stories_are_about_items_that_stay_on_their_nodes_and_are_lost_with_them():
    told = [event for seed in (*range(NUM_SEEDS), 126) for event in told_of(seed).history]
    assert sum(event[2] == "looks at holders" for event in told) > 50
    assert any(event[2:4] == ("says", "Refuse") and event[6:] == ("lost",) for event in told)


def test_stories_are_about_weights_on_devices_whose_owner_or_readers_die():
    histories = [told_of(seed).history for seed in range(NUM_SEEDS)]
    told = [history for history in histories if any(event[2] == "stages" for event in history)]
    happened = [{event[1:3] for event in history} for history in told]
    assert len(told) > 15
    assert sum(event[2] == "has read" for history in told for event in history) > 150
    assert any(("server", "dies") in each for each in happened)
    assert any(("client0", "dies") in each for each in happened)


def test_stories_are_about_items_on_devices_that_are_taken_refused_and_lost():
    histories = [told_of(seed).history for seed in (*range(9, NUM_SEEDS, 16), 521)]
    heard = [event[4] for history in histories for event in history if event[2] == "hears"]
    assert heard.count("Confirm") > 60
    assert {"Put", "Get", "Withdraw", "Resend"} <= set(heard)
    dead = [{event[1] for event in history if event[2] == "dies"} for history in histories]
    stages = [{event[1] for event in history if event[2] == "stages"} for history in histories]
    assert sum(bool(died & staged) for died, staged in zip(dead, stages, strict=True)) > 2


def test_stories_are_about_memory_that_devices_read_by_themselves():
    histories = [told_of(seed).history for seed in range(5, NUM_SEEDS, 16)]
    happened = [event[2] for history in histories for event in history]
    assert happened.count("pins") > 100
    assert happened.count("has read pinned") > 100
    assert any(event[1:3] == ("client0", "dies") for history in histories for event in history)


def test_a_story_is_told_with_its_history(capsys):
    assert main(["--seed", "3"]) == 0
    assert f"seed 3: every promise was kept; history {told_of(3).digest}" in capsys.readouterr().out


def test_many_stories_are_counted_on_a_terminal_as_they_are_told(capsys, monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    for name in ("CI", PROGRESS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("simulator.__main__.CHUNK", 2)
    assert main(["--first", "7", "--seeds", "3", "--processes", "1"]) == 0
    assert "3 stories" in capsys.readouterr().out
    shown = [f"{told} of 3 stories are told, 0 broke a promise" for told in (2, 3)]
    assert terminal.getvalue() == f"\r{shown[0]}\r{shown[1]}\n"


@pytest.mark.parametrize("option", ["--seeds", "--processes"])
def test_no_stories_and_no_processes_are_refused(option, capsys):
    with pytest.raises(SystemExit) as caught:
        main([option, "0"])
    assert caught.value.code == 2
    assert f"{option} is at least 1, not 0" in capsys.readouterr().err


def test_stories_are_about_durable_channels_whose_process_dies_at_any_step():
    reports = [report for seed in (*range(NUM_SEEDS), 248) if (report := told_of(seed)).script.durable]
    histories = [report.history for report in reports]
    deaths = [
        sum(event[2] == "dies" and event[1].startswith("server") for event in history)
        for history in histories
    ]
    assert len(reports) > 15
    assert max(deaths) > 2
    told_late = [event for history in histories for event in history if event[2] == "was not told"]
    assert told_late, "none died between writing and doing"
    assert any(event[2] == "takes a snapshot" for history in histories for event in history)
