"""Strategies of a config's components: they stand for a placement's text and hold the plan that was made of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Self

from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.planning.plan import ComponentPlan
from rlinf_scheduler.planning.planner import PlacementRule, plan_rule, resources_of_processes
from rlinf_scheduler.planning.resources import ResourceTable
from rlinf_scheduler.planning.strategy import PlacementStrategy
from rlinf_scheduler.planning.topology import HasTopology, Topology
from rlinf_scheduler.planning.wishes import Properties


class ComponentStrategy(PlacementStrategy):
    """A strategy that has numbers of its own, or stands for a component of a config."""

    _rule: PlacementRule | None = None
    _properties: Properties | None = None
    _planned_on: Topology | None = None

    @classmethod
    def of_component(
        cls, rule: PlacementRule, plan: ComponentPlan, properties: Properties | None = None
    ) -> Self:
        """The strategy that places a component as it was planned. Only for other nodes is the plan made anew.

        These must have the properties by which it was placed.

        It brings the node groups of the plan along: the cluster that it is given may know none of them. Of a bigger
        cluster it uses as many nodes as the plan has.
        """
        strategy = cls.__new__(cls)
        strategy._rule, strategy._planned_on, strategy._kept = rule, plan.topology, plan
        strategy._node_groups, strategy._properties = plan.node_groups, properties
        return strategy

    def __repr__(self) -> str:
        if self._rule is None or self._kept is None:
            return f"{type(self).__name__}({self._numbers()}, node_group={','.join(self.node_groups)!r})"
        return f"<{type(self).__name__} of '{self._kept.name}': {self._rule.text}>"

    def assign(self, resources: ResourceTable) -> Iterable[Sequence[int]]:
        """What every process is given, in rank order."""
        if self._rule is not None:
            return resources_of_processes(self._rule, resources)
        return self._assign_numbers(resources)

    def num_nodes_needed(self, accelerators_per_node: int) -> int:
        """Enough for the highest number; for a component as many as it was planned on."""
        if self._planned_on is not None:
            return self._planned_on.num_nodes
        return self._nodes_for_numbers(accelerators_per_node)

    def _topology(self, where: HasTopology | Topology | int) -> Topology:
        given, planned = super()._topology(where), self._planned_on
        if planned is None:
            return given
        # The node groups of the plan are used, not those of the cluster.
        nodes = given.first_nodes(planned.num_nodes).nodes
        return planned if nodes == planned.nodes else Topology(nodes, planned.node_groups)

    def _plan(self, topology: Topology) -> ComponentPlan:
        if self._rule is None or self._kept is None:
            return super()._plan(topology)
        plan = plan_rule(topology, self._rule).named(self._kept.name)
        if self._properties:
            _check_nodes(plan, topology, self._properties)
        return plan

    @abstractmethod
    def _numbers(self) -> str: ...

    @abstractmethod
    def _assign_numbers(self, resources: ResourceTable) -> Iterable[Sequence[int]]: ...

    @abstractmethod
    def _nodes_for_numbers(self, accelerators_per_node: int) -> int: ...


def _check_nodes(plan: ComponentPlan, topology: Topology, properties: Properties) -> None:
    for rank in dict.fromkeys(run.node_rank for run in plan.runs):
        misfits = properties.misfits(topology.nodes[rank])
        if misfits:
            problem = (
                f"these are not the nodes that its place was found on, and node {rank} has not {properties}"
            )
            raise PlacementError(
                f"{problem}: {', '.join(misfits)}",
                component=plan.name,
                hint="ComponentPlacement(config, cluster) finds a place on them",
            )
