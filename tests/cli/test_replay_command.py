"""`rlinf replay` and `rlinf lineage`: what was recorded, in a terminal."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from programs import RLINF, run_program
from rlinf.scheduler import Channel, Worker
from rlinf.testing import LocalRuntime
from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.cli.main import app
from rlinf_scheduler.comm import encode
from rlinf_scheduler.host.info import packed_topology
from rlinf_scheduler.host.protocol import Assignment
from rlinf_scheduler.host.recording import open_recording
from rlinf_scheduler.planning import Node, Placement, Topology
from rlinf_scheduler.tape.tape import Tape
from rlinf_scheduler.tape.work import Work, working_at

PROGRAM = """
from rlinf.scheduler import Channel, Worker


class Adder(Worker):
    def add(self, number):
        total = number + Channel.connect("numbers").get(timeout_s=60)
        {more}
        Channel.connect("sums").put(total)
"""


def rlinf(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def recording(tmp_path):
    """A rank that has added 2 and 3; its program can be had."""
    program = tmp_path / "adder.py"
    program.write_text(PROGRAM.format(more=""))
    namespace = {"__name__": "adder"}
    exec(PROGRAM.format(more=""), namespace)
    assignment = Assignment(
        Placement(rank=0, node_id="n", node_rank=0), Node(), 1, {}, 1, "", 0, record=str(tmp_path / "run")
    )
    topology = packed_topology(Topology.parse("1"))
    with LocalRuntime() as runtime:
        tape = open_recording(WorkerAddress("adder", 0), assignment, topology)
        runtime.provide(Tape, tape)
        numbers, _ = Channel.create("numbers"), Channel.create("sums")
        numbers.put(3)
        tape.made_from(Worker, (), {})
        with tape.call("__init__", "call", list):
            worker = namespace["Adder"]()
        with tape.call("add", "call", lambda: encode(((2,), {})).frames()):
            worker.add(2)
        tape.close()
    return tmp_path


def test_a_rank_is_run_again_from_a_terminal(recording):
    done = rlinf(
        "replay", recording / "run", f"{recording / 'adder.py'}:Adder", "--rank", "adder:0", "--check"
    )
    assert done.stdout.splitlines() == ["__init__: done", "call 1, add(): done"], done.stderr
    assert done.exit_code == 0


def test_what_differs_is_named(recording):
    changed = recording / "changed.py"
    changed.write_text(PROGRAM.format(more="total += 1000"))
    done = rlinf("replay", recording / "run", f"{changed}:Adder", "--check")
    assert done.exit_code == 1
    assert "differs from the recording at call 1, add(): put 1 to sums 'default'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere"], "No such file"),
        (["run", "--rank", "actor:1"], "no recording of actor:1"),
        (["run", "nothing.py:Adder"], "no such program"),
        (["run", "adder.py:Addre"], "it has no class 'Addre'; did you mean 'Adder'"),
        (
            ["run", "starting.py:Adder"],
            "starting.py': it starts things at its top level (line 11): put them under `if",
        ),
    ],
)
def test_a_wrong_question_is_answered_by_what_there_is(recording, monkeypatch, arguments, problem):
    monkeypatch.chdir(recording)
    Path("starting.py").write_text(PROGRAM.format(more="") + '\nChannel.create("more")\n')
    done = rlinf("replay", *arguments)
    assert done.exit_code == 2
    assert problem in done.stderr


def test_channels_recordings_beside_it_are_no_ranks(recording):
    with LocalRuntime():
        channel = Channel.create("numbers")
        channel.record(recording / "run" / "numbers.rec")
        channel.record(None)
    done = rlinf("replay", recording / "run", f"{recording / 'adder.py'}:Adder")
    assert done.stdout.splitlines() == ["__init__: done", "call 1, add(): done"], done.stderr
    done = rlinf("replay", recording / "run", "--rank", "adder:1")
    assert "no recording of adder:1 in this folder; there are adder-0.rec\n" in done.stderr


def test_a_debugger_of_the_command_finds_the_file_by_its_name(recording):
    """As the page says: `python -m pdb -m rlinf replay ...`."""
    command = ["-c", "import pdb; pdb.main()", "-m", "rlinf", "replay", "run", "adder.py:Adder"]
    done = run_program(*command, cwd=recording, input="b adder.py:9\nc\np 'total', total\nc\nq\n")
    assert "('total', 5)" in done.stdout, done.stdout + done.stderr
    assert "call 1, add(): done" in done.stdout


def test_a_debugger_stops_it_on_the_main_thread(recording):
    """As `python -m pdb` and `breakpoint()` do."""
    stopping = recording / "stopping.py"
    stopping.write_text(PROGRAM.format(more="breakpoint()"))
    # Where a Ray was started before, it has a debugger of its own there.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONBREAKPOINT"}
    command = ["-c", RLINF, "replay", recording / "run", f"{stopping}:Adder"]
    done = run_program(*command, input="p 'total', total\ncontinue\n", env=environment)
    assert "('total', 5)" in done.stdout
    assert "call 1, add(): done" in done.stdout
    assert done.returncode == 0, done.stderr


@pytest.fixture
def trajectories(tmp_path):
    """A recorded channel, of which one item was taken at step 812."""
    path = tmp_path / "trajectories.rec"
    with LocalRuntime(), working_at(Work("test")):
        channel = Channel.create("trajectories")
        channel.record(path, payload=True)
        channel.put([1, 2, 3], weight=3, version=811)
        with Worker.at_step(812):
            channel.get()
        channel.record(None)
    return path


def test_a_step_is_traced_in_a_terminal(trajectories):
    done = rlinf("lineage", trajectories, "--step", 812)
    assert done.exit_code == 0
    assert done.stdout.startswith(
        "step 812: 1 item of version 811\n  driver took 1 item of 'trajectories' at "
    )
    found = json.loads(rlinf("lineage", trajectories.parent, "--step", 812, "--json").stdout)
    assert found["versions"] == [{"version": 811, "num_items": 1}]
    assert found["batches"][0]["items"][0]["payload"] == "[1, 2, 3]"


def test_a_step_of_which_nothing_is_recorded_is_said(trajectories):
    done = rlinf("lineage", trajectories, "--step", 5)
    assert done.exit_code == 1
    assert "nothing is recorded of step 5; the steps that are: 812 to 812, 1 in all" in done.stderr
    assert rlinf("lineage", trajectories).stdout == "step 812: 1 item of version 811\n"
    assert json.loads(rlinf("lineage", trajectories, "--json").stdout) == [812]


def test_a_recording_that_is_damaged_is_a_wrong_question(trajectories):
    data = bytearray(trajectories.read_bytes())
    data[-20] ^= 1
    trajectories.write_bytes(data)
    done = rlinf("lineage", trajectories, "--step", 812)
    assert done.exit_code == 2
    assert "it is damaged: record 2" in done.stderr
