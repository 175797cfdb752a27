"""`PackedPlacementStrategy`, with RLinf's names beside ours."""

from __future__ import annotations

from typing import Any

from rlinf.scheduler.placement.records import in_rlinfs_types, to_plan_on
from rlinf_scheduler import planning as core


class PackedPlacementStrategy(core.PackedPlacementStrategy):
    """Processes packed onto a range: see `rlinf_scheduler.PackedPlacementStrategy`."""

    _placement_strategy = "PACKED"

    @property
    def _start_hw_rank(self) -> int:
        return self._start

    @property
    def _end_hw_rank(self) -> int:
        return self._end

    @property
    def _num_hardware_per_process(self) -> int:
        return self._width

    def get_placement(
        self, where: Any, isolate_gpu: bool = True, *, isolate_accelerator: bool | None = None
    ) -> list[core.Placement]:
        """The placement of every process, in rank order; see `rlinf_scheduler.PlacementStrategy`."""
        isolate = isolate_gpu if isolate_accelerator is None else isolate_accelerator
        return in_rlinfs_types(super().get_placement(to_plan_on(where), isolate))
