"""A strategy of a user's own: one public method, and the table of resources as a public type."""

import pickle

import pytest

from rlinf.scheduler import PlacementStrategy, Topology
from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.placement import NodeGroup, ResourceTable


class Assigned(PlacementStrategy):
    """Gives what it is told to, whatever the resources."""

    def __init__(self, lists, node_group=None):
        super().__init__(node_group)
        self.lists = lists

    def assign(self, resources):
        return self.lists


class LastOfEveryNode(PlacementStrategy):
    """One process a node, on its last accelerator. It has no arguments, so it has no __init__."""

    def assign(self, resources: ResourceTable):
        return [numbers[-1:] for numbers in resources.by_node().values()]


class EveryNode(PlacementStrategy):
    counts_nodes = True

    def assign(self, resources):
        return [[number] for number in range(len(resources))]

    def num_nodes_needed(self, accelerators_per_node):
        return 3


def devices(placements):
    return [(p.rank, p.node_rank, *p.local_hardware_ranks) for p in placements]


def test_one_method_is_a_strategy():
    assert devices(LastOfEveryNode().get_placement(Topology.parse("2x4"))) == [(0, 0, 3), (1, 1, 3)]
    assert devices(LastOfEveryNode().get_placement(4)) == [(0, 0, 3)]


def test_placements_have_all_that_other_strategies_give_them():
    first, second = Assigned([[0], [6, 5]]).get_placement(Topology.parse("2x4"))
    assert (first.visible_accelerators, first.local_world_size) == (("0",), 1)
    assert (second.visible_accelerators, second.placement_node_rank) == (("1", "2"), 1)
    everything = Assigned([[0]]).get_placement(Topology.parse("2x4"), isolate_gpu=False)
    assert everything[0].visible_accelerators == ("0", "1", "2", "3")


def test_strategy_may_count_nodes():
    strategy = EveryNode()
    assert strategy.node_groups == ("node",)
    placements = strategy.get_placement(8)
    assert devices(placements) == [(0, 0), (1, 1), (2, 2)]
    assert {p.visible_accelerators for p in placements} == {()}


def test_strategy_may_be_given_several_node_groups():
    topology = Topology.parse("2x2").with_node_groups([NodeGroup("b", (1,)), NodeGroup("a", (0,))])
    placements = Assigned([[0], [2]], node_group=["b", "a"]).get_placement(topology)
    assert [(p.node_group, p.node_rank) for p in placements] == [("b", 1), ("a", 0)]


@pytest.mark.parametrize(
    ("lists", "problem"),
    [
        ([], "Assigned assigns nothing: there must be at least one process"),
        ([[0], []], "process 1 of Assigned is empty: a process needs at least one resource"),
        ([[0, 0]], r"process 0 of Assigned names a rank twice: \[0, 0\]"),
        ([[-1]], "process 0 of Assigned is -1: it must be a whole number from 0"),
        ([0], "process 0 of Assigned is 0: it must be a list of ranks"),
        ([[0], [8]], "accelerator 8 is not there; the cluster has accelerators 0-7 on nodes 0-1"),
        (
            [[3, 4]],
            "process 0 would take accelerators 3 of node 0 and 0 of node 1; a process stays on one node",
        ),
    ],
)
def test_what_it_assigns_is_checked(lists, problem):
    with pytest.raises(PlacementError, match=problem):
        Assigned(lists).get_placement(Topology.parse("2x4"))


def test_table_says_what_each_number_is():
    topology = Topology.parse("2x2").with_node_groups([NodeGroup("b", (1,))])
    table = ResourceTable(topology, ["b", "cluster"])
    assert [(r.number, r.node_rank, r.local_rank, r.node_group) for r in table] == [
        (0, 1, 0, "b"),
        (1, 1, 1, "b"),
        (2, 0, 0, "cluster"),
        (3, 0, 1, "cluster"),
        (4, 1, 0, "cluster"),
        (5, 1, 1, "cluster"),
    ]
    assert {resource.hardware_type for resource in table} == {"GPU"}
    assert table.by_node() == {1: (0, 1, 4, 5), 0: (2, 3)}
    with pytest.raises(IndexError, match="6 is not there"):
        table[6]


def test_own_strategy_pickles_with_its_plan():
    strategy = LastOfEveryNode()
    placements = strategy.get_placement(Topology.parse("2x4"))
    assert pickle.loads(pickle.dumps(strategy)).get_placement(Topology.parse("2x4")) == placements
