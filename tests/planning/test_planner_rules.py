"""The rules of component placement that the case file does not cover, one by one."""

import pickle

import pytest

from rlinf_scheduler.errors import ConfigErrors, PlacementError
from rlinf_scheduler.planning import (
    HardwareUnit,
    Node,
    NodeGroup,
    PlacementRule,
    Topology,
    plan_components,
    plan_rule,
)


def plan(text, topology="2x8", groups=("cluster",), node_groups=()):
    nodes = topology if isinstance(topology, Topology) else Topology.parse(topology)
    return plan_rule(nodes.with_node_groups(node_groups), PlacementRule(("actor",), text, groups))


def devices(component):
    return [(p.node_rank, *p.local_hardware_ranks) for p in component.placements()]


def robots(*node_ranks):
    return tuple(HardwareUnit("Robot", rank, f"10.0.0.{index}") for index, rank in enumerate(node_ranks))


def failure(text, **options):
    with pytest.raises(PlacementError) as caught:
        plan(text, **options)
    return caught.value


def test_consecutive_processes_share_a_resource():
    assert devices(plan("0-1:0-3")) == [(0, 0), (0, 0), (0, 1), (0, 1)]


def test_process_takes_consecutive_resources():
    assert devices(plan("4-7:0-1")) == [(0, 4, 5), (0, 6, 7)]


def test_segment_without_processes_goes_on_from_the_last():
    component = plan("0-1:0-3,3-5,7-10:7-14", topology="1x12")
    assert component.world_size == 15
    assert devices(component)[4:7] == [(0, 3), (0, 4), (0, 5)]
    assert component.hardware_ranks == [0, 1, 3, 4, 5, 7, 8, 9, 10]


def test_resources_may_descend_while_processes_ascend():
    assert devices(plan("8-9:0-1,0-1:2-3")) == [(1, 0), (1, 1), (0, 0), (0, 1)]


def test_counts_that_do_not_divide_show_the_nearest_that_do():
    error = failure("0-1:0-200", groups=("node",))
    assert "201 processes cannot share 2 resources" in error.problem
    assert error.hint == "0-1:0-199 or 0-1:0-201"
    assert error.component == "actor"
    assert failure("0-7:0-2").hint == "0-7:0-1 or 0-7:0-3"


def test_process_across_nodes_names_process_resources_and_nodes():
    error = failure("0-8:0-2", topology="2x8")
    assert error.problem == (
        "process 2 would take accelerators 6, 7 of node 0 and 0 of node 1; a process stays on one node"
    )
    assert error.text[slice(*error.span)] == "0-8:0-2"
    error = failure("0:0, 1-8:1-2")
    assert "process 2 would take accelerators 5, 6, 7 of node 0 and 0 of node 1" in error.problem
    assert error.text[slice(*error.span)] == "1-8:1-2"


def test_process_across_bare_nodes_is_refused():
    error = failure("0-1:0", groups=("node",))
    assert error.problem == "process 0 would take nodes 0, 1; a process stays on one node"


def test_process_across_kinds_of_hardware_is_refused():
    group = NodeGroup("arms", (0,), robots(0))
    error = failure("0-1:0", topology="1x1", groups=("cluster", "arms"), node_groups=[group])
    assert error.problem == (
        "process 0 would take accelerator 0 of node 0 and Robot 0 of node 0; a process keeps to one kind of hardware"
    )


def test_accelerators_of_two_vendors_are_two_kinds():
    topology = Topology(
        (
            Node(num_accelerators=1, accelerator_type="NVIDIA"),
            Node(num_accelerators=1, accelerator_type="Ascend"),
        )
    )
    assert [p.hardware_type for p in plan("0-1", topology=topology).placements()] == ["NVIDIA", "Ascend"]


