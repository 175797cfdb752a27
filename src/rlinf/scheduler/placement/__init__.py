"""Which component of a job runs where."""

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:
    from rlinf.scheduler.placement.placement import ComponentPlacement as ComponentPlacement
    from rlinf.scheduler.placement.records import Placement as Placement
    from rlinf.scheduler.placement.strategies import FlexiblePlacementStrategy as FlexiblePlacementStrategy
    from rlinf.scheduler.placement.strategies import NodePlacementStrategy as NodePlacementStrategy
    from rlinf.scheduler.placement.strategies import PackedPlacementStrategy as PackedPlacementStrategy
    from rlinf_scheduler.placement import Node as Node
    from rlinf_scheduler.placement import NodeGroup as NodeGroup
    from rlinf_scheduler.placement import PlacementStrategy as PlacementStrategy
    from rlinf_scheduler.placement import Resource as Resource
    from rlinf_scheduler.placement import ResourceTable as ResourceTable
    from rlinf_scheduler.placement import SharedDevice as SharedDevice
    from rlinf_scheduler.placement import Topology as Topology
else:
    __getattr__ = declared(globals(), "rlinf_scheduler.placement")
