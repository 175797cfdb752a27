"""Placement and data flow for reinforcement-learning systems: the names that programs import.

They are those of `rlinf_scheduler`, which implements them, in the layout of the documents and of RLinf. Each is loaded
on first use: importing this package costs neither Ray nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf.scheduler import errors
from rlinf_scheduler.lazy import loader, mirror
from rlinf_scheduler.version import __version__ as __version__

if TYPE_CHECKING:
    from rlinf.scheduler.channel.channel_worker import ChannelWorker as ChannelWorker
    from rlinf.scheduler.channel.channel_worker import WeightedItem as WeightedItem
    from rlinf.scheduler.cluster import Cluster
    from rlinf.scheduler.cluster import ClusterConfig as ClusterConfig
    from rlinf.scheduler.collective import CollectiveGroupOptions
    from rlinf.scheduler.hardware import AcceleratorType as AcceleratorType
    from rlinf.scheduler.hardware import AcceleratorUtil as AcceleratorUtil
    from rlinf.scheduler.hardware import DOSW1HWInfo as DOSW1HWInfo
    from rlinf.scheduler.hardware import DualFrankaHWInfo as DualFrankaHWInfo
    from rlinf.scheduler.hardware import FrankaHWInfo as FrankaHWInfo
    from rlinf.scheduler.hardware import GimArmHWInfo as GimArmHWInfo
    from rlinf.scheduler.hardware import HardwareInfo as HardwareInfo
    from rlinf.scheduler.hardware import Turtle2HWInfo as Turtle2HWInfo
    from rlinf.scheduler.manager import Tracer
    from rlinf.scheduler.placement import (
        ComponentPlacement,
        FlexiblePlacementStrategy,
        NodePlacementStrategy,
        PackedPlacementStrategy,
    )
    from rlinf.scheduler.worker import (
        Worker,
        WorkerAddress,
        WorkerGroup,
        WorkerInfo,
    )
    from rlinf.scheduler.worker import WorkerGroupFunc as WorkerGroupFunc
    from rlinf.scheduler.worker import WorkerGroupFuncResult as WorkerGroupFuncResult
    from rlinf.scheduler.worker.routing import *  # noqa: F403
    from rlinf_scheduler.channel import Channel
    from rlinf_scheduler.planning import Placement, PlacementStrategy, Topology
    from rlinf_scheduler.worker import (
        GroupResult,
        GroupStream,
        as_completed,
        wait_all,
        wait_first,
    )

__all__ = [
    "Channel",
    "Cluster",
    "CollectiveGroupOptions",
    "ComponentPlacement",
    "FlexiblePlacementStrategy",
    "GroupResult",
    "GroupStream",
    "NodePlacementStrategy",
    "PackedPlacementStrategy",
    "Placement",
    "PlacementStrategy",
    "Topology",
    "Tracer",
    "Worker",
    "WorkerAddress",
    "WorkerGroup",
    "WorkerInfo",
    "as_completed",
    "errors",
    "wait_all",
    "wait_first",
]


# Names that `rlinf_scheduler` does not have, or has otherwise, and where they are.
_OWN = {
    "ChannelWorker": "rlinf.scheduler.channel.channel_worker",
    "WeightedItem": "rlinf.scheduler.channel.channel_worker",
    "AcceleratorType": "rlinf.scheduler.hardware",
    "AcceleratorUtil": "rlinf.scheduler.hardware",
    "Cluster": "rlinf.scheduler.cluster",
    "ClusterConfig": "rlinf.scheduler.cluster",
    "CollectiveGroupOptions": "rlinf.scheduler.collective",
    "CommMapper": "rlinf.scheduler.worker.routing",
    "Tracer": "rlinf.scheduler.manager",
    "Worker": "rlinf.scheduler.worker",
    "WorkerAddress": "rlinf.scheduler.worker",
    "WorkerGroup": "rlinf.scheduler.worker",
    "WorkerGroupFunc": "rlinf.scheduler.worker",
    "WorkerGroupFuncResult": "rlinf.scheduler.worker",
    "WorkerInfo": "rlinf.scheduler.worker",
    "ComponentPlacement": "rlinf.scheduler.placement",
    "DOSW1HWInfo": "rlinf.scheduler.hardware",
    "DualFrankaHWInfo": "rlinf.scheduler.hardware",
    "FlexiblePlacementStrategy": "rlinf.scheduler.placement",
    "FrankaHWInfo": "rlinf.scheduler.hardware",
    "GimArmHWInfo": "rlinf.scheduler.hardware",
    "HardwareInfo": "rlinf.scheduler.hardware",
    "NodePlacementStrategy": "rlinf.scheduler.placement",
    "PackedPlacementStrategy": "rlinf.scheduler.placement",
    "Placement": "rlinf.scheduler.placement",
    "Turtle2HWInfo": "rlinf.scheduler.hardware",
    "build_recv_plan": "rlinf.scheduler.worker.routing",
    "build_route_channel_key": "rlinf.scheduler.worker.routing",
    "build_send_key": "rlinf.scheduler.worker.routing",
    "build_send_plan": "rlinf.scheduler.worker.routing",
    "decoupled_build_recv_plan": "rlinf.scheduler.worker.routing",
    "get_batch_size": "rlinf.scheduler.worker.routing",
    "get_group_world_size": "rlinf.scheduler.worker.routing",
    "infer_batch_size": "rlinf.scheduler.worker.routing",
    "merge_batches": "rlinf.scheduler.worker.routing",
    "split_batch": "rlinf.scheduler.worker.routing",
    "split_channel_message": "rlinf.scheduler.worker.routing",
}
_own, _others = loader(globals(), _OWN), mirror(globals(), "rlinf_scheduler")


def __getattr__(name: str) -> Any:
    return _own(name) if name in _OWN else _others(name)


def __dir__() -> list[str]:
    return sorted(__all__)
