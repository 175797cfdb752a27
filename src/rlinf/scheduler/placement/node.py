"""`NodePlacementStrategy`, whose placements have RLinf's types."""

from rlinf.scheduler.placement.records import InRlinfsTypes
from rlinf_scheduler import planning as core


class NodePlacementStrategy(InRlinfsTypes, core.NodePlacementStrategy):
    """A node for every process: see `rlinf_scheduler.NodePlacementStrategy`."""

    _placement_strategy = "NODE"
