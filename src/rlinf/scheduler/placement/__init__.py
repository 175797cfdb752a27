"""Planning without a cluster: from the text of placements and a topology to who runs where. Pure."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rlinf.scheduler.placement.advice import PlanWarning, plan_warnings
from rlinf.scheduler.placement.diff import ComponentDiff, Place, PlanDiff, RankMove, diff_plans
from rlinf.scheduler.placement.environments import EnvironmentTable, ProcessEnvironment, environment_of
from rlinf.scheduler.placement.explain import SharedDevice, Sharing, plan_as_data
from rlinf.scheduler.placement.grammar import (
    RankRange,
    Segment,
    format_segments,
    parse_ranks,
    parse_segments,
)
from rlinf.scheduler.placement.nearest import nearest_name
from rlinf.scheduler.placement.node_groups import (
    CLUSTER_GROUP,
    NODE_GROUP,
    HardwareUnit,
    NodeEnvironment,
    NodeGroup,
)
from rlinf.scheduler.placement.plan import ComponentPlan, Plan, Run
from rlinf.scheduler.placement.planner import (
    PlacementRule,
    plan_components,
    plan_rule,
    try_plan_components,
)
from rlinf.scheduler.placement.record import Placement
from rlinf.scheduler.placement.strategies import (
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    PlacementStrategy,
    strategy_of,
)
from rlinf.scheduler.placement.topology import HasTopology, Node, Topology, topology_of

__all__ = [
    "CLUSTER_GROUP",
    "NODE_GROUP",
    "ComponentDiff",
    "ComponentPlan",
    "EnvironmentTable",
    "FlexiblePlacementStrategy",
    "HardwareUnit",
    "HasTopology",
    "Node",
    "NodeEnvironment",
    "NodeGroup",
    "NodePlacementStrategy",
    "PackedPlacementStrategy",
    "Place",
    "Placement",
    "PlacementRule",
    "PlacementStrategy",
    "Plan",
    "PlanDiff",
    "PlanWarning",
    "ProcessEnvironment",
    "RankMove",
    "RankRange",
    "Run",
    "Segment",
    "SharedDevice",
    "Sharing",
    "Topology",
    "diff_plans",
    "environment_of",
    "format_segments",
    "nearest_name",
    "parse_ranks",
    "parse_segments",
    "plan_as_data",
    "plan_components",
    "plan_rule",
    "plan_warnings",
    "strategy_of",
    "topology_of",
    "try_plan_components",
]


def __getattr__(name: str) -> Any:
    # The documents import ComponentPlacement from here. It reads configs, so it stands above config/, which stands
    # above this package: the one name that points upwards, and it is looked up only when somebody asks for it.
    if name == "ComponentPlacement":
        return import_module("rlinf.scheduler.component_placement").ComponentPlacement
    message = f"module '{__name__}' has no attribute '{name}'"
    raise AttributeError(message)
