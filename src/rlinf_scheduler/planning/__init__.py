"""Planning without a cluster: from the text of placements and a topology to who runs where. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import loader

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf_scheduler.planning.advice import PlanWarning, plan_warnings
    from rlinf_scheduler.planning.diff import ComponentDiff, PlanDiff, RankMove, RankPlace, diff_plans
    from rlinf_scheduler.planning.environments import EnvironmentTable, ProcessEnvironment
    from rlinf_scheduler.planning.explain import SharedDevice, Sharing, plan_as_data, shared_devices
    from rlinf_scheduler.planning.grammar import (
        RankRange,
        Segment,
        format_segments,
        parse_ranks,
        parse_segments,
    )
    from rlinf_scheduler.planning.node_groups import (
        CLUSTER_GROUP,
        NODE_GROUP,
        HardwareUnit,
        NodeEnvironment,
        NodeGroup,
    )
    from rlinf_scheduler.planning.plan import ComponentPlan, Plan, Run
    from rlinf_scheduler.planning.planner import (
        PlacementRule,
        plan_components,
        plan_rule,
        try_plan_components,
    )
    from rlinf_scheduler.planning.record import Placement
    from rlinf_scheduler.planning.remaining import Remainder, RemainingComponent, find_node, without_nodes
    from rlinf_scheduler.planning.resources import Resource, ResourceTable
    from rlinf_scheduler.planning.strategies import (
        FlexiblePlacementStrategy,
        NodePlacementStrategy,
        PackedPlacementStrategy,
        strategy_of,
    )
    from rlinf_scheduler.planning.strategy import PlacementStrategy
    from rlinf_scheduler.planning.topology import HasTopology, Node, Topology, topology_of

_MODULES = {
    "CLUSTER_GROUP": "rlinf_scheduler.planning.node_groups",
    "ComponentDiff": "rlinf_scheduler.planning.diff",
    "ComponentPlan": "rlinf_scheduler.planning.plan",
    "EnvironmentTable": "rlinf_scheduler.planning.environments",
    "FlexiblePlacementStrategy": "rlinf_scheduler.planning.strategies",
    "HardwareUnit": "rlinf_scheduler.planning.node_groups",
    "HasTopology": "rlinf_scheduler.planning.topology",
    "NODE_GROUP": "rlinf_scheduler.planning.node_groups",
    "Node": "rlinf_scheduler.planning.topology",
    "NodeEnvironment": "rlinf_scheduler.planning.node_groups",
    "NodeGroup": "rlinf_scheduler.planning.node_groups",
    "NodePlacementStrategy": "rlinf_scheduler.planning.strategies",
    "PackedPlacementStrategy": "rlinf_scheduler.planning.strategies",
    "Placement": "rlinf_scheduler.planning.record",
    "PlacementRule": "rlinf_scheduler.planning.planner",
    "PlacementStrategy": "rlinf_scheduler.planning.strategy",
    "Plan": "rlinf_scheduler.planning.plan",
    "PlanDiff": "rlinf_scheduler.planning.diff",
    "PlanWarning": "rlinf_scheduler.planning.advice",
    "ProcessEnvironment": "rlinf_scheduler.planning.environments",
    "RankMove": "rlinf_scheduler.planning.diff",
    "RankPlace": "rlinf_scheduler.planning.diff",
    "RankRange": "rlinf_scheduler.planning.grammar",
    "Remainder": "rlinf_scheduler.planning.remaining",
    "RemainingComponent": "rlinf_scheduler.planning.remaining",
    "Resource": "rlinf_scheduler.planning.resources",
    "ResourceTable": "rlinf_scheduler.planning.resources",
    "Run": "rlinf_scheduler.planning.plan",
    "Segment": "rlinf_scheduler.planning.grammar",
    "SharedDevice": "rlinf_scheduler.planning.explain",
    "Sharing": "rlinf_scheduler.planning.explain",
    "Topology": "rlinf_scheduler.planning.topology",
    "diff_plans": "rlinf_scheduler.planning.diff",
    "find_node": "rlinf_scheduler.planning.remaining",
    "format_segments": "rlinf_scheduler.planning.grammar",
    "parse_ranks": "rlinf_scheduler.planning.grammar",
    "parse_segments": "rlinf_scheduler.planning.grammar",
    "plan_as_data": "rlinf_scheduler.planning.explain",
    "plan_components": "rlinf_scheduler.planning.planner",
    "plan_rule": "rlinf_scheduler.planning.planner",
    "plan_warnings": "rlinf_scheduler.planning.advice",
    "shared_devices": "rlinf_scheduler.planning.explain",
    "strategy_of": "rlinf_scheduler.planning.strategies",
    "topology_of": "rlinf_scheduler.planning.topology",
    "try_plan_components": "rlinf_scheduler.planning.planner",
    "without_nodes": "rlinf_scheduler.planning.remaining",
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

if not TYPE_CHECKING:  # which would believe that every name is there
    __getattr__ = loader(globals(), _MODULES)
