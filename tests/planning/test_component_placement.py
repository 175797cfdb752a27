"""The facade: whole configs in every form, on topologies and clusters."""

import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from rlinf import scheduler
from rlinf.scheduler import ComponentPlacement, Topology
from rlinf_scheduler import placement
from rlinf_scheduler.errors import ConfigError, ConfigErrors, PlacementError

STRATEGIES = (
    "PlacementStrategy",
    "PackedPlacementStrategy",
    "FlexiblePlacementStrategy",
    "NodePlacementStrategy",
)

HELLO = """\
cluster:
  num_nodes: 1
  component_placement:
    test_worker: # Component name
      node_group: a800
      placement: 0-3 # Place one process on each of the GPUs 0-3 of node group 'a800' (contains only node 0)

  node_groups:
    - label: a800
      node_ranks: 0
"""


def section(component_placement, **other):
    return {"cluster": {"component_placement": component_placement, **other}}


def errors_of(config, topology="1x8"):
    with pytest.raises(ConfigErrors) as caught:
        ComponentPlacement(config, Topology.parse(topology))
    return [(error.path, error.problem) for error in caught.value.errors]


def write(tmp_path, text):
    file = tmp_path / "conf.yaml"
    file.write_text(text)
    return file


def test_the_documented_hello_config_places_four_workers(tmp_path):
    file = write(tmp_path, HELLO)
    forms = [
        file,
        str(file),
        OmegaConf.load(file),
        OmegaConf.load(file).cluster,
        OmegaConf.to_container(OmegaConf.load(file)),
    ]
    for config in forms:
        hello = ComponentPlacement(config, Topology.parse("1x8"))
        assert hello.components == ("test_worker",)
        assert hello.get_world_size("test_worker") == 4
        assert hello.get_hardware_ranks("test_worker") == [0, 1, 2, 3]
        assert [p.node_group for p in hello.placements("test_worker")] == ["a800"] * 4


