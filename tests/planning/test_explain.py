"""A plan explained: who shares what, and the plan as data."""

import json
from dataclasses import fields

from rlinf_scheduler.planning import (
    Placement,
    PlacementRule,
    Sharing,
    Topology,
    plan_as_data,
    plan_components,
)


def colocated():
    rules = [
        PlacementRule(("actor",), "0-3"),
        PlacementRule(("critic",), "2-3:0"),
        PlacementRule(("env", "agent"), "0", ("node",)),
    ]
    return plan_components(Topology.parse("1x4"), rules)


def test_shared_devices_name_their_components():
    shared = Sharing(colocated()).devices
    assert [(d.node_rank, d.hardware_type, d.local_hardware_rank, d.components) for d in shared] == [
        (0, "", None, ("env", "agent")),
        (0, "GPU", 2, ("actor", "critic")),
        (0, "GPU", 3, ("actor", "critic")),
    ]


def test_data_holds_every_field_of_every_placement():
    plan = colocated()
    data = json.loads(json.dumps(plan_as_data(plan)))
    assert data["topology"]["num_accelerators"] == 4
    assert list(data["components"]) == ["actor", "critic", "env", "agent"]
    actor = data["components"]["actor"]
    assert actor["world_size"] == 4
    assert actor["hardware_ranks"] == [0, 1, 2, 3]
    assert actor["shares_with"] == ["critic"]
    assert [row["shares_with"] for row in actor["placements"]] == [[], [], ["critic"], ["critic"]]
    assert set(actor["placements"][0]) == {f.name for f in fields(Placement)} | {"shares_with"}
    assert data["components"]["critic"]["placements"][0]["local_hardware_ranks"] == [2, 3]
    assert data["shared"][1] == {
        "node_rank": 0,
        "hardware_type": "GPU",
        "local_hardware_rank": 2,
        "components": ["actor", "critic"],
    }
