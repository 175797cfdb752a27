"""Nodes that join are taken up to `nodes.max`, and of those that are drained it is told, as a program saw it."""

import json
import re
from pathlib import Path

import pytest

from programs import run_program

PROGRAM = Path(__file__).with_name("nodes_that_come_and_go.py")

pytestmark = pytest.mark.ray(own=True)


@pytest.fixture(scope="module")
def seen():
    done = run_program(PROGRAM, with_ray=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_node_that_joins_is_taken_by_itself_and_can_be_used(seen):
    assert (seen["before"], seen["joined"], seen["after"], seen["lives there"]) == (2, 2, 3, True)


def test_a_drained_node_is_told_of_with_its_time_limit_and_nothing_is_started_on_it(seen):
    rank, reason, left_s = seen["draining"]
    assert (rank, 0 < left_s <= 120) == (2, True)
    text = r"node 2 \([\d.]+, [0-9a-f]{8}\) is being drained: it is to be given back by \d\d:\d\d:\d\d"
    assert re.fullmatch(text, reason)
    assert seen["launch"] == ["ClusterError", f"{reason}; nothing is started on it"]
    assert seen["no limit"] is None


def test_there_are_never_more_than_max_and_another_one_is_taken_instead_of_one_that_goes(seen):
    assert (seen["instead"], seen["nodes"]) == (3, 4)


def test_ranks_finish_what_they_have_and_leave_a_drained_node_for_another_one_or_out_of_their_group(seen):
    assert seen["finished"] == [[True], [True]]
    assert seen["shrunk"] == ["staying", [0], True]
    assert seen["returned"] == ["moving", True]
    assert seen["elsewhere"]


def test_a_rank_that_leaves_a_node_leaves_sooner_if_the_node_does():
    done = run_program(PROGRAM.with_name("node_drained_sooner.py"), with_ray=True, timeout=240)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["left_s"] <= 5.0
    assert seen["forced"]
