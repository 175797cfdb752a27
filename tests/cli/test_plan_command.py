"""`rlinf plan`: the table, the data, the exit codes."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from plan_files import rlinf
from rlinf_scheduler.cli.plan_table import plan_rows, render_plan
from rlinf_scheduler.planning import HardwareUnit, NodeGroup, PlacementRule, Topology, plan_components

MIXED = """\
cluster:
  num_nodes: 2
  component_placement:
    actor: 0-3
    critic: 2-3:0
    env: {node_group: arms, placement: 0-1:0-3}
    agent: {node_group: node, placement: all}
  node_groups:
    - label: arms
      node_ranks: 1
      hardware:
        type: Robot
        configs: [{node_rank: 1, address: 10.0.0.1}, {node_rank: 1, address: 10.0.0.2}]
"""


def test_table_shows_component_rank_node_devices_and_sharing(conf):
    result = rlinf("plan", conf(MIXED), "--nodes", "2x4")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0] == ["component", "rank", "node", "devices", "visible", "shared", "with"]
    assert rows[1] == ["actor", "0", "0", "GPU", "0", "0", "-"]
    assert rows[3] == ["actor", "2", "0", "GPU", "2", "2", "critic"]
    assert rows[5] == ["critic", "0", "0", "GPU", "2-3", "2,3", "actor"]
    assert rows[6] == ["env", "0", "1", "Robot", "0", "-", "-"]
    assert rows[11] == ["agent", "1", "1", "node", "-", "-"]
    assert result.stdout.splitlines()[12:] == [
        "11 processes of 4 components on 2 nodes with 8 accelerators",
        "warning: 4 of 8 GPU accelerators are idle: all of node 1",
        "note: actor and critic share 2 accelerators on node 0",
        "note: env runs 4 processes on 2 devices of node 1: 2 share one",
    ]


def test_table_in_a_pipe_is_plain(conf):
    result = rlinf("plan", conf(MIXED), "--nodes", "2x4")
    assert result.stdout.isascii()
    assert not any(line.endswith(" ") for line in result.stdout.splitlines())


LARGE = """\
cluster:
  component_placement:
    actor: all
    rollout: 0-2047:0-1023
    env: 8-15:0-31
    agent: {node_group: node, placement: 0-1:0-3}
