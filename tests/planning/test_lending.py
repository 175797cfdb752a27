"""Which devices of a group another one may have for a while."""

import pytest

from rlinf_scheduler.config import read_cluster_config
from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.planning import FlexiblePlacementStrategy, NodePlacementStrategy, Topology
from rlinf_scheduler.planning.lending import LentDevices, borrowed_placement, lent_devices

TOPOLOGY = Topology.parse("2x4")


def placed(*places, topology=TOPOLOGY):
    return FlexiblePlacementStrategy(list(places)).get_placement(topology)


def test_ranks_get_neighbours_on_one_node_the_lenders_first_ranks_first():
    actor, rollout = placed([0, 1, 2], [4, 5, 6]), placed([3], [7])
    lent = lent_devices(actor, rollout, 4)
    assert [(each.node_rank, each.devices, each.lenders) for each in lent] == [
        (0, (0,), (0,)),
        (0, (1,), (0,)),
        (0, (2,), (0,)),
        (1, (0,), (1,)),
    ]
    wide = placed([6, 7])
    assert lent_devices(actor, wide) == [LentDevices(0, (0, 1), (0,)), LentDevices(1, (0, 1), (1,))]


def test_what_the_borrower_has_already_is_not_lent_again():
    actor, rollout = placed([0], [1], [2], [3]), placed([0], [1])
    assert [each.devices for each in lent_devices(actor, rollout)] == [(2,), (3,)]
    with pytest.raises(PlacementError, match="2 further ranks of 1 device could run on its devices, not 3"):
        lent_devices(actor, rollout, 3)


def test_where_nothing_is_left_or_there_are_no_accelerators_it_is_told():
    with pytest.raises(PlacementError, match="0 further ranks of 2 devices could run on its devices, not 1"):
        lent_devices(placed([0]), placed([2, 3]))
    bare = NodePlacementStrategy([0]).get_placement(TOPOLOGY)
    for lender, borrower in ((bare, placed([0])), (placed([0]), bare)):
        with pytest.raises(PlacementError, match="lent from ranks that have accelerators"):
            lent_devices(lender, borrower)


def test_the_placement_is_in_the_numbers_of_the_borrowers_node_group():
    topology = TOPOLOGY.with_node_groups(
        read_cluster_config({"node_groups": [{"label": "second", "node_ranks": 1}]}).node_groups
    )
    rollout = FlexiblePlacementStrategy([[3]], ["second"]).get_placement(topology)
    actor = placed([0, 1], [4, 5], topology=topology)
    lent = lent_devices(actor, rollout)
    with pytest.raises(PlacementError, match="node 0 is not in the borrower's node group, second"):
        borrowed_placement(lent, rollout, topology)
    there = borrowed_placement(lent[2:], rollout, topology).get_placement(topology)
    assert [(each.node_rank, each.local_hardware_ranks, each.hardware_ranks) for each in there] == [
        (1, (0,), (0,)),
        (1, (1,), (1,)),
    ]
