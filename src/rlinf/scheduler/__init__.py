"""Placement and data flow for reinforcement-learning systems: the names that programs import, of `rlinf_scheduler`.

Each is loaded on first use: importing this package costs neither Ray nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.scheduler import errors
from rlinf_scheduler.lazy import declared
from rlinf_scheduler.version import __version__ as __version__

if TYPE_CHECKING:
    from rlinf.scheduler.channel import Channel
    from rlinf.scheduler.channel import ChannelWorker as ChannelWorker
    from rlinf.scheduler.channel import WeightedItem as WeightedItem
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
        Placement,
        PlacementStrategy,
        Topology,
    )
    from rlinf.scheduler.worker import CommMapper as CommMapper
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
    from rlinf.scheduler.worker import WorkerGroupFunc as WorkerGroupFunc
    from rlinf.scheduler.worker import WorkerGroupFuncResult as WorkerGroupFuncResult
    from rlinf.scheduler.worker import build_recv_plan as build_recv_plan
    from rlinf.scheduler.worker import build_route_channel_key as build_route_channel_key
    from rlinf.scheduler.worker import build_send_key as build_send_key
    from rlinf.scheduler.worker import build_send_plan as build_send_plan
    from rlinf.scheduler.worker import decoupled_build_recv_plan as decoupled_build_recv_plan
    from rlinf.scheduler.worker import get_batch_size as get_batch_size
    from rlinf.scheduler.worker import get_group_world_size as get_group_world_size
    from rlinf.scheduler.worker import infer_batch_size as infer_batch_size
    from rlinf.scheduler.worker import merge_batches as merge_batches
    from rlinf.scheduler.worker import split_batch as split_batch
    from rlinf.scheduler.worker import split_channel_message as split_channel_message
    from rlinf_scheduler import Rows, ScalingOptions, Slice
else:
    __getattr__ = declared(globals(), "rlinf_scheduler")

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
    "Rows",
    "ScalingOptions",
    "Slice",
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


def __dir__() -> list[str]:
    return sorted(__all__)
