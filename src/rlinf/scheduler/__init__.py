"""Placement and data flow for reinforcement-learning systems.

The public names below are loaded on first use: importing this package costs neither Ray nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlinf.scheduler import errors

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

__version__ = "0.1.0"

_HOMES = {
    "Channel": "channel",
    "Cluster": "cluster",
    "ComponentPlacement": "placement",
    "FlexiblePlacementStrategy": "planning",
    "GroupResult": "worker",
    "GroupStream": "worker",
    "NodePlacementStrategy": "planning",
    "PackedPlacementStrategy": "planning",
    "Placement": "planning",
    "PlacementStrategy": "planning",
    "Topology": "planning",
    "Worker": "worker",
    "WorkerAddress": "worker",
    "WorkerGroup": "worker",
    "WorkerInfo": "worker",
    "as_completed": "worker",
    "wait_all": "worker",
    "wait_first": "worker",
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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        message = f"module 'rlinf.scheduler' has no attribute '{name}'"
        raise AttributeError(message)
    # The one place that loads on demand, so that importing the package stays cheap.
    try:
        value = getattr(import_module(f"rlinf.scheduler.{home}"), name)
    except ModuleNotFoundError as error:
        message = f"{name} needs '{error.name}', which is not installed: only planning does without it"
        raise ModuleNotFoundError(message, name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
