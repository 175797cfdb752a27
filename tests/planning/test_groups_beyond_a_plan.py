"""Groups of a topology that a plan has nothing to do with do not stand in its way."""

import numpy as np
import pytest

from rlinf.scheduler import ComponentPlacement, Topology
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning import NodeGroup

BIG = Topology(Topology.parse("2x8").nodes, (NodeGroup("b", (1,)),))
CONFIG = {"num_nodes": 1, "component_placement": {"a": "0-3"}}


def test_a_strategy_brings_its_own_groups_to_any_topology():
    strategy = ComponentPlacement(CONFIG, Topology.parse("2x8")).get_strategy("a")
    assert [p.local_gpu_id for p in strategy.get_placement(BIG)] == [0, 1, 2, 3]


def test_a_plan_on_the_first_nodes_leaves_out_groups_of_the_others():
    assert ComponentPlacement(CONFIG, BIG).get_world_size("a") == 4
    named = {"num_nodes": 1, "component_placement": {"a": {"node_group": "b", "placement": "0-3"}}}
    with pytest.raises(ConfigError, match="there is no node group 'b'"):
        ComponentPlacement(named, BIG)


def test_an_array_in_the_place_of_a_placement_is_an_error_of_ours():
    with pytest.raises(ConfigError, match="a placement must be text"):
        ComponentPlacement({"component_placement": {"a": np.arange(3)}}, BIG)


def test_a_fraction_in_a_variable_is_refused_and_not_rounded():
    group = {"label": "g", "node_ranks": 0, "env_configs": [{"node_ranks": 0, "env_vars": {"CUDA": 2.10}}]}
    with pytest.raises(ConfigError, match="in quotes"):
        ComponentPlacement({**CONFIG, "node_groups": [group]}, BIG)


def test_a_component_name_cannot_forge_a_line_or_steer_the_terminal():
    config = {"num_nodes": 1, "component_placement": {"a\nrlinf: fine \x1b[31m": "0-99"}}
    with pytest.raises(ConfigError) as caught:
        ComponentPlacement(config, BIG)
    first_line = str(caught.value).splitlines()[0]
    assert "\\nrlinf: fine \\x1b[31m" in first_line
    assert "\x1b" not in str(caught.value)
