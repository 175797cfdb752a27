"""What a plan's reader is told: idle, spread, split and shared things, a line each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning import (
    HardwareUnit,
    Node,
    NodeGroup,
    PlacementRule,
    Topology,
    plan_components,
    plan_warnings,
)


def planned(shape, *rules, groups=()):
    topology = Topology.parse(shape) if isinstance(shape, str) else shape
    topology = topology.with_node_groups(groups)
    named = [
        PlacementRule((name,), text, *([(labels,)] if labels else []))
        for name, text, labels in (rule if len(rule) == 3 else (*rule, None) for rule in rules)
    ]
    return plan_components(topology, named)


def told(plan, kind, **options):
    return [warning.text for warning in plan_warnings(plan, **options) if warning.kind == kind]


def test_full_and_disjoint_plan_has_nothing_to_tell():
    assert plan_warnings(planned("2x4", ("actor", "0-3"), ("rollout", "4-7"))) == []


def test_idle_accelerators_are_counted_by_node():
    plan = planned("4x4", ("actor", "0-5"))
    assert told(plan, "idle-devices") == [
        "10 of 16 GPU accelerators are idle: all of nodes 2-3, 2 of node 1",
    ]


def test_idle_devices_of_many_half_used_nodes_stay_one_line():
    plan = planned("40x2", ("actor", ",".join(str(2 * rank) for rank in range(40))))
    assert told(plan, "idle-devices") == ["40 of 80 GPU accelerators are idle: 40 of nodes 0-39"]


def test_idle_accelerators_are_told_by_type():
    nodes = (
        Node(num_accelerators=2, accelerator_type="NVIDIA"),
        Node(num_accelerators=1, accelerator_type="Ascend"),
    )
    plan = planned(Topology(nodes), ("actor", "0"))
    assert told(plan, "idle-devices") == [
        "1 of 2 NVIDIA accelerators is idle: 1 of node 0",
        "1 of 1 Ascend accelerator is idle: all of node 1",
    ]


def robots(label, node_ranks, *on):
    return NodeGroup(label, node_ranks, tuple(HardwareUnit("Robot", rank, i) for i, rank in enumerate(on)))


def test_idle_robot_is_told_and_one_in_two_groups_counts_once():
    groups = [robots("left", (0,), 0, 0), robots("both", (0,), 0, 0)]
    plan = planned("0", ("env", "0", "left"), groups=groups)
    assert told(plan, "idle-devices") == ["1 of 2 Robots is idle: 1 of node 0"]


def test_bare_node_without_processes_is_a_note():
    plan = planned("4,0,0", ("actor", "0-3"), ("agent", "1", "node"))
    (warning,) = plan_warnings(plan)
    assert (warning.kind, warning.is_note, warning.node_ranks) == ("idle-nodes", True, (2,))
    assert warning.text == "nothing runs on node 2, which has no accelerators"


def test_component_over_a_boundary_spans_more_nodes_than_it_must():
    plan = planned("2x8", ("actor", "0-5"), ("rollout", "6-11"), ("env", "12-15"))
    assert told(plan, "spread") == ["rollout spans nodes 0-1; its 6 accelerators fit on 1 node"]


def test_component_that_needs_its_nodes_is_not_told():
    # Three processes of three accelerators: no two fit on a node of five.
    plan = planned("3x5", ("actor", "0-2:0,5-7:1,10-12:2"))
    assert told(plan, "spread") == []


def test_spread_looks_at_the_components_own_groups_only():
    groups = [NodeGroup("small", (0, 1)), NodeGroup("big", (2,))]
    assert told(planned("2,2,8", ("actor", "0-3", "small"), groups=groups), "spread") == []
    assert told(planned("2,2,8", ("actor", "0-3"), groups=groups), "spread") == [
        "actor spans nodes 0-1; its 4 accelerators fit on 1 node"
    ]


def test_processes_that_share_devices_need_them_once():
    plan = planned("2x2", ("env", "1-2:0-7"))
    assert told(plan, "spread") == ["env spans nodes 0-1; its 2 accelerators fit on 1 node"]


def test_collocated_components_are_told_by_set():
    plan = planned("2x4", ("actor", "all"), ("critic", "all"), ("env", "0-1"))
    assert told(plan, "collocated") == [
        "actor, critic and env share 2 accelerators on node 0",
        "actor and critic share 6 accelerators on nodes 0-1",
    ]


def test_many_overlaps_give_a_line_a_component():
    rules = [(f"c{i}", f"{i}-{i + 4}") for i in range(6)]
    lines = told(planned("1x16", *rules), "collocated")
    assert len(lines) == 6
    assert lines[0] == "c0 shares with c1, c2, c3 and c4: 4 accelerators on node 0"


def test_components_on_a_bare_node_are_not_collocated():
    plan = planned("0", ("env", "0", "node"), ("agent", "0", "node"))
    assert told(plan, "collocated") == []


def test_several_processes_on_one_device_are_a_note():
    plan = planned("2x4", ("env", "0-7:0-31"))
    assert told(plan, "shared-device") == ["env runs 32 processes on 8 devices of nodes 0-1: 4 share one"]


def test_where_rank_0_is_told_if_segments_descend():
    plan = planned("2x8", ("actor", "8-15,0-7"), ("critic", "0-7,8-15"), ("env", "1,0", "node"))
    assert told(plan, "descending") == [
        "rank 0 of actor is on node 1, with accelerator 8: ranks follow the order in which resources are written, "
        "and accelerator 0 is not the first",
        "rank 0 of env is on node 1: ranks follow the order in which resources are written, "
        "and node 0 is not the first",
    ]
    first = next(each for each in plan_warnings(plan) if each.kind == "descending")
    assert (first.is_note, first.components, first.node_ranks, first.count) == (True, ("actor",), (1,), 16)
    assert told(planned("2x4", ("actor", "4-5:0-3,6-7:4-5,0-3:6-7")), "descending") != []
    assert told(planned("2x4", ("actor", "0-3:0-7,4-7:8-9")), "descending") == []


def test_tensor_parallel_group_over_a_node_boundary_is_told():
    plan = planned("3x8", ("rollout", "4-19"))
    assert told(plan, "split-tensor-parallel", tensor_parallel={"rollout": 8}) == [
        "2 of 2 tensor-parallel groups of rollout lie on several nodes: e.g. group 0 (ranks 0-7) on nodes 0-1"
    ]
    assert told(plan, "split-tensor-parallel", tensor_parallel={"rollout": 4}) == []


def test_tensor_parallel_group_over_many_nodes_names_them_all():
    (text,) = told(
        planned("8x1", ("rollout", "all")), "split-tensor-parallel", tensor_parallel={"rollout": 8}
    )
    assert text.endswith("lies on several nodes: group 0 (ranks 0-7) on nodes 0-7")


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({"rolout": 2}, "did you mean 'rollout'?"),
        ({"rollout": 3}, "the 8 ranks of 'rollout' do not make whole tensor-parallel groups of 3"),
        ({"rollout": 0}, "groups of 0"),
    ],
)
def test_wrong_tensor_parallel_size_is_an_error(sizes, problem):
    with pytest.raises(ConfigError, match=problem.replace("?", r"\?")):
        plan_warnings(planned("1x8", ("rollout", "all")), tensor_parallel=sizes)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any),
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12), st.integers(1, 3)), min_size=1, max_size=4),
)
def test_findings_agree_with_a_count_device_by_device(sizes, wanted):
    total = sum(sizes)
    rules = []
    for index, (start, length, each) in enumerate(wanted):
        first = start % total
        last = min(first + length, total) - 1
        rules.append((f"c{index}", f"{first}-{last}:0-{(last - first + 1) * each - 1}"))
    plan = planned(",".join(map(str, sizes)), *rules)
    used = {
        (p.node_rank, device)
        for component in plan.components.values()
        for p in component.placements()
        for device in p.local_hardware_ranks
    }
    found = plan_warnings(plan)
    assert sum(w.count for w in found if w.kind == "idle-devices") == total - len(used)
    for warning in found:
        assert warning.text
        assert list(warning.node_ranks) == sorted(set(warning.node_ranks))
        assert all(name in plan.components for name in warning.components)
    spread = {w.components[0] for w in found if w.kind == "spread"}
    for name, component in plan.components.items():
        nodes = {p.node_rank for p in component.placements()}
        devices = {(p.node_rank, d) for p in component.placements() for d in p.local_hardware_ranks}
        fewest, room = 0, 0
        for size in sorted(sizes, reverse=True):
            if room < len(devices):
                fewest, room = fewest + 1, room + size
        assert (name in spread) == (fewest < len(nodes))
