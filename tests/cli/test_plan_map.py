"""`rlinf plan --map`: nodes and devices, a letter a component."""

import io
import sys

import pytest

from plan_files import plan_mixed_fleet, rlinf
from rlinf_scheduler.cli.plan_map import looks, render_map
from rlinf_scheduler.planning import PlacementRule, Sharing, Topology, plan_components


def test_map_of_a_mixed_fleet_has_a_row_for_alike_nodes():
    result = plan_mixed_fleet("--map")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "nodes  group       devices",
        "0-6    a800        NVIDIA   AB  AB  AB  AB  AB  AB  AB  AB",
        "7      a800        NVIDIA   ABC ABC ABC ABC ABC ABC ABC ABC",
        "8-13   4090        NVIDIA   D   D   D   D   D   D   D   D",
        "14     4090        NVIDIA   E   E   E   E   E   E   E   E",
        "15     4090        NVIDIA   E   E   E   E   .   .   .   .",
        "16-17  robot,arms  Robot    F",
        "                   node     G",
        "",
        "A  actor      64 ranks on nodes 0-7",
        "B  reference  64 ranks on nodes 0-7",
        "C  reward     2 ranks on node 7",
        "D  rollout    24 ranks on nodes 8-13",
        "E  simulator  24 ranks on nodes 14-15",
        "F  env        2 ranks on nodes 16-17",
        "G  agent      16 ranks on nodes 16-17",
        ".  idle",
        "",
        "196 processes of 7 components on 18 nodes with 128 accelerators",
        "warning: 4 of 128 NVIDIA accelerators are idle: 4 of node 15",
        "note: actor and reference share 56 accelerators on nodes 0-6",
        "note: actor, reference and reward share 8 accelerators on node 7",
        "note: simulator runs 24 processes on 12 devices of nodes 14-15: 2 share one",
    ]


def test_map_of_hundreds_of_nodes_stays_short(conf):
    file = conf("cluster: {component_placement: {actor: all, rollout: 0-2047}}")
    lines = rlinf("plan", file, "--nodes", "512x8", "--map").stdout.splitlines()
    assert lines[1:3] == [
        "0-255    -      GPU      AB AB AB AB AB AB AB AB",
        "256-511  -      GPU      A  A  A  A  A  A  A  A",
    ]


def test_devices_of_a_very_large_node_are_counted():
    plan = plan_components(
        Topology.parse("64,0"), [PlacementRule(("actor",), "0-39"), PlacementRule(("env",), "8-9")]
    )
    lines = render_map(plan, Sharing(plan)).splitlines()
    assert lines[1] == "0      -      GPU      A*8  AB*2 A*30 .*24"
    assert lines[2] == "1      -      node     ."


def test_very_many_components_on_a_device_are_cut_short():
    rules = [PlacementRule((f"c{index}",), "0") for index in range(60)]
    plan = plan_components(Topology.parse("1"), rules)
    assert render_map(plan, Sharing(plan)).splitlines()[1].endswith("ABCDEFG+")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_map_on_a_terminal_is_coloured(monkeypatch):
    plan = plan_components(Topology.parse("1x2"), [PlacementRule(("[red]",), "0")])
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    drawn = render_map(plan, Sharing(plan))
    assert "\x1b[" in drawn
    assert "[red]" in drawn
    assert "\x1b[" not in render_map(plan, Sharing(plan), colour=False)


def test_every_component_has_a_look_of_its_own():
    found = looks(f"c{index}" for index in range(60)).values()
    assert len({look.letter for look in found}) == 60
    assert len({look.colour for look in found}) == 60
    assert all(len(look.colour) == 7 and look.ink in ("#000000", "#ffffff") for look in found)


@pytest.mark.parametrize("options", [("--json", "--map"), ("--nodes", "2x8", "--map")])
def test_map_with_another_answer_is_a_wrong_question(options):
    assert plan_mixed_fleet(*options).exit_code == 2
