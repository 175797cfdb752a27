"""Placement and data flow for reinforcement-learning systems.

The public names below are loaded on first use: importing this package costs neither Ray nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.scheduler import errors
from rlinf.scheduler.lazy import loader
from rlinf.scheduler.version import __version__ as __version__

if TYPE_CHECKING:
    from rlinf.scheduler.channel import Channel
    from rlinf.scheduler.cluster import Cluster
    from rlinf.scheduler.placement import ComponentPlacement
    from rlinf.scheduler.planning import (
        FlexiblePlacementStrategy,
        NodePlacementStrategy,
        PackedPlacementStrategy,
        Placement,
        PlacementStrategy,
        Topology,
    )
    from rlinf.scheduler.worker import (
        GroupResult,
        GroupStream,
        Worker,
        WorkerAddress,
        WorkerGroup,
        WorkerInfo,
        as_completed,
        wait_all,
        wait_first,
    )

_MODULES = {
    "Channel": "rlinf.scheduler.channel",
    "Cluster": "rlinf.scheduler.cluster",
    "ComponentPlacement": "rlinf.scheduler.placement",
    "FlexiblePlacementStrategy": "rlinf.scheduler.planning",
    "GroupResult": "rlinf.scheduler.worker",
    "GroupStream": "rlinf.scheduler.worker",
    "NodePlacementStrategy": "rlinf.scheduler.planning",
    "PackedPlacementStrategy": "rlinf.scheduler.planning",
    "Placement": "rlinf.scheduler.planning",
    "PlacementStrategy": "rlinf.scheduler.planning",
    "Topology": "rlinf.scheduler.planning",
    "Worker": "rlinf.scheduler.worker",
    "WorkerAddress": "rlinf.scheduler.worker",
    "WorkerGroup": "rlinf.scheduler.worker",
    "WorkerInfo": "rlinf.scheduler.worker",
    "as_completed": "rlinf.scheduler.worker",
    "wait_all": "rlinf.scheduler.worker",
    "wait_first": "rlinf.scheduler.worker",
}

__all__ = [
    "Channel",
    "Cluster",
    "ComponentPlacement",
    "FlexiblePlacementStrategy",
    "GroupResult",
    "GroupStream",
    "NodePlacementStrategy",
    "PackedPlacementStrategy",
    "Placement",
    "PlacementStrategy",
    "Topology",
    "Worker",
    "WorkerAddress",
    "WorkerGroup",
    "WorkerInfo",
    "as_completed",
    "errors",
    "wait_all",
    "wait_first",
]


__getattr__ = loader(globals(), _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
