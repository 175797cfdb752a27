"""The three strategies: what they give, their other names, and what they refuse."""

import pickle

import pytest

from rlinf.scheduler import ComponentPlacement
from rlinf_scheduler.errors import ConfigError, PlacementError
from rlinf_scheduler.planning import (
    FlexiblePlacementStrategy,
    Node,
    NodeGroup,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Topology,
)


class FakeCluster:
    """What a strategy needs of a cluster."""

    def __init__(self, text):
        self.topology = Topology.parse(text)


def devices(placements):
    return [(p.node_rank, *p.local_hardware_ranks) for p in placements]


def test_packed_with_a_stride_starts_each_process_at_the_lowest_free_device():
    strategy = PackedPlacementStrategy(0, 7, num_gpus_per_process=2, stride=2)
    assert [p.hardware_ranks for p in strategy.get_placement(8)] == [(0, 2), (1, 3), (4, 6), (5, 7)]


def test_number_stands_for_as_many_nodes_as_it_takes():
    assert devices(PackedPlacementStrategy(6, 9).get_placement(4)) == [(1, 2), (1, 3), (2, 0), (2, 1)]
    assert devices(FlexiblePlacementStrategy([[9]]).get_placement(4)) == [(2, 1)]
    assert [p.node_rank for p in NodePlacementStrategy([3]).get_placement(4)] == [3]


def test_cluster_and_topology_give_the_same():
    strategy = PackedPlacementStrategy(0, 15)
    assert strategy.get_placement(FakeCluster("2x8")) == strategy.get_placement(Topology.parse("2x8"))


def test_packed_process_across_a_nodes_end_is_refused():
    with pytest.raises(
        PlacementError, match="process 2 would take accelerators 6, 7 of node 0 and 0 of node 1"
    ):
        PackedPlacementStrategy(0, 8, 3).get_placement(Topology.parse("2x8"))


def test_packed_looks_at_the_real_sizes_of_nodes():
    uneven = Topology.parse("6,3,9")
    assert len(PackedPlacementStrategy(0, 17, 3).get_placement(uneven)) == 6
    with pytest.raises(
        PlacementError, match="process 1 would take accelerators 4, 5 of node 0 and 0, 1 of node 1"
    ):
        PackedPlacementStrategy(0, 7, 4).get_placement(uneven)
    with pytest.raises(PlacementError, match="a process stays on one node"):
        PackedPlacementStrategy(0, 17, 3, stride=2).get_placement(uneven)


def test_packed_on_a_node_group():
    topology = Topology.parse("2x4").with_node_groups([NodeGroup("second", (1,))])
    placements = PackedPlacementStrategy(0, 3, 2, node_group="second").get_placement(topology)
    assert devices(placements) == [(1, 0, 1), (1, 2, 3)]
    assert {p.node_group for p in placements} == {"second"}


def test_packed_range_must_be_a_multiple():
    with pytest.raises(PlacementError) as caught:
        PackedPlacementStrategy(0, 4, 2)
    assert caught.value.hint == "end at 3 or 5"


@pytest.mark.parametrize(
    "numbers",
    [(3, 2), (-1, 2), (0, 3, 0), (0, 3, 1, 0), (0,), (), (0, "3"), (0, 1.0), (True, 3), (0, 3, -1)],
)
def test_packed_refuses_numbers_that_make_no_sense(numbers):
    with pytest.raises(PlacementError):
        PackedPlacementStrategy(*numbers)


def test_flexible_orders_devices_and_processes():
    lists = [[5, 4], [3], [1, 0]]
    placements = FlexiblePlacementStrategy(lists).get_placement(8)
    assert [p.local_hardware_ranks for p in placements] == [(0, 1), (3,), (4, 5)]
    assert lists == [[5, 4], [3], [1, 0]]


def test_flexible_processes_may_share():
    assert devices(FlexiblePlacementStrategy([[0], [0]]).get_placement(8)) == [(0, 0), (0, 0)]


def test_flexible_counts_local_ranks_a_node():
    placements = FlexiblePlacementStrategy([[0], [9], [1], [8]]).get_placement(Topology.parse("2x8"))
    assert [(p.rank, p.node_rank, p.local_rank, p.local_world_size) for p in placements] == [
        (0, 0, 0, 2),
        (1, 0, 1, 2),
        (2, 1, 0, 2),
        (3, 1, 1, 2),
    ]


