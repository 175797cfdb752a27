"""A node that is killed under a job, on a Ray of the test's own, and nodes that join: all hear it in true words."""

import json
import os
import re
from pathlib import Path

import pytest

from programs import run_program

PROGRAM = Path(__file__).with_name("node_that_dies.py")
GONE = (
    r"node 1 \([\d.]+, [0-9a-f]{8}\) is gone: its raylet ended at \d\d:\d\d:\d\d(, \d+\.\d s into \w+\(\))?$"
)
# At once; on a busy machine later, and before the deadlines of the program, which are a minute.
SOON_S = 40.0

pytestmark = pytest.mark.ray(own=True)


@pytest.fixture(scope="module")
def program():
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = run_program(PROGRAM, with_ray=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def seen(program):
    return json.loads(program.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("what", "error"), [("call", "WorkerDied"), ("later call", "WorkerDied"), ("launch", "NodeLost")]
)
def test_whoever_waits_or_comes_later_is_told_which_node_is_gone_why_and_when(seen, what, error):
    took_s, kind, text = seen[what]
    assert (kind, took_s < SOON_S) == (error, True)
    assert re.search(GONE, text), text


def test_a_recv_in_another_process_and_a_channel_of_the_node_end_too_and_the_name_is_free(seen):
    assert re.search(GONE, seen["recv"])
    assert seen["get"][1] == "ChannelLost"
    assert seen["create"][1:] == ["", ""]


def test_the_ranks_of_the_node_end_and_the_cluster_knows_of_the_node(seen):
    assert seen["rank ended"] < SOON_S
    assert list(seen["lost"]) == ["1"]
    assert re.search(GONE, seen["lost"]["1"])


def test_a_node_on_which_nothing_runs_is_noticed_too(seen):
    took_s, text = seen["bare"]
    assert took_s < SOON_S + 2
    assert re.match(r"node 2 \(.*\) is gone: its raylet ended at ", text)
    assert [text.partition(" (")[0] for text in seen["events"]] == ["node 1", "node 2"]


def test_nodes_that_join_can_be_used_and_the_others_keep_their_ranks(seen):
    before, after = seen["before"], seen["after"]
    assert after[0] == before[0]
    assert not {*after[1:]} & {*before}
    assert len(after) == 3
    assert seen["lost after"] == []
    assert seen["new"] == 2


def test_a_lost_node_keeps_its_rank(seen):
    assert seen["without it"] == seen["after"]
    assert seen["lost at last"] == [2]


def test_no_page_of_rays_hides_the_line_that_matters(program):
    shown = [line for line in (program.stdout + program.stderr).splitlines() if line.strip()]
    assert not [line for line in shown if "state-dump" in line or "Possible reasons include" in line]
    assert sum("is gone: its raylet ended" in line and line.startswith("node 1") for line in shown) == 1
    assert len(shown) < 12, shown
