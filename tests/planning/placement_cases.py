"""The placements in `tests/data/placement.json`, worked out independently of this project."""

import json
from pathlib import Path

from rlinf_scheduler.planning import Node, Topology

_CASES = json.loads((Path(__file__).parents[1] / "data" / "placement.json").read_text())
COMPONENT_CASES = _CASES["component"]
PACKED_CASES = _CASES["packed"]


def topology_of_case(case):
    return Topology(tuple(Node(num_accelerators=count) for count in case["accelerators"]))


def config_of_case(case):
    groups = []
    for label, group in case["node_groups"].items():
        entry = {"label": label, "node_ranks": list(group["node_ranks"])}
        if group["hardware"] is not None:
            robots = [
                {"node_rank": rank, "address": f"10.0.{rank}.{index}"}
                for rank in group["node_ranks"]
                for index in range(case["robots"][rank])
            ]
            entry["hardware"] = {"type": "Robot", "configs": robots}
        groups.append(entry)
    section = {
        "num_nodes": len(case["accelerators"]),
        "component_placement": case["component_placement"],
        "node_groups": groups,
    }
    return {"cluster": section}


def as_expected(placement):
    """A placement in the form of the file."""
    row = {
        "rank": placement.rank,
        "node_rank": placement.node_rank,
        "local_rank": placement.local_rank,
        "local_world_size": placement.local_world_size,
        "local_hardware_ranks": list(placement.local_hardware_ranks),
        "node_group": placement.node_group,
    }
    if placement.has_accelerators:
        row["visible"] = list(placement.visible_accelerators)
    return row
