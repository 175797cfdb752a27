"""Planning without a cluster: from the text of placements and a topology to who runs where. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.scheduler.lazy import loader

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf.scheduler.planning.advice import PlanWarning, plan_warnings
    from rlinf.scheduler.planning.diff import ComponentDiff, PlanDiff, RankMove, RankPlace, diff_plans
    from rlinf.scheduler.planning.environments import EnvironmentTable, ProcessEnvironment
    from rlinf.scheduler.planning.explain import SharedDevice, Sharing, plan_as_data, shared_devices
    from rlinf.scheduler.planning.grammar import (
        RankRange,
        Segment,
        format_segments,
        parse_ranks,
        parse_segments,
    )
    from rlinf.scheduler.planning.node_groups import (
        CLUSTER_GROUP,
        NODE_GROUP,
        HardwareUnit,
        NodeEnvironment,
        NodeGroup,
    )
    from rlinf.scheduler.planning.plan import ComponentPlan, Plan, Run
    from rlinf.scheduler.planning.planner import (
        PlacementRule,
        plan_components,
        plan_rule,
        try_plan_components,
    )
    from rlinf.scheduler.planning.record import Placement
    from rlinf.scheduler.planning.remaining import Remainder, RemainingComponent, find_node, without_nodes
    from rlinf.scheduler.planning.resources import Resource, ResourceTable
    from rlinf.scheduler.planning.strategies import (
        FlexiblePlacementStrategy,
        NodePlacementStrategy,
        PackedPlacementStrategy,
        strategy_of,
    )
    from rlinf.scheduler.planning.strategy import PlacementStrategy
    from rlinf.scheduler.planning.topology import HasTopology, Node, Topology, topology_of

_MODULES = {
    "CLUSTER_GROUP": "rlinf.scheduler.planning.node_groups",
    "ComponentDiff": "rlinf.scheduler.planning.diff",
    "ComponentPlan": "rlinf.scheduler.planning.plan",
    "EnvironmentTable": "rlinf.scheduler.planning.environments",
    "FlexiblePlacementStrategy": "rlinf.scheduler.planning.strategies",
    "HardwareUnit": "rlinf.scheduler.planning.node_groups",
    "HasTopology": "rlinf.scheduler.planning.topology",
    "NODE_GROUP": "rlinf.scheduler.planning.node_groups",
    "Node": "rlinf.scheduler.planning.topology",
    "NodeEnvironment": "rlinf.scheduler.planning.node_groups",
    "NodeGroup": "rlinf.scheduler.planning.node_groups",
    "NodePlacementStrategy": "rlinf.scheduler.planning.strategies",
    "PackedPlacementStrategy": "rlinf.scheduler.planning.strategies",
    "Placement": "rlinf.scheduler.planning.record",
    "PlacementRule": "rlinf.scheduler.planning.planner",
    "PlacementStrategy": "rlinf.scheduler.planning.strategy",
    "Plan": "rlinf.scheduler.planning.plan",
    "PlanDiff": "rlinf.scheduler.planning.diff",
    "PlanWarning": "rlinf.scheduler.planning.advice",
    "ProcessEnvironment": "rlinf.scheduler.planning.environments",
    "RankMove": "rlinf.scheduler.planning.diff",
    "RankPlace": "rlinf.scheduler.planning.diff",
    "RankRange": "rlinf.scheduler.planning.grammar",
    "Remainder": "rlinf.scheduler.planning.remaining",
    "RemainingComponent": "rlinf.scheduler.planning.remaining",
    "Resource": "rlinf.scheduler.planning.resources",
    "ResourceTable": "rlinf.scheduler.planning.resources",
    "Run": "rlinf.scheduler.planning.plan",
    "Segment": "rlinf.scheduler.planning.grammar",
    "SharedDevice": "rlinf.scheduler.planning.explain",
    "Sharing": "rlinf.scheduler.planning.explain",
    "Topology": "rlinf.scheduler.planning.topology",
    "diff_plans": "rlinf.scheduler.planning.diff",
    "find_node": "rlinf.scheduler.planning.remaining",
    "format_segments": "rlinf.scheduler.planning.grammar",
    "parse_ranks": "rlinf.scheduler.planning.grammar",
    "parse_segments": "rlinf.scheduler.planning.grammar",
    "plan_as_data": "rlinf.scheduler.planning.explain",
    "plan_components": "rlinf.scheduler.planning.planner",
    "plan_rule": "rlinf.scheduler.planning.planner",
    "plan_warnings": "rlinf.scheduler.planning.advice",
    "shared_devices": "rlinf.scheduler.planning.explain",
    "strategy_of": "rlinf.scheduler.planning.strategies",
    "topology_of": "rlinf.scheduler.planning.topology",
    "try_plan_components": "rlinf.scheduler.planning.planner",
    "without_nodes": "rlinf.scheduler.planning.remaining",
}

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
    "Placement",
    "PlacementRule",
    "PlacementStrategy",
    "Plan",
    "PlanDiff",
    "PlanWarning",
    "ProcessEnvironment",
    "RankMove",
    "RankPlace",
    "RankRange",
    "Remainder",
    "RemainingComponent",
    "Resource",
    "ResourceTable",
    "Run",
    "Segment",
    "SharedDevice",
    "Sharing",
    "Topology",
    "diff_plans",
    "find_node",
    "format_segments",
    "parse_ranks",
    "parse_segments",
    "plan_as_data",
    "plan_components",
    "plan_rule",
    "plan_warnings",
    "shared_devices",
    "strategy_of",
    "topology_of",
    "try_plan_components",
    "without_nodes",
]


__getattr__ = loader(globals(), _MODULES)