"""


def test_large_plan_has_a_row_for_ranks_that_are_placed_alike(conf):
    result = rlinf("plan", conf(LARGE), "--nodes", "512x8")
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()[1:10]]
    assert rows == [
        "actor 0-7 0 GPU 0-7, 1 each its own rollout",
        "actor 8-15 1 GPU 0-7, 1 each its own rollout, env",
        "actor 16-2047 2-255 GPU 0-7, 1 each its own rollout",
        "actor 2048-4095 256-511 GPU 0-7, 1 each its own -",
        "rollout 0-3 0 GPU 0-7, 2 each its own actor",
        "rollout 4-7 1 GPU 0-7, 2 each its own actor, env",
        "rollout 8-1023 2-255 GPU 0-7, 2 each its own actor",
        "env 0-31 1 GPU 0-7, 4 ranks on each its own actor, rollout",
        "agent 0-3 0-1 node - -",
    ]


def test_every_rank_is_listed_when_asked(conf):
    result = rlinf("plan", conf(LARGE), "--nodes", "512x8", "--ranks")
    notes = [line for line in result.stdout.splitlines() if line.startswith("note: ")]
    assert len(result.stdout.splitlines()) == 4096 + 1024 + 32 + 4 + 2 + len(notes)


def test_json_is_the_same_as_data(conf):
    result = rlinf("plan", conf(MIXED), "--nodes", "2x4", "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert list(data["components"]) == ["actor", "critic", "env", "agent"]
    assert data["components"]["actor"]["placements"][2]["shares_with"] == ["critic"]
    assert data["shared"][0]["components"] == ["actor", "critic"]


def test_nodes_default_to_what_the_file_simulates(conf):
    result = rlinf("plan", conf("cluster: {simulate: 1x2, component_placement: {actor: all}}"))
    assert result.exit_code == 0
    assert "2 processes of 1 component on 1 node with 2 accelerators" in result.stdout


def test_without_nodes_the_error_says_what_to_add(conf):
    result = rlinf("plan", conf("cluster: {num_nodes: 3, component_placement: {actor: all}}"))
    assert result.exit_code == 2
    assert "how many accelerators do the nodes have?" in result.stderr
    assert "add `--nodes 3x8`, or `simulate: 3x8` under `cluster:`" in result.stderr


@pytest.mark.parametrize("extra", [(), ("--nodes", "2x8")])
def test_mistake_in_the_file_exits_2_with_one_readable_message(conf, extra):
    file = conf("cluster:\n  simulate: 2x8\n  component_placement:\n    actor: 0-1,1-3\n")
    result = rlinf("plan", file, *extra)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"rlinf: {file}:4: cluster.component_placement.actor: component 'actor': "
        "accelerator 1 is used twice in one component\n"
        "  0-1,1-3\n"
        "      ^^^\n"
    )


def test_all_mistakes_of_a_file_are_told_at_once(conf):
    file = conf("cluster:\n  simulate: 2y8\n  component_placement:\n    actor: 0,\n    env: {placment: 1}\n")
    result = rlinf("plan", file)
    assert result.exit_code == 2
    assert [line.split(": ")[1] for line in result.stderr.splitlines() if line.startswith("- ")] == [
        "cluster.simulate",
        "cluster.component_placement.actor",
        "cluster.component_placement.env.placment",
    ]
    assert rlinf("plan", file, "--nodes", "2x8").stderr.startswith("rlinf: 3 mistakes\n")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("plan",),
        ("plan", "nowhere.yaml", "--nodes", "2x8"),
        ("plan", "x", "--nodes", ""),
        ("plan", "x", "--nodez", "1"),
        ("plam",),
    ],
)
def test_wrong_question_exits_2(arguments):
    result = rlinf(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


def test_version_and_help_are_there():
    assert rlinf("--version").stdout.startswith("rlinf-scheduler ")
    assert "plan" in rlinf("--help").stdout


def test_installed_command_answers_without_ray(conf):
    program = Path(sys.executable).with_name("rlinf")
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", program, "plan", conf(MIXED), "--nodes", "2x4"],
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
    )
    assert shown.stdout.startswith("component")
    imported = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    assert not imported & {"ray", "torch", "numpy", "cryptography", "omegaconf"}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_table_on_a_terminal_is_drawn(monkeypatch):
    rules = [PlacementRule(("actor", "[red]"), "0-3:0-1"), PlacementRule(("env",), "0,1-2:1-6,3:7")]
    plan = plan_components(Topology.parse("1x4"), rules)
    monkeypatch.setattr(sys, "stdout", Terminal())
    drawn = render_plan(plan)
    assert drawn.startswith("╭")
    assert "[red]" in drawn
    assert drawn.count("├") == 3


def test_summary_says_how_devices_are_shared_out():
    groups = [
        NodeGroup("left", (0,), (HardwareUnit("Robot", 0, "a"), HardwareUnit("Robot", 0, "b"))),
        NodeGroup("right", (0,), (HardwareUnit("Robot", 0, "c"),)),
    ]
    topology = Topology.parse("1x8").with_node_groups(groups)
    rules = [
        PlacementRule(("pairs",), "0-3:0-1"),
        PlacementRule(("threes",), "0-1:0-5"),
        PlacementRule(("uneven",), "0-1:0,2:1"),
        PlacementRule(("odd",), "0:0-1,1:2"),
        PlacementRule(("gap",), "0-1,4,6-7"),
        PlacementRule(("arms",), "0-2:0", ("left", "right")),
        PlacementRule(("bare",), "0:0-2", ("node",)),
    ]
    rows = plan_rows(plan_components(topology, rules), every_rank=False)
    assert {row.component: row.devices for row in rows} == {
        "pairs": "GPU 0-3, 2 each",
        "threes": "GPU 0-1, 3 ranks on each",
        "uneven": "GPU 0-2",
        "odd": "GPU 0-1, shared",
        "gap": "GPU 0-1,4,6-7, 1 each",
        "arms": "Robot 0-2",
        "bare": "node",
    }


def test_name_cannot_steer_the_terminal(conf):
    file = conf('cluster: {component_placement: {"a\\e[2Jb\\nc": 0}}')
    for option in ("--map", "--ranks"):
        shown = rlinf("plan", file, "--nodes", "1x2", option).stdout
        assert "\x1b" not in shown
        assert "a\ufffd[2Jb\ufffdc" in shown


FLEET = """\
cluster:
  component_placement:
    actor: 0-15
    rollout: 16-31
