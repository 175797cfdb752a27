"""Stories of the real machines: every promise is kept, and a seed always tells the same one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rlinf.testing.simulation import draw_script, simulate, tell
from rlinf.testing.simulation.__main__ import main
from rlinf.testing.simulation.script import Fault


@pytest.mark.parametrize("seeds", [range(begin, begin + 50) for begin in range(0, 300, 50)], ids=str)
def test_every_promise_is_kept_in_the_stories_of(seeds):
    for seed in seeds:
        report = simulate(seed)
        if report.violation is not None:
            pytest.fail("\n".join([f"seed {seed}: {report.violation}", *tell(report)]))


def test_the_same_seed_gives_the_same_history():
    assert simulate(11).history == simulate(11).history
    assert simulate(11).digest != simulate(12).digest


def test_a_history_does_not_depend_on_the_process_that_tells_it():
    program = (
        "from rlinf.testing.simulation import simulate; print(*(simulate(seed).digest for seed in range(20)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    told = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, check=True
    )
    assert told.stdout.decode().split() == [simulate(seed).digest for seed in range(20)]


def test_stories_are_about_everything_that_can_go_wrong():
    faults, endings = set(), set()
    for seed in range(100):
        faults |= {step.kind for step in draw_script(seed).steps if isinstance(step, Fault)}
        endings |= {event[5] for event in simulate(seed).history if event[2] == "ends"}
    assert faults == {"cut", "stall", "pause", "die", "pause server", "kill server", "close"}
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


def test_stories_are_about_channels_mailboxes_and_weights():
    kinds = {call.kind for seed in range(20) for call in draw_script(seed).calls}
    assert kinds == {"put", "get", "batch", "send", "recv", "publish", "fetch"}


def test_a_story_is_told_with_its_history(capsys):
    assert main(["--seed", "3"]) == 0
    assert f"seed 3: every promise was kept; history {simulate(3).digest}" in capsys.readouterr().out


def test_many_stories_are_counted(capsys):
    assert main(["--seeds", "20", "--processes", "1"]) == 0
    assert "20 stories" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--seeds", "--processes"])
def test_no_stories_and_no_processes_are_refused(option, capsys):
    with pytest.raises(SystemExit) as caught:
        main([option, "0"])
    assert caught.value.code == 2
    assert f"{option} is at least 1, not 0" in capsys.readouterr().err
