"""What a user is told about arguments of strategies and topologies: read by a person and kept as files.

`APPROVE=1 pytest tests/planning/test_approved_arguments.py` writes the messages anew; read what changed.
"""

import os
from pathlib import Path

import pytest

from effort import case
from rlinf.scheduler import (
    ComponentPlacement,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Topology,
)
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning import Node, NodeGroup, parse_ranks

FOLDER = Path(__file__).parent / "approved"
TWO_NODES = Topology.parse("2x8")
BARE_NODES = Topology.parse("0,0")


def place(strategy, where=TWO_NODES):
    return strategy.get_placement(where)


CALLS = {
    "packed-no-end": lambda: PackedPlacementStrategy(0),
    "packed-negative-start": lambda: PackedPlacementStrategy(-1, 3),
    "packed-text": lambda: PackedPlacementStrategy("0", "7"),
    "packed-reversed": lambda: PackedPlacementStrategy(7, 0),
    "packed-no-multiple": lambda: PackedPlacementStrategy(0, 7, 3),
    "packed-no-multiple-of-the-stride": lambda: PackedPlacementStrategy(0, 7, 2, stride=3),
    "packed-stride-zero": lambda: PackedPlacementStrategy(0, 7, stride=0),
    "packed-two-names-of-one-option": lambda: PackedPlacementStrategy(0, 7, start_hardware_rank=0),
    "packed-spans-nodes": lambda: place(PackedPlacementStrategy(0, 11, 3)),
    "packed-stride-spans-nodes": lambda: place(PackedPlacementStrategy(4, 11, 2, stride=4)),
    "packed-not-there": lambda: place(PackedPlacementStrategy(0, 16)),
    "packed-on-bare-nodes": lambda: place(PackedPlacementStrategy(0, 1), BARE_NODES),
    "packed-group-not-there": lambda: place(PackedPlacementStrategy(0, 1, node_group="a800")),
    "flexible-empty": lambda: FlexiblePlacementStrategy([]),
    "flexible-empty-process": lambda: FlexiblePlacementStrategy([[0], []]),
    "flexible-rank-twice": lambda: FlexiblePlacementStrategy([[0, 0]]),
    "flexible-numbers": lambda: FlexiblePlacementStrategy([0, 1]),
    "flexible-text": lambda: FlexiblePlacementStrategy("0-3"),
    "flexible-spans-nodes": lambda: place(FlexiblePlacementStrategy([[0, 8]])),
    "flexible-not-there": lambda: place(FlexiblePlacementStrategy([[0], [99]])),
    "nodes-empty": lambda: NodePlacementStrategy([]),
    "nodes-number": lambda: NodePlacementStrategy(0),
    "nodes-negative": lambda: NodePlacementStrategy([0, -1]),
    "nodes-not-there": lambda: place(NodePlacementStrategy([0, 2])),
    "where-text": lambda: place(NodePlacementStrategy([0]), "2x8"),
    "where-zero": lambda: place(PackedPlacementStrategy(0, 1), 0),
    "topology-empty": lambda: Topology.parse(""),
    "topology-words": lambda: Topology.parse("two of eight"),
    "topology-no-nodes": lambda: Topology.parse("0x8"),
    "topology-empty-part": lambda: Topology.parse("8,,4"),
    "topology-negative": lambda: Topology.parse("8,-4"),
    "topology-too-many": lambda: Topology.parse("99999x99999"),
    "topology-without-nodes": lambda: Topology(nodes=()),
    "topology-mask-of-another-length": lambda: Node("n", num_accelerators=2, visible=("4",)),
    "topology-negative-count": lambda: Node(num_accelerators=-1),
    "topology-groups": lambda: TWO_NODES.with_node_groups(
        [NodeGroup("a", (0, 2)), NodeGroup("node", (0, 0))]
    ),
    "ranks-open": lambda: parse_ranks("0-2, 4-"),
    "component-not-there": lambda: ComponentPlacement(
        {"component_placement": {"actor": 0, "rollout": 1}}, TWO_NODES
    ).placements("actr"),
    "config-number": lambda: ComponentPlacement(7, TWO_NODES),
}


def test_caller_is_told_what_was_approved():
    for name, call in CALLS.items():
        with case(name):
            with pytest.raises(ConfigError) as caught:
                call()
            message, approved = f"{caught.value}\n", FOLDER / f"{name}.txt"
            if os.environ.get("APPROVE"):
                approved.write_text(message)
            assert message == approved.read_text()


def test_every_message_has_its_call():
    assert {file.stem for file in FOLDER.glob("*.txt")} == set(CALLS)