@pytest.mark.parametrize(
    ("text", "problem", "spot", "hint"),
    [
        (
            "0-1,8-16",
            "accelerator 16 is not there; the cluster has accelerators 0-15 on nodes 0-1",
            "8-16",
            "",
        ),
        ("20-30", "accelerators 20-30 are not there", "20-30", ""),
        ("0-3:4-7", "process ranks start at 4, not at 0", "4-7", "0-3:0-3"),
        ("0-3,4-5:2-3", "process ranks start again at 2, but those before it reach 3", "2-3", "4-5:4-5"),
        ("0-3,4-5:6-7", "process ranks 4-5 are left out", "6-7", "4-5:4-5"),
        ("1:2", "process ranks start at 2, not at 0", "2", "1:0"),
        ("0-3,3-5", "accelerator 3 is used twice in one component", "3-5", ""),
        ("0,all", "accelerator 0 is used twice in one component", "all", ""),
    ],
)
def test_error_points_at_the_bad_segment(text, problem, spot, hint):
    error = failure(text)
    assert problem in error.problem
    assert error.text[slice(*error.span)] == spot
    assert error.hint == hint


def test_group_that_does_not_exist_is_refused():
    error = failure("0", groups=("arms",))
    assert "there is no node group 'arms'; there are 'cluster', 'node'" in error.problem


@pytest.mark.parametrize(
    ("text", "gap"),
    [("0:0,1:2", "process rank 1 is left out"), ("0:0,1:4", "process ranks 1-3 are left out")],
)
def test_one_rank_is_left_out_and_several_are(text, gap):
    assert failure(text).problem.startswith(gap)


def test_group_listed_twice_is_refused():
    assert "'node' is listed twice" in failure("0", groups=("node", "node")).problem


def test_several_groups_are_numbered_in_the_order_written():
    groups = [NodeGroup("a800", (0,)), NodeGroup("4090", (1,))]
    component = plan("0-7,8-11", groups=("4090", "a800"), node_groups=groups)
    first, last = component.placements()[0], component.placements()[-1]
    assert (first.node_rank, first.node_group, first.hardware_ranks) == (1, "4090", (0,))
    assert (last.node_rank, last.node_group, last.hardware_ranks) == (0, "a800", (3,))
    assert component.hardware_ranks == list(range(12))


def test_component_mixes_accelerators_robots_and_nodes():
    groups = [NodeGroup("gpus", (1,)), NodeGroup("arms", (0,), robots(0, 0))]
    component = plan("0-1,2-3,4-5:4-7", "0,2", ("gpus", "arms", "node"), groups)
    assert [p.hardware_type for p in component.placements()] == [
        "GPU",
        "GPU",
        "Robot",
        "Robot",
        "",
        "",
        "",
        "",
    ]
    assert [p.local_rank for p in component.placements()] == [0, 1, 0, 1, 2, 3, 2, 3]
    # Rank 0 is on node 1: that is the first of this component's nodes.
    assert [p.placement_node_rank for p in component.placements()] == [0, 0, 1, 1, 1, 1, 0, 0]
    assert component.placements()[0].local_world_size == 4


def test_overlapping_groups_cannot_give_one_device_twice():
    groups = [NodeGroup("a", (0,)), NodeGroup("b", (1, 0))]
    error = failure("0-7,8-23", groups=("a", "b"), node_groups=groups)
    assert error.problem == "accelerator 0 of node 0 is used twice, as part of 'a' and of 'b'"
    assert plan("0-7,8-15", groups=("a", "b"), node_groups=groups).world_size == 16


def test_nodes_of_a_group_are_numbered_in_its_order():
    component = plan("0-9", topology="8,2,4", groups=("g",), node_groups=[NodeGroup("g", (2, 0))])
    assert devices(component)[:5] == [(2, 0), (2, 1), (2, 2), (2, 3), (0, 0)]
    assert component.placements()[4].hardware_ranks == (4,)


def test_group_without_accelerators_counts_its_nodes():
    component = plan("all:0-3", topology="8,0,0", groups=("cpus",), node_groups=[NodeGroup("cpus", (2, 1))])
    assert [p.node_rank for p in component.placements()] == [2, 2, 1, 1]
    assert not component.has_hardware


