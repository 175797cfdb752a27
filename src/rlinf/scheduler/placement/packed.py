"""`PackedPlacementStrategy`, with RLinf's names beside ours."""

from rlinf.scheduler.placement.records import InRlinfsTypes
from rlinf_scheduler import planning as core


class PackedPlacementStrategy(InRlinfsTypes, core.PackedPlacementStrategy):
    """Processes packed onto a range: see `rlinf_scheduler.PackedPlacementStrategy`."""

    _placement_strategy = "PACKED"
    _start_hw_rank = property(lambda self: self._start)
    _end_hw_rank = property(lambda self: self._end)
    _num_hardware_per_process = property(lambda self: self._width)
