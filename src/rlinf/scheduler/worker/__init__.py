"""Workers, and groups of them."""

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:
    from rlinf.scheduler.manager.addresses import WorkerAddress as WorkerAddress
    from rlinf.scheduler.manager.addresses import WorkerInfo as WorkerInfo
    from rlinf.scheduler.worker.routing import CommMapper as CommMapper
    from rlinf.scheduler.worker.routing import RouteEntry as RouteEntry
    from rlinf.scheduler.worker.routing import RoutePlan as RoutePlan
    from rlinf.scheduler.worker.routing import build_recv_plan as build_recv_plan
    from rlinf.scheduler.worker.routing import build_route_channel_key as build_route_channel_key
    from rlinf.scheduler.worker.routing import build_send_key as build_send_key
    from rlinf.scheduler.worker.routing import build_send_plan as build_send_plan
    from rlinf.scheduler.worker.routing import decoupled_build_recv_plan as decoupled_build_recv_plan
    from rlinf.scheduler.worker.routing import decoupled_build_send_plan as decoupled_build_send_plan
    from rlinf.scheduler.worker.routing import get_batch_size as get_batch_size
    from rlinf.scheduler.worker.routing import get_group_world_size as get_group_world_size
    from rlinf.scheduler.worker.routing import infer_batch_size as infer_batch_size
    from rlinf.scheduler.worker.routing import merge_batches as merge_batches
    from rlinf.scheduler.worker.routing import split_batch as split_batch
    from rlinf.scheduler.worker.routing import split_channel_message as split_channel_message
    from rlinf.scheduler.worker.worker import Worker as Worker
    from rlinf.scheduler.worker.worker_group import WorkerGroup as WorkerGroup
    from rlinf.scheduler.worker.worker_group import WorkerGroupFunc as WorkerGroupFunc
    from rlinf.scheduler.worker.worker_group import WorkerGroupFuncResult as WorkerGroupFuncResult
    from rlinf_scheduler.worker import GroupResult as GroupResult
    from rlinf_scheduler.worker import GroupStream as GroupStream
    from rlinf_scheduler.worker import as_completed as as_completed
    from rlinf_scheduler.worker import wait_all as wait_all
    from rlinf_scheduler.worker import wait_first as wait_first
else:
    __getattr__ = declared(globals(), "rlinf_scheduler.worker")