def test_the_documented_node_groups_are_placed_once_the_counts_divide():
    robots = [{"node_rank": n // 2, "address": f"10.0.0.{n}"} for n in (4, 5, 6, 7)]
    config = section(
        {
            "actor": {"node_group": "a800", "placement": "0-8"},
            "rollout": {"node_group": 4090, "placement": "0-8"},
            "env": {"node_group": "robot", "placement": "0-3:0-7"},
            "agent": {"node_group": "node", "placement": "0-1:0-199,2-3:200-511"},
        },
        num_nodes=4,
        node_groups=[
            {"label": "a800", "node_ranks": "0-1"},
            {"label": 4090, "node_ranks": [2, "3"]},
            {"label": "robot", "node_ranks": "2-3", "hardware": {"type": "Robot", "configs": robots}},
        ],
    )
    placed = ComponentPlacement(config, Topology.parse("4x8"))
    assert [placed.get_world_size(name) for name in placed.components] == [9, 9, 8, 512]
    assert [p.node_rank for p in placed.placements("env")] == [2, 2, 2, 2, 3, 3, 3, 3]


def test_the_documented_counts_that_do_not_divide_are_an_error():
    with pytest.raises(PlacementError) as caught:
        ComponentPlacement(
            section({"agent": {"node_group": "node", "placement": "0-1:0-200"}}), Topology.parse("2x8")
        )
    assert str(caught.value) == (
        "cluster.component_placement.agent.placement: component 'agent': "
        "201 processes cannot share 2 resources evenly; one count divides the other\n"
        "  0-1:0-200\n"
        "  ^^^^^^^^^\n"
        "  hint: 0-1:0-199 or 0-1:0-201"
    )


def test_components_of_one_rule_are_placed_alike():
    placed = ComponentPlacement(section({"actor, inference": "0-7"}), Topology.parse("1x8"))
    assert placed.components == ("actor", "inference")
    assert placed.placements("actor") == placed.placements("inference")


@pytest.mark.parametrize(
    "written", [3, "3", [3], ["3"], {"placement": 3}, {"node_group": None, "placement": [3]}]
)
def test_placement_is_text_a_number_or_a_list(written):
    placed = ComponentPlacement(section({"actor": written}), Topology.parse("1x8"))
    assert placed.get_hardware_ranks("actor") == [3]


@pytest.mark.parametrize("written", ["a,b", ["a", "b"], " a , b "])
def test_node_groups_are_text_or_a_list(written):
    groups = [{"label": "a", "node_ranks": 1}, {"label": "b", "node_ranks": 0}]
    config = section({"actor": {"node_group": written, "placement": "0-1"}}, node_groups=groups)
    placed = ComponentPlacement(config, Topology.parse("2x1"))
    assert [p.node_rank for p in placed.placements("actor")] == [1, 0]


def test_job_on_a_bigger_cluster_uses_its_first_nodes():
    placed = ComponentPlacement(section({"actor": "all"}, num_nodes=1), Topology.parse("2x8"))
    assert placed.get_world_size("actor") == 8
    assert placed.topology.num_nodes == 1


def test_where_may_be_a_cluster():
    class Cluster:
        topology = Topology.parse("1x2")

    assert ComponentPlacement(section({"actor": "all"}), Cluster()).get_world_size("actor") == 2
    with pytest.raises(ConfigError, match="a Cluster or a Topology is needed to plan on, not str"):
        ComponentPlacement(section({"actor": "all"}), "1x2")


def test_unknown_component_names_the_nearest():
    placed = ComponentPlacement(section({"actor": "all", "rollout": "all"}), Topology.parse("1x8"))
    for ask in (placed.get_strategy, placed.get_world_size, placed.get_hardware_ranks, placed.placements):
        with pytest.raises(PlacementError, match="there are: actor, rollout") as caught:
            ask("rolout")
        assert caught.value.hint == "did you mean 'rollout'?"


def test_independent_mistakes_are_reported_together_in_the_order_of_the_file():
    config = section({"actor": "0-9", "env": "x", "agent": {"placment": 0}}, num_nodes=1, simulat="1x8")
    assert [path for path, _ in errors_of(config)] == [
        "cluster.component_placement.actor",
        "cluster.component_placement.env",
        "cluster.component_placement.agent.placment",
        "cluster.simulat",
    ]


def test_wrong_node_group_does_not_blame_the_components_on_it():
    config = section(
        {"actor": {"node_group": "a", "placement": "0"}, "env": "0,,1"},
        node_groups=[{"label": "a", "node_ranks": 7}],
    )
    assert [path for path, _ in errors_of(config)] == [
        "cluster.component_placement.env",
        "cluster.node_groups[0].node_ranks",
    ]


def test_error_of_a_file_names_file_and_line(tmp_path):
    file = write(tmp_path, HELLO.replace("placement: 0-3", "placement: 0-8"))
    with pytest.raises(PlacementError) as caught:
        ComponentPlacement(file, Topology.parse("1x8"))
    assert caught.value.file == f"{file}:6"
    assert str(caught.value) == (
        f"{file}:6: cluster.component_placement.test_worker.placement: component 'test_worker': "
        "accelerator 8 is not there; 'a800' has accelerators 0-7 on node 0\n"
        "  0-8\n"
        "  ^^^"
    )


def test_unquoted_colon_stays_text_in_a_file(tmp_path):
    file = write(tmp_path, "cluster:\n  component_placement:\n    a: 1:0\n    b: [2:0, 3]\n    c: 70\n")
    placed = ComponentPlacement(file, Topology.parse("10x8"))
    assert placed.get_hardware_ranks("a") == [1]
    assert placed.get_hardware_ranks("b") == [2, 3]
    assert placed.get_hardware_ranks("c") == [70]


@pytest.mark.parametrize("written", ["1:0", "[0, 2:5]", "{placement: 1:0}"])
def test_number_that_another_loader_made_of_a_colon_is_recognised(written):
    config = OmegaConf.create(f"cluster:\n  component_placement:\n    actor: {written}\n")
    with pytest.raises(PlacementError, match=r"YAML 1\.1 reads that, without quotes, as") as caught:
        ComponentPlacement(config, Topology.parse("100x8"))
    assert caught.value.hint.startswith("put it in quotes, '")


def test_no_component_at_all_is_an_error():
    with pytest.raises(ConfigError, match="no component has a place"):
        ComponentPlacement({"cluster": {"num_nodes": 1}}, Topology.parse("1x8"))


def test_names_of_the_documents_are_in_the_face():
    for name in placement.__all__:
        assert getattr(placement, name) is not None
    for name in ("ComponentPlacement", "Placement", "Topology", *STRATEGIES):
        assert issubclass(getattr(scheduler, name), getattr(placement, name))


def test_planning_loads_neither_ray_nor_a_config_library():
    program = (
        "import sys, rlinf_scheduler.planning; from rlinf.scheduler import PackedPlacementStrategy;"
        "print([m for m in ('ray', 'torch', 'pydantic', 'omegaconf', 'yaml', 'numpy', 'asyncio') if m in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.strip() == "[]"


def test_components_that_share_devices_say_so_and_which():
    rules = {
        "actor": "0-3",
        "rollout": "2-5",
        "env": "6-7",
        "agent,tool": {"node_group": "node", "placement": 0},
    }
    placed = ComponentPlacement(section(rules), Topology.parse("1x8"))
    assert placed.shares("actor", "rollout") is True
    assert placed.shares("rollout", "actor") is True
    assert placed.shares("actor", "env") is False
    shared = placed.shared_devices("rollout", "actor")
    assert [(d.node_rank, d.hardware_type, d.local_hardware_rank) for d in shared] == [
        (0, "GPU", 2),
        (0, "GPU", 3),
    ]
    assert {d.components for d in shared} == {("rollout", "actor")}


def test_components_on_one_bare_node_share_no_device():
    rules = {"agent,tool": {"node_group": "node", "placement": 0}}
    assert not ComponentPlacement(section(rules), Topology.parse("1x8")).shares("agent", "tool")


def test_unknown_component_shares_nothing_and_names_the_nearest():
    placed = ComponentPlacement(section({"actor": 0, "rollout": 1}), Topology.parse("1x8"))
    with pytest.raises(PlacementError) as caught:
        placed.shares("actor", "rolout")
    assert caught.value.hint == "did you mean 'rollout'?"


def robots(*configs):
    group = {"label": "arms", "node_ranks": "0-1", "hardware": {"type": "Robot", "configs": list(configs)}}
    return section({"env": {"node_group": "arms", "placement": "all"}}, node_groups=[group])


def test_same_robot_twice_in_a_group_is_an_error():
    arm = {"node_rank": 0, "address": "10.0.0.7", "port": 5000}
    with pytest.raises(ConfigError) as caught:
        ComponentPlacement(
            robots(arm, {"node_rank": 1, "address": "10.0.0.8"}, dict(arm)), Topology.parse("2x0")
        )
    assert caught.value.path == "cluster.node_groups[0].hardware.configs[2]"
    assert caught.value.problem == "entries 0 and 2 are the same Robot, at 10.0.0.7:5000"


def test_two_entries_that_say_the_same_are_one_robot_also_without_an_address():
    arm = {"node_rank": 0, "port": 5000}
    with pytest.raises(ConfigError) as caught:
        ComponentPlacement(robots(arm, {"node_rank": 1, "port": 5000}, dict(arm)), Topology.parse("2x0"))
    assert caught.value.path == "cluster.node_groups[0].hardware.configs[2]"
    assert caught.value.problem == "entries 0 and 2 are the same Robot"
    assert caught.value.hint == "every piece stands in its group once; a setting that differs tells two apart"


@pytest.mark.parametrize(
    "other", [{"node_rank": 1, "address": "10.0.0.7"}, {"node_rank": 0, "address": "10.0.0.7", "port": 1}]
)
def test_robots_of_one_address_and_other_settings_are_two(other):
    placed = ComponentPlacement(robots({"node_rank": 0, "address": "10.0.0.7"}, other), Topology.parse("2x0"))
    assert placed.get_world_size("env") == 2


def test_two_entries_of_which_nothing_but_the_node_is_said_are_two_robots():
    placed = ComponentPlacement(robots({"node_rank": 0}, {"node_rank": 0}), Topology.parse("2x0"))
    assert [p.local_hardware_ranks for p in placed.placements("env")] == [(0,), (1,)]
