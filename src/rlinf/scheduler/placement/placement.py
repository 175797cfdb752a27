"""`ComponentPlacement` with the members that RLinf's own subclasses use."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from rlinf.scheduler.placement.records import Placement, in_rlinfs_types, to_plan_on
from rlinf.scheduler.placement.strategies import FlexiblePlacementStrategy, NodePlacementStrategy
from rlinf_scheduler import placement as core
from rlinf_scheduler.checks import explains_arguments
from rlinf_scheduler.planning import ComponentPlan, PlacementStrategy

__all__ = ["ComponentPlacement", "Placement", "PlacementStrategy"]


class ComponentPlacement(core.ComponentPlacement):
    """Where every component of a config runs: see `rlinf_scheduler.ComponentPlacement`.

    A subclass may place a component otherwise: `_placements` has the strategy of each, and `get_strategy` gives what
    stands there; `_placement_mode` is the subclass's own.
    """

    @explains_arguments
    def __init__(self, config: Any, cluster: Any = None, *, where: Any = None) -> None:
        given = where if cluster is None else cluster
        super().__init__(config, to_plan_on(given))
        self._config, self._cluster = config, given
        self._placement_mode: Any = None
        plans = self.plan.components
        self._components = list(plans)
        self._component_world_size = {name: plan.world_size for name, plan in plans.items()}
        by_rule = {id(self._rules[name]): self._strategy_of(name) for name in list(plans)[::-1]}
        self._placements: dict[str, PlacementStrategy] = {
            name: by_rule[id(self._rules[name])] for name in plans
        }

    def __getstate__(self) -> dict[str, Any]:
        """All but the cluster, which stays in its process: a placement goes to ranks as an argument."""
        return {name: value for name, value in vars(self).items() if name != "_cluster"}

    @cached_property
    def _cluster(self) -> Any:
        """The cluster that it was made on; in another process, the cluster as that one sees it."""
        from rlinf.scheduler.cluster import Cluster  # noqa: PLC0415 - few ask

        return Cluster()

    @cached_property
    def _component_rank_map(self) -> dict[str, dict[tuple[int, ...], list[int]]]:
        """Of each component the processes by the resources that they share, segment by segment."""
        plans = self.plan.components
        return {name: dict(_rank_map(self._rules[name].segments, plan)) for name, plan in plans.items()}

    @property
    def placement_mode(self) -> Any:
        """The `_placement_mode` of a subclass; else None."""
        return self._placement_mode

    def get_strategy(
        self, component_name: str, kind: type[PlacementStrategy] | None = None
    ) -> PlacementStrategy:
        """Return the strategy that places a component; `kind`, which programs give, is not needed."""
        placed = self._placements.get(component_name)
        return super().get_strategy(component_name) if placed is None else placed

    def get_world_size(self, component_name: str) -> int:
        """How many processes a component has."""
        size = self._component_world_size.get(component_name)
        return super().get_world_size(component_name) if size is None else size

    def get_hardware_ranks(self, component_name: str) -> list[int]:
        """The resources that a component uses, numbered in its node groups, in the order written."""
        return super().get_hardware_ranks(component_name)

    def placements(self, name: str, isolate_gpu: bool = True) -> list[Placement]:  # type: ignore[override]
        """Where each process of a component runs, as its config says, in rank order."""
        return in_rlinfs_types(super().placements(name, isolate_gpu))

    def _strategy_of(self, name: str) -> PlacementStrategy:
        plan = self.plan.components[name]
        kind = FlexiblePlacementStrategy if plan.has_hardware else NodePlacementStrategy
        return kind.of_component(self._rules[name], plan)


def _rank_map(segments: Any, plan: ComponentPlan) -> Any:
    """Yield the resources of each segment, and its processes, as RLinf keeps them."""
    next_rank = 0
    for segment, resources in zip(segments, plan.resource_ranks, strict=True):
        processes = segment.processes
        number = len(resources) if processes is None else len(processes)
        yield tuple(resources), list(range(next_rank, next_rank + number))
        next_rank += number
