"""What a process finds in `self.hardware`: what it was given, and nothing else."""

import pickle

import pytest

from rlinf.scheduler import ComponentPlacement, Topology
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware import Accelerator, HardwareTable, RobotConfig
from rlinf_scheduler.planning import Node


def robots(label, node_ranks, *units):
    configs = [{"node_rank": rank, "address": address} for rank, address in units]
    return {"label": label, "node_ranks": node_ranks, "hardware": {"type": "Robot", "configs": configs}}


def place(placements, *groups, nodes="2x2"):
    section = {"component_placement": placements, "node_groups": list(groups)}
    return ComponentPlacement(
        {"cluster": section}, nodes if isinstance(nodes, Topology) else Topology.parse(nodes)
    )


def views(placed, component):
    table = HardwareTable(placed.topology)
    return [table.views_of(placement) for placement in placed.placements(component)]


def test_robots_are_given_as_they_were_declared():
    arms = robots("arms", "0-1", (1, "a"), (0, "b"), (1, "c"))
    placed = place({"env": {"node_group": "arms", "placement": "0-2:0-2"}}, arms)
    assert [[(v.node_rank, v.address) for v in own] for own in views(placed, "env")] == [
        [(1, "a")],
        [(0, "b")],
        [(1, "c")],
    ]


def test_processes_that_share_a_robot_see_the_same_one():
    placed = place({"env": {"node_group": "arms", "placement": "0:0-2"}}, robots("arms", 1, (1, "a")))
    assert views(placed, "env") == [(RobotConfig(node_rank=1, address="a"),)] * 3


def test_process_with_several_robots_sees_them_in_order():
    arms = robots("arms", 0, (0, "a"), (0, "b"), (0, "c"), (0, "d"))
    placed = place({"env": {"node_group": "arms", "placement": "all:0-1"}}, arms)
    assert [[v.address for v in own] for own in views(placed, "env")] == [["a", "b"], ["c", "d"]]


def test_robot_of_two_groups_is_one_robot():
    left, both = robots("left", 0, (0, "l")), robots("both", 0, (0, "r"), (0, "l"))
    rules = {name: {"node_group": name, "placement": "all"} for name in ("left", "both")}
    placed = place(rules, left, both)
    assert [[v.address for v in own] for own in views(placed, "left")] == [["l"]]
    assert [[v.address for v in own] for own in views(placed, "both")] == [["r"], ["l"]]
    table = HardwareTable(placed.topology)
    (left_unit,) = table.units_of(placed.placements("left")[0])
    assert [table.units_of(placement)[0] is left_unit for placement in placed.placements("both")] == [
        False,
        True,
    ]


@pytest.mark.parametrize("isolate_gpu", [True, False])
def test_accelerators_are_given_by_index_and_by_their_name_in_the_mask(isolate_gpu):
    topology = Topology(nodes=(Node(num_accelerators=2, accelerator_type="AMD", visible=("4", "5")),))
    placed = place({"actor": "0-1:0"}, nodes=topology)
    (placement,) = placed.placements("actor", isolate_gpu=isolate_gpu)
    assert HardwareTable(placed.topology).views_of(placement) == (
        Accelerator("AMD", 0, "4"),
        Accelerator("AMD", 1, "5"),
    )


def test_process_on_a_bare_node_was_given_nothing():
    placed = place({"agent": {"node_group": "node", "placement": "0-1"}}, robots("arms", 0, (0, "a")))
    assert views(placed, "agent") == [(), ()]


def test_component_of_many_groups_gets_for_each_process_what_it_has():
    arms, cpu = robots("arms", 1, (1, "a")), {"label": "cpu", "node_ranks": 0, "ignore_hardware": True}
    placed = place({"mix": {"node_group": "cpu,arms,cluster", "placement": "all"}}, arms, cpu, nodes="1x2,0")
    assert [[type(view).__name__ for view in own] for own in views(placed, "mix")] == [
        [],
        ["RobotConfig"],
        ["Accelerator"],
        ["Accelerator"],
    ]


def test_piece_of_another_topology_is_a_mistake_with_a_name():
    placed = place({"env": {"node_group": "arms", "placement": 0}}, robots("arms", 0, (0, "a")))
    with pytest.raises(ConfigError, match="process 0 was given Robot 0 of node 0, which no node group"):
        HardwareTable(Topology.parse("2x2")).views_of(placed.placements("env")[0])


def test_views_travel_to_other_processes():
    placed = place({"env": {"node_group": "arms", "placement": 0}}, robots("arms", 0, (0, "a")))
    own = views(placed, "env")
    assert pickle.loads(pickle.dumps(own)) == own
