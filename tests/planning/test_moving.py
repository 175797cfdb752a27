"""A process whose node is gone, on another one: as many devices of the same kind, of the same node group."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.scheduler import FlexiblePlacementStrategy, NodePlacementStrategy, Topology
from rlinf_scheduler.config import read_cluster_config
from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.planning.moving import MAX_ON_NODE, grown, joined, moved


def place(topology, numbers, **options):
    return FlexiblePlacementStrategy([numbers], **options).get_placement(topology)[0]


@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    used=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3))),
    count=st.integers(1, 4),
)
def test_what_is_found_is_free_and_of_one_node_that_lives_and_what_is_not_is_not_there(sizes, used, count):
    topology = Topology.parse(",".join(map(str, sizes)))
    count = min(count, sizes[0])
    before = place(topology, range(count))
    there = [
        rank
        for rank, size in enumerate(sizes[1:], 1)
        if len({index for index in range(size) if (rank, index) not in used}) >= count
    ]
    try:
        after = moved(before, topology, {0}, used)
    except PlacementError:
        assert there == []
    else:
        assert after.node_rank == there[0]
        assert len(after.local_hardware_ranks) == count
        assert not used & {(after.node_rank, index) for index in after.local_hardware_ranks}
        names = topology.nodes[after.node_rank].accelerator_names
        assert after.visible_accelerators == tuple(names[index] for index in after.local_hardware_ranks)
        assert (after.rank, after.node_id) == (0, topology.nodes[after.node_rank].node_id)


@pytest.mark.timeout(20)
def test_bare_processes_are_as_many_as_ray_has_ports_for_and_that_is_known_at_once():
    topology = Topology.parse("2x4")
    beside = NodePlacementStrategy([0, 0, 1]).get_placement(topology)
    room = 2 * MAX_ON_NODE - 3
    for count in (room + 1, 10**6, 10**15):
        with pytest.raises(PlacementError) as caught:
            grown(beside, count, topology, (), ())
        limit = "on 2 nodes: Ray has ports for 9998 processes of a node, 10002 to 19999"
        assert str(caught.value) == f"{room} of {count} further processes would have a place, {limit}"
    found = joined(grown(beside, room, topology, (), ()), range(3, room + 3), beside)
    assert Counter(each.node_rank for each in (*beside, *found)) == {0: MAX_ON_NODE, 1: MAX_ON_NODE}
    assert [(each.rank, each.node_rank, each.local_rank) for each in found[:3]] == [
        (3, 1, 1),
        (4, 0, 2),
        (5, 1, 2),
    ]
    with pytest.raises(
        PlacementError, match="0 of 1 further process would have a place, on 0 nodes: none can be used"
    ):
        grown(beside, 1, topology, {0, 1}, ())


def test_it_says_what_was_missing():
    topology = Topology.parse("2,2,1")
    with pytest.raises(PlacementError) as caught:
        moved(place(topology, [0, 1]), topology, {0}, {(1, 1)})
    assert str(caught.value) == (
        "no node has 2 GPU accelerators free for it: "
        "node 0: nothing can be started on it; node 1: 1 of 2 are free; node 2: 1 of 1 are free"
    )


def test_what_is_free_is_told_as_it_is_beside_those_that_have_a_place():
    topology = Topology.parse("1x4")
    beside = [place(topology, [0]), place(topology, [1])]
    for used, told in (
        ({0, 1}, "2 of 9 further processes would have a place; as to the next, with those in place, no node"),
        ({0, 1, 2, 3}, "0 of 9 further processes would have a place; no node"),
    ):
        with pytest.raises(PlacementError) as caught:
            grown(beside, 9, topology, (), {(0, device) for device in used})
        assert str(caught.value) == f"{told} has 1 GPU accelerator free for it: node 0: 0 of 4 are free"


def test_another_model_is_another_kind():
    topology = Topology.parse("2x2")
    nodes = (topology.nodes[0], replace(topology.nodes[1], accelerator_model="H200"))
    with pytest.raises(PlacementError, match="node 1: its accelerators are H200"):
        moved(place(topology, [0]), Topology(nodes=nodes), {0}, ())


def test_a_node_group_is_not_left():
    section = read_cluster_config({"num_nodes": 3, "node_groups": [{"label": "left", "node_ranks": "0,2"}]})
    topology = Topology.parse("3x2").with_node_groups(section.node_groups)
    after = moved(place(topology, [1], node_group="left"), topology, {0}, ())
    assert (after.node_rank, after.hardware_ranks, after.node_group) == (2, (2,), "left")


def test_a_process_on_a_bare_node_goes_to_the_first_that_lives():
    topology = Topology.parse("3x2")
    (before,) = NodePlacementStrategy([1]).get_placement(topology)
    after = moved(before, topology, {0, 1}, ())
    assert (after.node_rank, after.local_hardware_ranks) == (2, ())
