"""Placement and data flow for reinforcement-learning systems.

The public names below are loaded on first use: importing this package costs neither Ray nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler import errors
from rlinf_scheduler.lazy import declared
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
        ScalingOptions,
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
    "ScalingOptions",
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
    __getattr__ = declared(globals())


def __dir__() -> list[str]:
    return sorted(__all__)
