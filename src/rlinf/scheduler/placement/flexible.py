"""`FlexiblePlacementStrategy`, whose placements have RLinf's types."""

from __future__ import annotations

from typing import Any

from rlinf.scheduler.placement.records import in_rlinfs_types, to_plan_on
from rlinf_scheduler import planning as core


class FlexiblePlacementStrategy(core.FlexiblePlacementStrategy):
    """A list of hardware for every process: see `rlinf_scheduler.FlexiblePlacementStrategy`."""

    _placement_strategy = "FLEXIBLE"

    def get_placement(
        self, where: Any, isolate_gpu: bool = True, *, isolate_accelerator: bool | None = None
    ) -> list[core.Placement]:
        """The placement of every process, in rank order; see `rlinf_scheduler.PlacementStrategy`."""
        isolate = isolate_gpu if isolate_accelerator is None else isolate_accelerator
        return in_rlinfs_types(super().get_placement(to_plan_on(where), isolate))
