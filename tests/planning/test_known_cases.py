"""Every placement of the case file, by the facade and by the strategies that it hands out."""

import copy

import pytest
from placement_cases import COMPONENT_CASES, PACKED_CASES, as_expected, config_of_case, topology_of_case

from effort import case
from rlinf.scheduler import ComponentPlacement, PackedPlacementStrategy
from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.planning import FlexiblePlacementStrategy, NodePlacementStrategy


def test_component_placement_holds():
    for number, known in enumerate(COMPONENT_CASES):
        with case(number):
            check_components(known)


def check_components(known):
    topology, config = topology_of_case(known), config_of_case(known)
    before = copy.deepcopy(config)
    if known["expect"] == "error":
        with pytest.raises(PlacementError):
            ComponentPlacement(config, topology)
        return
    placement = ComponentPlacement(config, topology)
    assert config == before
    assert set(placement.components) == set(known["expect"])
    for name, expected in known["expect"].items():
        planned = placement.placements(name)
        assert [as_expected(p) for p in planned] == expected
        assert placement.get_world_size(name) == len(expected)
        strategy = placement.get_strategy(name)
        on_nodes = not any(p.hardware_type for p in planned)
        assert isinstance(strategy, NodePlacementStrategy if on_nodes else FlexiblePlacementStrategy)
        # The bare topology: its nodes, without the groups of the config.
        assert strategy.get_placement(topology) == planned


def test_packed_placement_holds():
    for number, known in enumerate(PACKED_CASES):
        with case(number):
            check_packed(known)


def check_packed(known):
    numbers = (known["start"], known["end"], known["num_per_process"])
    if known["expect"] == "error":
        with pytest.raises(PlacementError):
            PackedPlacementStrategy(*numbers, stride=known["stride"]).get_placement(topology_of_case(known))
        return
    strategy = PackedPlacementStrategy(*numbers, stride=known["stride"])
    assert [as_expected(p) for p in strategy.get_placement(topology_of_case(known))] == known["expect"]
