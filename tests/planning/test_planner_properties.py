"""What holds for every plan, whatever the nodes, the groups and the text."""

import pickle
from collections import Counter
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import tries
from rlinf_scheduler.errors import ConfigError, PlacementError
from rlinf_scheduler.planning import (
    HardwareUnit,
    Node,
    NodeGroup,
    PackedPlacementStrategy,
    PlacementRule,
    Topology,
    plan_rule,
)

counts = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@st.composite
def topologies(draw):
    nodes = tuple(Node(num_accelerators=count) for count in draw(counts))
    groups = []
    for label in ("red", "green"):
        order = draw(st.permutations(range(len(nodes))))
        members = tuple(order[: draw(st.integers(1, len(nodes)))])
        attached = draw(st.lists(st.sampled_from(members), max_size=5))
        hardware = tuple(HardwareUnit("Robot", rank, f"{label}{i}") for i, rank in enumerate(attached))
        groups.append(NodeGroup(label, members, hardware, ignore_hardware=draw(st.booleans())))
    return Topology(nodes, tuple(groups))


@st.composite
def texts(draw):
    """Texts that are mostly plausible: segments that follow each other, in resources and in processes."""
    written, resource, process = [], draw(st.integers(0, 2)), 0
    for _ in range(draw(st.integers(1, 4))):
        size, factor = draw(st.integers(1, 6)), draw(st.integers(1, 3))
        wide = draw(st.booleans())
        num_resources, num_processes = (size * factor, size) if wide else (size, size * factor)
        text = f"{resource}-{resource + num_resources - 1}"
        if factor > 1 or draw(st.booleans()):
            text += f":{process}-{process + num_processes - 1}"
        else:
            num_processes = num_resources
        written.append(text)
        resource, process = resource + num_resources, process + num_processes
    return draw(st.sampled_from([",".join(written), "all", "all:0-11"]))


labels = st.sampled_from(
    [("cluster",), ("node",), ("red",), ("green",), ("red", "green"), ("green", "node"), ("cluster", "red")]
)


@settings(max_examples=tries(100))
@given(topologies(), texts(), labels)
def test_every_plan_keeps_the_rules(topology, text, groups):
    before = pickle.dumps(topology)
    rule = PlacementRule(("actor",), text, groups)
    try:
        component = plan_rule(topology, rule)
    except PlacementError:
        return
    placements = component.placements()
    assert pickle.dumps(topology) == before
    assert [p.rank for p in placements] == list(range(component.world_size))
    per_node = Counter(p.node_rank for p in placements)
    seen = Counter()
    used_nodes = list(dict.fromkeys(p.node_rank for p in placements))
    for p in placements:
        node = topology.nodes[p.node_rank]
        assert p.node_id == node.node_id
        assert p.placement_node_rank == used_nodes.index(p.node_rank)
        assert (p.local_rank, p.local_world_size) == (seen[p.node_rank], per_node[p.node_rank])
        seen[p.node_rank] += 1
        # Something on one node: devices that are there, or the node itself.
        assert bool(p.local_hardware_ranks) == bool(p.hardware_type)
        assert len(set(p.local_hardware_ranks)) == len(p.local_hardware_ranks) == len(p.hardware_ranks)
        if p.has_accelerators:
            assert max(p.local_hardware_ranks) < node.num_accelerators
            assert p.visible_accelerators == tuple(map(str, p.local_hardware_ranks))
        else:
            assert p.visible_accelerators == ()


@given(topologies(), texts(), labels)
def test_planning_again_gives_the_same(topology, text, groups):
    rule = PlacementRule(("actor",), text, groups)
    try:
        first = plan_rule(topology, rule)
    except ConfigError:
        return
    copy = pickle.loads(pickle.dumps(plan_rule(topology, rule)))
    assert copy.placements() == first.placements()
    assert copy.runs == first.runs


@given(
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 5),
    st.integers(1, 5),
)
def test_packed_uses_every_device_of_its_range_exactly_once(nodes, size, width, stride, start, blocks):
    end = start + width * stride * blocks - 1
    topology = Topology.parse(f"{nodes}x{size}")
    strategy = PackedPlacementStrategy(start, end, width, stride=stride)
    try:
        placements = strategy.get_placement(topology)
    except PlacementError:
        return
    used = [rank for p in placements for rank in p.hardware_ranks]
    assert sorted(used) == list(range(start, end + 1))
    for p in placements:
        assert [rank // size for rank in p.hardware_ranks] == [p.node_rank] * width
        assert {b - a for a, b in zip(p.hardware_ranks, p.hardware_ranks[1:], strict=False)} <= {stride}
    # The next process starts at the lowest device that is free.
    assert [p.hardware_ranks[0] for p in placements] == sorted(p.hardware_ranks[0] for p in placements)


def test_placement_is_frozen_and_changes_by_replacement():
    (placement,) = PackedPlacementStrategy(0, 0).get_placement(8)
    with pytest.raises(FrozenInstanceError):
        placement.rank = 3
    assert replace(placement, local_rank=1).local_rank == 1
    assert pickle.loads(pickle.dumps(placement)) == placement
    assert not hasattr(placement, "__dict__")


def test_large_plan_holds_few_runs():
    topology = Topology.parse("512x8")
    component = plan_rule(topology, PlacementRule(("actor",), "0-4095:0-8191"))
    assert len(component.runs) == 512
    assert component.world_size == 8192
    assert component.placements()[-1].local_hardware_ranks == (7,)