@pytest.mark.parametrize("lists", [[], [[]], [[0, 0]], [[-1]], [["0"]], [0], "0", None, [[0.5]]])
def test_flexible_refuses_lists_that_make_no_sense(lists):
    with pytest.raises(PlacementError):
        FlexiblePlacementStrategy(lists)


def test_flexible_process_across_nodes_is_refused():
    with pytest.raises(PlacementError, match="process 1 would take accelerators 7 of node 0 and 0 of node 1"):
        FlexiblePlacementStrategy([[0], [8, 7]]).get_placement(Topology.parse("2x8"))


def test_node_ranks_ascend_and_may_repeat():
    placements = NodePlacementStrategy([1, 0, 1]).get_placement(Topology.parse("2x8"))
    assert [(p.node_rank, p.local_rank, p.local_world_size) for p in placements] == [
        (0, 0, 1),
        (1, 0, 2),
        (1, 1, 2),
    ]
    assert {p.hardware_type for p in placements} == {""}
    assert {p.visible_accelerators for p in placements} == {()}


def test_node_ranks_are_numbered_in_the_group():
    topology = Topology.parse("3x8").with_node_groups([NodeGroup("g", (2, 1))])
    assert [p.node_rank for p in NodePlacementStrategy([0, 1], node_group="g").get_placement(topology)] == [
        2,
        1,
    ]


@pytest.mark.parametrize("ranks", [[], [-1], ["0"], 0, None])
def test_node_strategy_refuses_ranks_that_make_no_sense(ranks):
    with pytest.raises(PlacementError):
        NodePlacementStrategy(ranks)


def test_newer_names_mean_the_same():
    older = PackedPlacementStrategy(
        start_gpu_id=0, end_gpu_id=3, num_gpus_per_process=2, node_group="cluster"
    )
    newer = PackedPlacementStrategy(
        start_hardware_rank=0, end_hardware_rank=3, num_hardware_per_process=2, node_group_label="cluster"
    )
    assert older.get_placement(4, isolate_gpu=False) == newer.get_placement(4, isolate_accelerator=False)
    with pytest.raises(PlacementError, match="two names of one option"):
        PackedPlacementStrategy(0, 3, start_hardware_rank=0)


def test_placement_has_the_documents_names():
    topology = Topology((Node(num_accelerators=2, visible=("4", "5")),))
    (placement,) = PackedPlacementStrategy(1, 1).get_placement(topology)
    assert placement.local_gpu_id == placement.local_accelerator_rank == 1
    assert placement.cuda_visible_devices == placement.visible_accelerators == ("5",)
    assert placement.cluster_node_rank == placement.node_rank == 0
    assert placement.isolate_accelerator is placement.isolate_gpu is True
    assert placement.node_group_label == placement.node_group == "cluster"
    (bare,) = NodePlacementStrategy([0]).get_placement(topology)
    assert bare.local_gpu_id is None


@pytest.mark.parametrize(
    ("strategy", "where", "problem"),
    [
        (
            PackedPlacementStrategy(0, 8),
            Topology.parse("8"),
            "accelerator 8 is not there; the cluster has accelerators 0-7",
        ),
        (FlexiblePlacementStrategy([[8]]), Topology.parse("8"), "accelerator 8 is not there"),
        (NodePlacementStrategy([2]), Topology.parse("2x8"), "node 2 is not there; 'node' has nodes 0-1"),
        (PackedPlacementStrategy(0, 0), Topology.parse("2x0"), "this cluster has no accelerators"),
        (
            FlexiblePlacementStrategy([[0]], "node"),
            Topology.parse("2x1"),
            "node group 'node' has no accelerators",
        ),
        (PackedPlacementStrategy(0, 0, node_group="x"), 8, "there is no node group 'x'"),
        (PackedPlacementStrategy(0, 0), 0, "at least one"),
    ],
)
def test_what_is_not_there_is_refused(strategy, where, problem):
    with pytest.raises(PlacementError, match=problem):
        strategy.get_placement(where)


