"""Every placement of the case file, by the facade and by the strategies that it hands out."""

import copy

import pytest
from placement_cases import COMPONENT_CASES, PACKED_CASES, as_expected, config_of_case, topology_of_case

from rlinf.scheduler import ComponentPlacement, PackedPlacementStrategy
from rlinf.scheduler.errors import PlacementError
from rlinf.scheduler.planning import FlexiblePlacementStrategy, NodePlacementStrategy


@pytest.mark.parametrize("case", COMPONENT_CASES, ids=range(len(COMPONENT_CASES)))
def test_component_placement_holds(case):
    topology, config = topology_of_case(case), config_of_case(case)
    before = copy.deepcopy(config)
    if case["expect"] == "error":
        with pytest.raises(PlacementError):
            ComponentPlacement(config, topology)
        return
    placement = ComponentPlacement(config, topology)
    assert config == before
    assert set(placement.components) == set(case["expect"])
    for name, expected in case["expect"].items():
        planned = placement.placements(name)
        assert [as_expected(p) for p in planned] == expected
        assert placement.get_world_size(name) == len(expected)
        strategy = placement.get_strategy(name)
        on_nodes = not any(p.hardware_type for p in planned)
        assert type(strategy) is (NodePlacementStrategy if on_nodes else FlexiblePlacementStrategy)
        # The bare topology: its nodes, without the groups of the config.
        assert strategy.get_placement(topology) == planned


@pytest.mark.parametrize("case", PACKED_CASES, ids=range(len(PACKED_CASES)))
def test_packed_placement_holds(case):
    numbers = (case["start"], case["end"], case["num_per_process"])
    if case["expect"] == "error":
        with pytest.raises(PlacementError):
            PackedPlacementStrategy(*numbers, stride=case["stride"]).get_placement(topology_of_case(case))
        return
    strategy = PackedPlacementStrategy(*numbers, stride=case["stride"])
    assert [as_expected(p) for p in strategy.get_placement(topology_of_case(case))] == case["expect"]
