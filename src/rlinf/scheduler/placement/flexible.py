"""`FlexiblePlacementStrategy`, whose placements have RLinf's types."""

from rlinf.scheduler.placement.records import InRlinfsTypes
from rlinf_scheduler import planning as core


class FlexiblePlacementStrategy(InRlinfsTypes, core.FlexiblePlacementStrategy):
    """A list of hardware for every process: see `rlinf_scheduler.FlexiblePlacementStrategy`."""

    _placement_strategy = "FLEXIBLE"