def test_place_that_is_no_place_is_refused():
    with pytest.raises(ConfigError, match="a Cluster or a Topology is needed"):
        PackedPlacementStrategy(0, 0).get_placement("8")


@pytest.mark.parametrize(
    "strategy",
    [PackedPlacementStrategy(0, 3), FlexiblePlacementStrategy([[0]]), NodePlacementStrategy([0])],
)
def test_strategies_pickle_and_show_themselves(strategy):
    copy = pickle.loads(pickle.dumps(strategy))
    assert copy.get_placement(4) == strategy.get_placement(4)
    assert repr(copy) == repr(strategy)
    assert eval(repr(strategy)).get_placement(4) == strategy.get_placement(4)


def test_strategy_of_a_component_brings_its_node_groups_along():
    config = {
        "cluster": {
            "num_nodes": 2,
            "component_placement": {"actor": {"node_group": "second", "placement": "4-7:0-3,0-3:4-7"}},
            "node_groups": [{"label": "second", "node_ranks": 1}],
        }
    }
    placement = ComponentPlacement(config, Topology.parse("2x8"))
    strategy = pickle.loads(pickle.dumps(placement.get_strategy("actor")))
    planned = placement.placements("actor")
    assert [p.local_hardware_ranks[0] for p in planned] == [4, 5, 6, 7, 0, 1, 2, 3]
    assert strategy.get_placement(FakeCluster("2x8")) == planned
    assert strategy.get_placement(FakeCluster("3x8")) == planned
    assert strategy.get_placement(8) == planned
    with pytest.raises(ConfigError, match="only 1 node"):
        strategy.get_placement(FakeCluster("1x8"))
    with pytest.raises(PlacementError, match="are not there") as caught:
        strategy.get_placement(FakeCluster("2x4"))
    assert caught.value.component == "actor"


TWO_GROUPS = Topology.parse("3x4").with_node_groups(
    [NodeGroup("first", (0, 1)), NodeGroup("last", (2,)), NodeGroup("middle", (1, 2))]
)


@pytest.mark.parametrize("written", ["last,first", " last , first ", ["last", "first"], ("last", "first")])
def test_several_node_groups_are_numbered_in_the_order_written(written):
    placements = PackedPlacementStrategy(0, 11, 4, node_group=written).get_placement(TWO_GROUPS)
    assert [(p.node_rank, p.node_group) for p in placements] == [(2, "last"), (0, "first"), (1, "first")]
    flexible = FlexiblePlacementStrategy([[4], [3]], node_group=written).get_placement(TWO_GROUPS)
    assert devices(flexible) == [(2, 3), (0, 0)]
    nodes = NodePlacementStrategy([0, 1, 2], node_group_label=written).get_placement(TWO_GROUPS)
    assert [p.node_rank for p in nodes] == [2, 0, 1]


def test_strategy_of_several_node_groups_shows_them():
    strategy = PackedPlacementStrategy(0, 3, node_group=["last", "first"])
    assert strategy.node_groups == ("last", "first")
    assert eval(repr(strategy)).node_groups == ("last", "first")


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        (PackedPlacementStrategy(0, 3, node_group="last,last"), "node group 'last' is listed twice"),
        (PackedPlacementStrategy(0, 3, node_group="last,lost"), "there is no node group 'lost'"),
        (
            PackedPlacementStrategy(0, 15, node_group="first,middle"),
            "accelerator 0 of node 1 is used twice, as part of 'first' and of 'middle'",
        ),
        (
            FlexiblePlacementStrategy([[4, 8]], node_group="first,middle"),
            "process 0 would take accelerator 0 of node 1 twice: its node groups overlap",
        ),
    ],
)
def test_node_groups_that_do_not_go_together_are_refused(strategy, problem):
    with pytest.raises(PlacementError, match=problem):
        strategy.get_placement(TWO_GROUPS)


@pytest.mark.parametrize("written", [[], "", "a,,b", [None], 1.5, True, [["a"]]])
def test_node_group_that_is_no_label_is_refused(written):
    with pytest.raises(PlacementError, match="node_group is"):
        PackedPlacementStrategy(0, 3, node_group=written)
