"""Placement and data flow for reinforcement-learning systems.

The public names below are loaded on first use: importing this package costs neither Ray nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler import errors
from rlinf_scheduler.lazy import loader
from rlinf_scheduler.version import __version__ as __version__

if TYPE_CHECKING:
    from rlinf_scheduler.channel import Channel
    from rlinf_scheduler.cluster import Cluster
    from rlinf_scheduler.placement import ComponentPlacement
    from rlinf_scheduler.planning import (
        FlexiblePlacementStrategy,
        NodePlacementStrategy,
        PackedPlacementStrategy,
        Placement,
        PlacementStrategy,
        Topology,
    )
    from rlinf_scheduler.weights.held import Slice
    from rlinf_scheduler.weights.plan import Rows
    from rlinf_scheduler.worker import (
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
    "Channel": "rlinf_scheduler.channel",
    "Cluster": "rlinf_scheduler.cluster",
    "ComponentPlacement": "rlinf_scheduler.placement",
    "FlexiblePlacementStrategy": "rlinf_scheduler.planning",
    "GroupResult": "rlinf_scheduler.worker",
    "GroupStream": "rlinf_scheduler.worker",
    "NodePlacementStrategy": "rlinf_scheduler.planning",
    "PackedPlacementStrategy": "rlinf_scheduler.planning",
    "Placement": "rlinf_scheduler.planning",
    "PlacementStrategy": "rlinf_scheduler.planning",
    "Rows": "rlinf_scheduler.weights.plan",
    "Slice": "rlinf_scheduler.weights.held",
    "Topology": "rlinf_scheduler.planning",
    "Worker": "rlinf_scheduler.worker",
    "WorkerAddress": "rlinf_scheduler.worker",
    "WorkerGroup": "rlinf_scheduler.worker",
    "WorkerInfo": "rlinf_scheduler.worker",
    "as_completed": "rlinf_scheduler.worker",
    "wait_all": "rlinf_scheduler.worker",
    "wait_first": "rlinf_scheduler.worker",
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
    "Rows",
    "Slice",
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

if not TYPE_CHECKING:  # which would believe that every name is there
    __getattr__ = loader(globals(), _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