def test_nodes_without_accelerators_are_passed_over():
    assert devices(plan("all", topology="2,0,1")) == [(0, 0), (0, 1), (2, 0)]


def test_ignored_hardware_makes_nodes_the_resources():
    group = NodeGroup("g", (0, 1), robots(0), ignore_hardware=True)
    component = plan("all", groups=("g",), node_groups=[group])
    assert [p.local_hardware_ranks for p in component.placements()] == [(), ()]


def test_hardware_is_numbered_as_declared_and_indexed_on_its_node():
    group = NodeGroup("arms", (0, 1), robots(1, 0, 1))
    component = plan("all", topology="0,0", groups=("arms",), node_groups=[group])
    assert devices(component) == [(1, 0), (0, 0), (1, 1)]


def test_process_may_take_neighbouring_hardware_of_two_groups():
    groups = [NodeGroup("left", (0,), robots(0)), NodeGroup("right", (0,), (HardwareUnit("Robot", 0, "r"),))]
    (placement,) = plan("0-1:0", "1x0", ("left", "right"), groups).placements()
    assert placement.local_hardware_ranks == (0, 1)
    assert placement.hardware_ranks == (0, 0)
    assert placement.node_group == "left,right"


def test_piece_that_two_groups_declare_keeps_its_index():
    arm, leg = HardwareUnit("Robot", 0, "arm"), HardwareUnit("Robot", 0, "leg")
    groups = [NodeGroup("a", (0,), (arm, leg)), NodeGroup("b", (0,), (leg,))]
    (placement,) = plan("0", "1x0", ("b",), groups).placements()
    assert (placement.hardware_ranks, placement.local_hardware_ranks) == ((0,), (1,))


def test_isolation_has_three_outcomes():
    node = Node(num_accelerators=2, visible=("4", "5"))
    topology = Topology((node,))
    own = plan("1", topology=topology)
    assert [p.visible_accelerators for p in own.placements()] == [("5",)]
    assert [p.visible_accelerators for p in own.placements(isolate_gpu=False)] == [("4", "5")]
    assert own.placements(isolate_gpu=False)[0].local_hardware_ranks == (1,)
    bare = plan("0", topology=topology, groups=("node",))
    assert [p.visible_accelerators for p in bare.placements()] == [()]
    assert [p.visible_accelerators for p in bare.placements(isolate_gpu=False)] == [("4", "5")]


def test_components_share_freely_and_each_counts_its_own_local_ranks():
    rules = [PlacementRule(("actor", "rollout"), "0-3"), PlacementRule(("critic",), "2-3:0-3")]
    plans = plan_components(Topology.parse("1x4"), rules).components
    assert list(plans) == ["actor", "rollout", "critic"]
    assert plans["actor"].placements() == plans["rollout"].placements()
    assert [p.local_rank for p in plans["critic"].placements()] == [0, 1, 2, 3]


def test_independent_mistakes_are_reported_together():
    rules = [PlacementRule(("a",), "77"), PlacementRule(("b",), "0"), PlacementRule(("c",), "99")]
    with pytest.raises(ConfigErrors) as caught:
        plan_components(Topology.parse("1x4"), rules)
    assert [error.component for error in caught.value.errors] == ["a", "c"]
    # The documents promise an AssertionError, for several mistakes too.
    assert isinstance(caught.value, PlacementError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert type(copy) is type(caught.value)


def test_text_of_a_rule_is_checked_when_the_rule_is_made():
    with pytest.raises(PlacementError, match="component 'a': 'x' is neither a rank nor a range of ranks"):
        PlacementRule(("a",), "x")


def test_component_is_placed_once():
    with pytest.raises(PlacementError, match="component 'a' is placed twice"):
        plan_components(Topology.parse("1x4"), [PlacementRule(("a",), "0"), PlacementRule(("b", "a"), "1")])