"""


def test_without_a_node_it_says_what_still_fits(conf):
    file = conf(FLEET)
    result = rlinf("plan", file, "--nodes", "4x8", "--without", "node1")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == (
        "without node 1: 3 nodes with 24 accelerators left, numbered anew from 0; not all of the job fits"
    )
    assert [line.split() for line in lines[2:4]] == [
        ["actor", "16", "8-15", "8", "0-7"],
        ["rollout", "16", "-", "16", "8-23"],
    ]
    assert "24 processes of 2 components on 3 nodes with 24 accelerators" in result.stdout
    assert rlinf("plan", file, "--nodes", "4x8", "--without", "10.0.0.9").exit_code == 2
    assert rlinf("plan", file, "--nodes", "4x8", "--without", "0", "--without", "1", "--map").exit_code == 1


def test_the_pages_example_of_what_still_fits_is_what_its_config_gives(conf):
    page = (Path(__file__).parents[2] / "docs/how-to/read-a-plan.md").read_text()
    section = page.partition("## What still fits")[2]
    config = section.partition("```yaml\n")[2].partition("```")[0]
    command, *shown = [line.removeprefix("    ") for line in section.splitlines() if line.startswith("    ")][
        2:
    ]
    result = rlinf("plan", conf(config), *command.split()[3:])
    assert result.stdout.startswith("\n".join(shown))


def test_spare_nodes_are_told_of_and_take_the_place_of_a_lost_one(conf):
    file = conf(FLEET.replace("component_placement", "num_nodes: 4\n  component_placement"))
    result = rlinf("plan", file, "--nodes", "6x8")
    assert (
        "warning: nodes 4-5 are not used: the config's num_nodes is 4, and there are 6 nodes" in result.stdout
    )
    result = rlinf("plan", file, "--nodes", "6x8", "--without", "node1")
    assert result.exit_code == 0
    assert "every rank keeps its place" in result.stdout
    assert "warning: node 4 is not used: the config's num_nodes is 4, and there are 5 nodes" in result.stdout


@pytest.mark.parametrize(
    ("output", "status", "said"),
    [
        (">&-", 0, ""),
        (">/dev/full", 2, "rlinf: what is to be written finds no room: No space left on device\n"),
    ],
)
def test_an_output_that_is_closed_or_full_is_no_traceback(conf, output, status, said):
    command = f"{sys.executable} -m rlinf plan {conf(MIXED)} --nodes 2x4 --map {output}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stderr) == (status, said)


BY_PROPERTIES = """\
cluster:
  component_placement:
    actor: {node_group: {gpu: H100, label: {rack: a}}, count: 4, same: node}
    env: 0-1
"""
RACKS = """\
version: 1
nodes:
  - {labels: {rack: b}, accelerators: {type: NVIDIA, count: 4, model: NVIDIA H100 80GB HBM3}}
  - {labels: {rack: a}, accelerators: {type: NVIDIA, count: 4, model: NVIDIA H100 80GB HBM3}}
"""


def test_what_a_placement_by_properties_means_is_explained(conf, tmp_path):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(RACKS)
    result = rlinf("plan", conf(BY_PROPERTIES), "--fleet", str(fleet), "--explain")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-5:] == [
        "actor: placement '4-7' of node group 'cluster'",
        "  4 accelerators fit (gpu H100, label rack=a), on node 1",
        "  node 0: its label rack is b",
        "  4 of them are free of other components",
        "  4 accelerators on node 1: one node, where the fewest are left over",
    ]
    as_data = json.loads(rlinf("plan", conf(BY_PROPERTIES), "--fleet", str(fleet), "--json").stdout)
    assert as_data["found"]["actor"]["placement"] == "4-7"
    assert list(as_data["found"]) == ["actor"]


def test_nothing_is_explained_where_all_is_written(conf):
    result = rlinf("plan", conf(MIXED), "--nodes", "2x4", "--explain")
    assert result.stdout.splitlines()[-1] == "no component is placed by properties"


def test_what_is_left_without_a_node_is_not_explained(conf):
    result = rlinf("plan", conf(BY_PROPERTIES), "--nodes", "2x4", "--explain", "--without", "node1")
    assert result.exit_code == 2
    assert "--explain says what is found on all nodes" in result.stderr
