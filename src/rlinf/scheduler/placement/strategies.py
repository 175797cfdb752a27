"""Our strategies, with RLinf's names beside ours, whose placements have RLinf's types."""

from rlinf.scheduler.placement.records import InRlinfsTypes
from rlinf_scheduler import planning as core


class FlexiblePlacementStrategy(InRlinfsTypes, core.FlexiblePlacementStrategy):
    """A list of hardware for every process: see `rlinf_scheduler.FlexiblePlacementStrategy`."""

    _placement_strategy = "FLEXIBLE"


class NodePlacementStrategy(InRlinfsTypes, core.NodePlacementStrategy):
    """A node for every process: see `rlinf_scheduler.NodePlacementStrategy`."""

    _placement_strategy = "NODE"


class PackedPlacementStrategy(InRlinfsTypes, core.PackedPlacementStrategy):
    """Processes packed onto a range: see `rlinf_scheduler.PackedPlacementStrategy`."""

    _placement_strategy = "PACKED"
    _start_hw_rank = property(lambda self: self._start)
    _end_hw_rank = property(lambda self: self._end)
    _num_hardware_per_process = property(lambda self: self._width)
