"""Planning without a cluster: from the text of placements and a topology to who runs where. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf_scheduler.planning.advice import PlanWarning, plan_warnings
    from rlinf_scheduler.planning.diff import ComponentDiff, PlanDiff, RankMove, RankPlace, diff_plans
    from rlinf_scheduler.planning.environments import EnvironmentTable, ProcessEnvironment
    from rlinf_scheduler.planning.explain import SharedDevice, Sharing, plan_as_data, shared_devices
    from rlinf_scheduler.planning.finding import FoundPlace, FoundPlaces, find_places
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
    from rlinf_scheduler.planning.resources import Resource, ResourceTable, ResourceTables
    from rlinf_scheduler.planning.scaling import ScalingOptions
    from rlinf_scheduler.planning.strategies import (
        FlexiblePlacementStrategy,
        NodePlacementStrategy,
        PackedPlacementStrategy,
        strategy_of,
    )
    from rlinf_scheduler.planning.strategy import PlacementStrategy
    from rlinf_scheduler.planning.topology import HasTopology, Node, Topology, topology_of
    from rlinf_scheduler.planning.wishes import Bound, PlacementWish, Properties

__all__ = [
    "CLUSTER_GROUP",
    "NODE_GROUP",
    "Bound",
    "ComponentDiff",
    "ComponentPlan",
    "EnvironmentTable",
    "FlexiblePlacementStrategy",
    "FoundPlace",
    "FoundPlaces",
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
    "PlacementWish",
    "Plan",
    "PlanDiff",
    "PlanWarning",
    "ProcessEnvironment",
    "Properties",
    "RankMove",
    "RankPlace",
    "RankRange",
    "Remainder",
    "RemainingComponent",
    "Resource",
    "ResourceTable",
    "ResourceTables",
    "Run",
    "ScalingOptions",
    "Segment",
    "SharedDevice",
    "Sharing",
    "Topology",
    "diff_plans",
    "find_node",
    "find_places",
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
    __getattr__ = declared(globals())
