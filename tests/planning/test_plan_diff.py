"""Two plans compared: which ranks run elsewhere."""

from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.planning import (
    HardwareUnit,
    Node,
    NodeGroup,
    PlacementRule,
    RankMove,
    RankPlace,
    Topology,
    diff_plans,
    plan_components,
)


def planned(topology, **rules):
    if isinstance(topology, str):
        topology = Topology.parse(topology)
    return plan_components(topology, [PlacementRule((name,), text) for name, text in rules.items()])


def changes(old, new):
    return {component.name: component.change for component in diff_plans(old, new).components}


def test_same_plan_moves_nothing():
    plan = planned("2x8", actor="0-7", env="8-15:0-31")
    found = diff_plans(plan, planned("2x8", actor="0-7", env="8-15:0-31"))
    assert not found.moves
    assert changes(plan, plan) == {"actor": "same", "env": "same"}


def test_moved_added_removed_and_resized_components_are_told_apart():
    old = planned("2x8", actor="0-7", env="8-15", critic="0-3", reward="0")
    new = planned("2x8", actor="8-15", env="8-11", judge="0-3", reward="0")
    assert changes(old, new) == {
        "actor": "moved",
        "env": "resized",
        "judge": "added",
        "reward": "same",
        "critic": "removed",
    }


def test_only_ranks_that_move_are_listed():
    (actor,) = diff_plans(planned("2x4", actor="0-5"), planned("2x4", actor="0-3,6-7")).components
    assert actor.moves == (
        RankMove(4, RankPlace(1, "GPU", (0,)), RankPlace(1, "GPU", (2,))),
        RankMove(5, RankPlace(1, "GPU", (1,)), RankPlace(1, "GPU", (3,))),
    )
    assert actor.num_moved == 2


def test_new_and_gone_ranks_of_a_resized_component_move_from_and_to_nowhere():
    old, new = planned("1x8", actor="0-1"), planned("1x8", actor="0-3")
    (grown,) = diff_plans(old, new).components
    assert [(move.rank, move.before, move.after.devices) for move in grown.moves] == [
        (2, None, (2,)),
        (3, None, (3,)),
    ]
    (shrunk,) = diff_plans(new, old).components
    assert [(move.rank, move.after) for move in shrunk.moves] == [(2, None), (3, None)]
    assert shrunk.num_moved == 0


def test_more_devices_for_a_rank_are_a_move():
    (actor,) = diff_plans(planned("1x4", actor="0-1"), planned("1x4", actor="0-3:0-1")).components
    assert [move.rank for move in actor.moves] == [0, 1]


def node(ip, *visible):
    return Node(ip=ip, num_accelerators=len(visible), visible=visible)


def test_node_with_another_rank_is_the_same_node_by_its_address():
    old = Topology((node("10.0.0.1", "0", "1"), node("10.0.0.2", "0", "1")))
    new = Topology((node("10.0.0.2", "0", "1"), node("10.0.0.1", "0", "1")))
    assert diff_plans(planned(old, actor="0-1"), planned(new, actor="2-3")).moves is False
    assert diff_plans(planned(old, actor="0-1"), planned(new, actor="0-1")).moves is True


def test_without_addresses_a_node_is_its_rank():
    old = Topology((node("10.0.0.1", "0"), node("", "0")))
    found = diff_plans(planned(old, actor="0"), planned("1,1", actor="0"))
    assert (found.moves, found.nodes_by_ip) == (False, False)


def test_other_mask_is_another_device():
    old, new = Topology((node("", "0", "1"),)), Topology((node("", "4", "5"),))
    assert diff_plans(planned(old, actor="0"), planned(new, actor="0")).moves
    shifted = Topology((node("", "1", "0"),))
    assert not diff_plans(planned(old, actor="0"), planned(shifted, actor="1")).moves


def test_bare_nodes_and_robots_compare_too():
    groups = [NodeGroup("arms", (0, 1), (HardwareUnit("Robot", 0, "a"), HardwareUnit("Robot", 1, "b")))]
    topology = Topology.parse("0,0").with_node_groups(groups)

    def plan(text, group):
        return plan_components(topology, [PlacementRule(("env",), text, (group,))])

    assert not diff_plans(plan("0-1", "arms"), plan("0-1", "arms")).moves
    assert diff_plans(plan("0-1", "arms"), plan("0-1", "node")).moves
    assert [
        move.rank for move in diff_plans(plan("0-1", "node"), plan("0:0,1:1", "node")).components[0].moves
    ] == []


segments = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.booleans(), st.integers(0, 2)), min_size=1, max_size=4
)


def text_of(parts):
    """Segments one after another, with gaps between them."""
    written, resource, process = [], 0, 0
    for size, factor, wide, gap in parts:
        resource += gap
        resources, processes = (size * factor, size) if wide else (size, size * factor)
        written.append(f"{resource}-{resource + resources - 1}:{process}-{process + processes - 1}")
        resource, process = resource + resources, process + processes
    return ",".join(written)


@given(segments, segments)
def test_diff_agrees_with_a_comparison_rank_by_rank(old_parts, new_parts):
    # On a single node no process can span two.
    old, new = planned("1x64", actor=text_of(old_parts)), planned("1x64", actor=text_of(new_parts))
    before, after = old.components["actor"].placements(), new.components["actor"].placements()
    expected = [
        rank
        for rank in range(max(len(before), len(after)))
        if rank >= min(len(before), len(after))
        or before[rank].local_hardware_ranks != after[rank].local_hardware_ranks
    ]
    assert [move.rank for move in diff_plans(old, new).components[0].moves] == expected
