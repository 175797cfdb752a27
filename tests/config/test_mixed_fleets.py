"""Mixed fleets whole: groups in any order over any nodes, several hardware types, ranks however they are written."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import tries
from rlinf.scheduler import ComponentPlacement, Topology
from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.planning import Node


def group(label, node_ranks, **other):
    return {"label": label, "node_ranks": node_ranks, **other}


def robots(label, node_ranks, *at_nodes):
    configs = [{"node_rank": rank, "address": f"robot-{index}"} for index, rank in enumerate(at_nodes)]
    return group(label, node_ranks, hardware={"type": "Robot", "configs": configs})


def nodes(*counts, kind="NVIDIA"):
    return Topology(nodes=tuple(Node(num_accelerators=count, accelerator_type=kind) for count in counts))


def place(rules, groups, topology):
    config = {"cluster": {"component_placement": rules, "node_groups": list(groups)}}
    return ComponentPlacement(config, topology)


def given_to(placed, component="c"):
    """Of every process: its node, what kind of thing it was given, and which of these on the node."""
    return [(p.node_rank, p.hardware_type, p.local_hardware_ranks) for p in placed.placements(component)]


def one(labels, placement, groups, topology):
    return given_to(place({"c": {"node_group": labels, "placement": placement}}, groups, topology))


def test_groups_are_numbered_in_the_order_written_whatever_the_order_of_nodes():
    groups = [group("high", "2-3"), group("low", "1,0")]
    assert one("high, low", "all", groups, nodes(1, 1, 1, 1)) == [
        (2, "NVIDIA", (0,)),
        (3, "NVIDIA", (0,)),
        (1, "NVIDIA", (0,)),
        (0, "NVIDIA", (0,)),
    ]


def test_groups_interleave_over_the_nodes():
    groups = [group("even", "0,2"), group("odd", "3,1")]
    assert [node for node, *_ in one(["odd", "even"], "all", groups, nodes(1, 1, 1, 1))] == [3, 1, 0, 2]


def test_uneven_nodes_are_counted_through_and_bare_ones_passed_over():
    assert one("g", "0-6:0-6", [group("g", "0-3")], nodes(3, 0, 1, 3)) == [
        (0, "NVIDIA", (0,)),
        (0, "NVIDIA", (1,)),
        (0, "NVIDIA", (2,)),
        (2, "NVIDIA", (0,)),
        (3, "NVIDIA", (0,)),
        (3, "NVIDIA", (1,)),
        (3, "NVIDIA", (2,)),
    ]


def test_accelerators_robots_and_bare_nodes_make_one_component():
    groups = [group("gpus", 0), robots("arms", 1, 1, 1), group("cpus", "2-3", ignore_hardware=True)]
    assert one("gpus,arms,cpus", "0-3:0-1, 4-5:2-5, 6-7", groups, nodes(4, 4, 4, 0)) == [
        (0, "NVIDIA", (0, 1)),
        (0, "NVIDIA", (2, 3)),
        (1, "Robot", (0,)),
        (1, "Robot", (0,)),
        (1, "Robot", (1,)),
        (1, "Robot", (1,)),
        (2, "", ()),
        (3, "", ()),
    ]


def test_local_ranks_count_a_component_through_all_its_groups():
    groups = [group("gpus", "1,0"), robots("arms", "0-1", 0, 1)]
    placed = place({"c": {"node_group": "gpus,arms", "placement": "all"}}, groups, nodes(1, 2))
    assert [
        (p.node_rank, p.local_rank, p.local_world_size, p.placement_node_rank) for p in placed.placements("c")
    ] == [
        (1, 0, 3, 0),
        (1, 1, 3, 0),
        (0, 0, 2, 1),
        (0, 1, 2, 1),
        (1, 2, 3, 0),
    ]


def test_process_of_two_kinds_of_hardware_is_an_error():
    groups = [group("gpus", 0), robots("arms", 0, 0)]
    with pytest.raises(
        PlacementError, match="accelerator 0 of node 0 and Robot 0 of node 0; a process keeps to one"
    ):
        one("gpus,arms", "0-1:0", groups, nodes(1))


def test_robot_node_with_accelerators_gives_either():
    groups = [robots("arms", "0-1", 1, 0), group("gpus", "0-1")]
    rules = {
        "env": {"node_group": "arms", "placement": "0-1"},
        "actor": {"node_group": "gpus", "placement": "0-3"},
    }
    placed = place(rules, groups, nodes(2, 2))
    assert given_to(placed, "env") == [(1, "Robot", (0,)), (0, "Robot", (0,))]
    assert [p.visible_accelerators for p in placed.placements("env")] == [(), ()]
    assert [p.visible_accelerators for p in placed.placements("actor")] == [("0",), ("1",), ("0",), ("1",)]


def test_ignored_hardware_leaves_nodes():
    groups = [robots("arms", "1,0", 0) | {"ignore_hardware": True}]
    assert one("arms", "0-1:0-3", groups, nodes(2, 2)) == [(1, "", ()), (1, "", ()), (0, "", ()), (0, "", ())]


def test_group_without_accelerators_counts_its_nodes_and_one_with_any_counts_these():
    topology = nodes(0, 0, 2)
    assert one("g", "all", [group("g", "0-1")], topology) == [(0, "", ()), (1, "", ())]
    assert one("g", "all", [group("g", "0-2")], topology) == [(2, "NVIDIA", (0,)), (2, "NVIDIA", (1,))]


def test_two_vendors_in_one_group_do_not_share_a_process():
    topology = Topology(nodes=(*nodes(2).nodes, *nodes(2, kind="AMD").nodes))
    assert one("g", "0-3:0-1", [group("g", "0-1")], topology) == [(0, "NVIDIA", (0, 1)), (1, "AMD", (0, 1))]


def test_mask_of_a_node_names_what_a_process_sees():
    topology = Topology(nodes=(Node(num_accelerators=2, accelerator_type="AMD", visible=("6", "GPU-7f")),))
    (placement,) = place({"c": "1"}, [], topology).placements("c")
    assert (placement.local_hardware_ranks, placement.visible_accelerators) == ((1,), ("GPU-7f",))
    (placement,) = place({"c": "1"}, [], topology).placements("c", isolate_gpu=False)
    assert placement.visible_accelerators == ("6", "GPU-7f")


def test_eighteen_nodes_of_four_sorts():
    topology = nodes(*[8] * 16, 0, 0)
    groups = [
        group("a800", "0-7"),
        group(4090, "8-15"),
        robots("arms", "16-17", 16, 17),
        group("cpu", "16-17"),
    ]
    rules = {
        "actor,inference": {"node_group": "a800", "placement": "0-63:0-15"},
        "rollout": {"node_group": 4090, "placement": "all"},
        "env": {"node_group": "arms", "placement": "0-1:0-7"},
        "agent": {"node_group": "node", "placement": "0-1:0-199,2-3:200-399"},
        "reward": {"node_group": "cpu,4090", "placement": [0, "1:1", "2-9:2-3"]},
    }
    placed = place(rules, groups, topology)
    assert [placed.get_world_size(name) for name in placed.components] == [16, 16, 64, 8, 400, 4]
    assert given_to(placed, "reward") == [
        (16, "", ()),
        (17, "", ()),
        (8, "NVIDIA", (0, 1, 2, 3)),
        (8, "NVIDIA", (4, 5, 6, 7)),
    ]
    assert {p.node_rank for p in placed.placements("agent")} == {0, 1, 2, 3}


# Ways to write the ranks 1, 2, 3 and 5.
WRITTEN = ["1-3,5", " 1 - 3 , 5 ", "1,2,3,5", [1, 2, 3, 5], ["1-3", 5], ["1-2", "3,5"], "5,1-3", [5, "1-3"]]


@pytest.mark.parametrize("written", WRITTEN, ids=str)
def test_ranks_are_text_numbers_or_lists_of_these_wherever_they_stand(written):
    environment = {"node_ranks": written, "env_vars": {"A": "1"}}
    groups = [group("g", written, env_configs=[environment])]
    rules = {
        "nodes": {"node_group": "node", "placement": written},
        "devices": {"placement": written},
        "members": {"node_group": "g", "placement": "all"},
        "short": written,
    }
    placed = place(rules, groups, nodes(*[1] * 6))
    (environment,) = placed.topology.group("g").environments
    wanted = [5, 1, 2, 3] if str(written).startswith(("5", "[5")) else [1, 2, 3, 5]
    assert list(environment.node_ranks) == wanted
    for name in placed.components:
        assert [p.node_rank for p in placed.placements(name)] == wanted


@pytest.mark.parametrize("written", [2, "2", [2], ["2"]], ids=repr)
def test_one_rank_is_a_number_or_text(written):
    placed = place({"c": {"node_group": "g", "placement": written}}, [group("g", "0-2")], nodes(1, 1, 1))
    assert given_to(placed) == [(2, "NVIDIA", (0,))]
    placed = place({"c": {"node_group": "g", "placement": 0}}, [group("g", written)], nodes(1, 1, 1))
    assert given_to(placed) == [(2, "NVIDIA", (0,))]


sorts = st.sampled_from(["accelerators", "robots", "nodes"])


@st.composite
def fleets(draw):
    """Groups that share no device, over nodes in any order."""
    counts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    order = draw(st.permutations(range(len(counts))))
    cuts = sorted(draw(st.sets(st.integers(1, len(counts)), max_size=3)) | {len(counts)})
    groups = []
    for index, (start, end) in enumerate(itertools.pairwise([0, *cuts])):
        members = order[start:end]
        sort = draw(sorts)
        if sort == "robots":
            at_nodes = draw(st.lists(st.sampled_from(members), min_size=1, max_size=4))
            groups.append(robots(f"g{index}", members, *at_nodes))
        else:
            groups.append(group(f"g{index}", members, ignore_hardware=sort == "nodes"))
    labels = draw(st.permutations([entry["label"] for entry in groups]))
    return nodes(*counts), groups, labels


@settings(max_examples=tries(50))
@given(fleets(), st.integers(1, 3))
def test_component_over_all_groups_gets_every_resource_once_in_the_order_written(fleet, processes_each):
    topology, groups, labels = fleet
    sizes = [given_count(entry, topology) for entry in groups]
    total = sum(sizes)
    placement = f"all:0-{total * processes_each - 1}"
    placed = place({"c": {"node_group": labels, "placement": placement}}, groups, topology)
    placements = placed.placements("c")
    assert [p.rank for p in placements] == list(range(total * processes_each))
    taken = [(p.node_group, p.node_rank, p.hardware_type, p.local_hardware_ranks) for p in placements]
    assert len(set(taken)) == total
    assert list(dict.fromkeys(label for label, *_ in taken)) == list(labels)
    by_node = {}
    for p in placements:
        assert p.local_rank == by_node.get(p.node_rank, 0)
        by_node[p.node_rank] = p.local_rank + 1
    assert all(p.local_world_size == by_node[p.node_rank] for p in placements)


def given_count(entry, topology):
    if "hardware" in entry:
        return len(entry["hardware"]["configs"])
    counts = [topology.nodes[rank].num_accelerators for rank in entry["node_ranks"]]
    return len(counts) if entry["ignore_hardware"] or not any(counts) else sum(counts)
