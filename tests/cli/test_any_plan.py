"""Whatever the plan: every way to show it works, and the ways agree."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import tries
from rlinf_scheduler.cli.plan_diff import diff_as_data, render_diff
from rlinf_scheduler.cli.plan_map import map_rows, render_map
from rlinf_scheduler.cli.plan_page import page_data, render_page
from rlinf_scheduler.cli.plan_table import render_plan, render_warnings
from rlinf_scheduler.cli.planned import Planned, report_as_data, report_on
from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.planning import (
    HardwareUnit,
    Node,
    NodeGroup,
    PlacementRule,
    Plan,
    Topology,
    diff_plans,
    plan_rule,
)

names = st.text(min_size=1, max_size=8)
texts = st.sampled_from(
    ["all", "0", "0-1", "0-1:0", "0:0-3", "0-3:0-1", "1-2,4:2-3", "0-5:0-11", "3-4:0,0-1:1"]
)
labels = st.sampled_from([("cluster",), ("node",), ("red",), ("green",), ("red", "green")])


@st.composite
def topologies(draw):
    kinds = st.sampled_from(["NVIDIA", "Ascend"])
    nodes = tuple(
        Node(num_accelerators=draw(st.integers(0, 6)), accelerator_type=draw(kinds), hostname=draw(names))
        for _ in range(draw(st.integers(1, 5)))
    )
    groups = []
    for label in ("red", "green"):
        members = tuple(draw(st.permutations(range(len(nodes))))[: draw(st.integers(1, len(nodes)))])
        robots = draw(st.lists(st.sampled_from(members), max_size=4))
        hardware = tuple(HardwareUnit("Robot", rank, f"{label}{index}") for index, rank in enumerate(robots))
        groups.append(NodeGroup(label, members, hardware, ignore_hardware=draw(st.booleans())))
    return Topology(nodes, tuple(groups))


@st.composite
def plans(draw):
    topology, components = draw(topologies()), {}
    for name in draw(st.lists(names, max_size=5, unique=True)):
        try:
            rule = PlacementRule((name,), draw(texts), draw(labels))
            components[name] = plan_rule(topology, rule)
        except PlacementError:
            continue
    return Plan(topology, components)


@settings(max_examples=tries(30), deadline=None)
@given(plans())
def test_any_plan_can_be_shown_in_every_way(plan):
    report = report_on(Planned(plan), dict.fromkeys(plan.components, 1))
    num_ranks = sum(component.world_size for component in plan.components.values())
    assert render_plan(plan, every_rank=True, sharing=report.sharing).count("\n") == num_ranks + 2
    assert render_plan(plan).endswith("\n")
    assert render_warnings(report.warnings).count("\n") == min(13, len(report.warnings))
    assert json.loads(json.dumps(report_as_data(report)))["version"] == 1
    assert render_map(plan, report.sharing, colour=True)
    page = render_page(report, "any")
    assert page.count("<script") == 2


@settings(max_examples=tries(20), deadline=None)
@given(plans())
def test_map_shows_every_device_and_every_user(plan):
    report = report_on(Planned(plan), {})
    rows = list(map_rows(plan, report.sharing))
    assert [rank for row in rows for rank in range(row.first_node, row.last_node + 1)] == list(
        range(plan.topology.num_nodes)
    )
    shown = [
        (rank, "" if strip.kind == "node" else strip.kind, index, users)
        for row in rows
        for rank in range(row.first_node, row.last_node + 1)
        for strip in row.strips
        for index, users in enumerate(strip.devices)
        if users
    ]
    used = [(rank, kind, index or 0, users) for (rank, kind, index), users in report.sharing.users.items()]
    assert sorted(shown) == sorted(used)
    assert len(page_data(report)["nodes"]) == plan.topology.num_nodes


@settings(max_examples=tries(20), deadline=None)
@given(plans(), plans())
def test_any_two_plans_can_be_compared(old, new):
    found = diff_plans(old, new)
    assert render_diff(found).endswith("\n")
    data = json.loads(json.dumps(diff_as_data(found)))
    assert data["moves"] == found.moves
    changed = {name for name, part in data["components"].items() if part["change"] != "same"}
    assert changed == {component.name for component in found.components if component.moves}
    rows = render_diff(found, every_rank=True).count("\n")
    moves = sum(len(component.moves) for component in found.components)
    assert rows == (moves + len(changed) + 1 if moves else 1)
