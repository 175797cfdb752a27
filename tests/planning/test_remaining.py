"""What of a plan remains without some nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning import (
    HardwareUnit,
    Node,
    NodeEnvironment,
    NodeGroup,
    PlacementRule,
    Topology,
    find_node,
    plan_components,
    without_nodes,
)


def rule(name, text, *groups):
    return PlacementRule((name,), text, groups or ("cluster",))


def told(remainder):
    return {each.name: (each.world_size, each.lost_ranks, each.placement) for each in remainder.components}


def test_ranks_on_other_nodes_keep_their_devices_and_numbers_close_up():
    rules = [rule("actor", "0-15"), rule("rollout", "16-31:0-7"), rule("env", "8-15:0-31")]
    remainder = without_nodes(Topology.parse("4x8"), rules, {1})
    assert told(remainder) == {
        "actor": (8, tuple(range(8, 16)), "0-7"),
        "rollout": (8, (), "8-23:0-7"),
        "env": (0, tuple(range(32)), ""),
    }
    assert list(remainder.plan.components) == ["actor", "rollout"]
    assert not remainder.is_whole


def test_node_groups_lose_the_node_and_are_numbered_anew():
    groups = (
        NodeGroup("big", (2, 0), environments=(NodeEnvironment((2,)), NodeEnvironment((0, 2)))),
        NodeGroup("arms", (1, 3), hardware=(HardwareUnit("Robot", 3), HardwareUnit("Robot", 1))),
        NodeGroup("gone", (2,)),
    )
    rules = [rule("actor", "0-7", "big"), rule("env", "0-1", "arms"), rule("both", "all", "gone", "arms")]
    remainder = without_nodes(Topology(Topology.parse("4x4").nodes, groups), rules, {2})
    assert told(remainder) == {
        "actor": (4, (0, 1, 2, 3), "0-3"),
        "env": (2, (), "0-1"),
        "both": (2, (0, 1, 2, 3), "0-1"),
    }
    left = remainder.plan.topology
    assert [group.node_ranks for group in left.node_groups] == [(0,), (1, 2)]
    assert [unit.node_rank for unit in left.node_groups[1].hardware] == [2, 1]
    assert [each.node_ranks for each in left.node_groups[0].environments] == [(0,)]
    assert remainder.plan.components["both"].node_groups == ("arms",)


def test_a_group_that_has_lost_its_accelerators_does_not_count_nodes_instead():
    groups = (NodeGroup("mixed", (0, 1)),)
    topology = Topology(Topology.parse("2,0,2").nodes, groups)
    remainder = without_nodes(topology, [rule("actor", "all", "mixed"), rule("env", "0-3")], {0})
    assert told(remainder) == {"actor": (0, (0, 1), ""), "env": (2, (0, 1), "0-1")}


def test_spare_nodes_take_the_places():
    nodes = Topology.parse("3x4").nodes
    used = Topology(nodes[:2])
    remainder = without_nodes(used, [rule("actor", "all")], {0}, spares=nodes[2:])
    assert remainder.is_whole
    assert [node.node_id for node in remainder.plan.topology.nodes] == ["node1", "node2"]
    assert told(remainder) == {"actor": (8, (), "all")}


def test_without_any_node_nothing_is_left():
    with pytest.raises(ConfigError, match="no node would be left"):
        without_nodes(Topology.parse("1x8"), [rule("actor", "all")], {0})


def test_a_node_is_found_by_rank_address_and_name():
    nodes = tuple(
        Node(f"id{rank}", ip=f"10.0.0.{rank}", hostname=name) for rank, name in enumerate(("a", "b", "b"))
    )
    topology = Topology(nodes)
    assert [find_node(topology, name) for name in ("1", "node1", "10.0.0.1", "id1")] == [1, 1, 1, 1]
    assert find_node(topology, "a") == 0
    with pytest.raises(ConfigError, match="several nodes are called 'b': node1, node2"):
        find_node(topology, "b")
    with pytest.raises(ConfigError, match="there is no node 'node7'; there are 'node0', 'node1', 'node2'"):
        find_node(topology, "node7")


@st.composite
def placements(draw):
    """A placement on 12 accelerators, segment by segment."""
    segments, resource, rank = [], 0, 0
    while resource < 12:
        size = draw(st.integers(1, 12 - resource))
        count = draw(st.sampled_from([1, size, 3 * size]))
        if draw(st.booleans()):
            segments.append(f"{resource}-{resource + size - 1}:{rank}-{rank + count - 1}")
            rank += count
        resource += size
    return ",".join(segments) or "0"


@given(
    placements(),
    st.sampled_from(["3x4", "6,2,4", "4,0,8", "12x1"]),
    st.sets(st.integers(0, 11), max_size=2),
)
def test_every_rank_that_is_left_has_the_devices_that_it_had(text, shape, lost):
    topology = Topology.parse(shape)
    rules = [rule("actor", text)]
    try:
        before = plan_components(topology, rules).components["actor"].placements()
    except ConfigError:
        return  # a process would span nodes
    lost = {rank for rank in lost if rank < topology.num_nodes}
    remainder = without_nodes(topology, rules, lost)
    kept = [place for place in before if place.node_rank not in lost]
    (component,) = remainder.components
    assert component.lost_ranks == tuple(place.rank for place in before if place.node_rank in lost)
    actor = remainder.plan.components.get("actor")
    after = actor.placements() if actor else []
    assert [(p.node_id, p.local_hardware_ranks) for p in after] == [
        (p.node_id, p.local_hardware_ranks) for p in kept
    ]
