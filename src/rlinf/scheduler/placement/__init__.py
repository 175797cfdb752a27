"""Which component of a job runs where."""

from typing import TYPE_CHECKING, Any

from rlinf_scheduler.lazy import loader, mirror

if TYPE_CHECKING:
    from rlinf.scheduler.placement.flexible import FlexiblePlacementStrategy as FlexiblePlacementStrategy
    from rlinf.scheduler.placement.node import NodePlacementStrategy as NodePlacementStrategy
    from rlinf.scheduler.placement.packed import PackedPlacementStrategy as PackedPlacementStrategy
    from rlinf.scheduler.placement.placement import ComponentPlacement as ComponentPlacement
    from rlinf_scheduler.placement import Node as Node
    from rlinf_scheduler.placement import NodeGroup as NodeGroup
    from rlinf_scheduler.placement import Placement as Placement
    from rlinf_scheduler.placement import PlacementStrategy as PlacementStrategy
    from rlinf_scheduler.placement import Resource as Resource
    from rlinf_scheduler.placement import ResourceTable as ResourceTable
    from rlinf_scheduler.placement import SharedDevice as SharedDevice
    from rlinf_scheduler.placement import Topology as Topology

# What `rlinf_scheduler.placement` has otherwise, and where it is.
_OWN = {
    "ComponentPlacement": "rlinf.scheduler.placement.placement",
    "FlexiblePlacementStrategy": "rlinf.scheduler.placement.flexible",
    "NodePlacementStrategy": "rlinf.scheduler.placement.node",
    "PackedPlacementStrategy": "rlinf.scheduler.placement.packed",
    "Placement": "rlinf.scheduler.placement.records",
}
_own, _others = loader(globals(), _OWN), mirror(globals(), "rlinf_scheduler.placement")


def __getattr__(name: str) -> Any:
    return _own(name) if name in _OWN else _others(name)
