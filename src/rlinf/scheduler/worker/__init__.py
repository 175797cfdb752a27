"""Workers, and groups of them."""

from typing import TYPE_CHECKING, Any

from rlinf_scheduler.lazy import loader, mirror

if TYPE_CHECKING:
    from rlinf.scheduler.manager.addresses import WorkerAddress as WorkerAddress
    from rlinf.scheduler.manager.addresses import WorkerInfo as WorkerInfo
    from rlinf.scheduler.worker.routing import *  # noqa: F403
    from rlinf.scheduler.worker.worker import Worker as Worker
    from rlinf.scheduler.worker.worker_group import WorkerGroupFunc as WorkerGroupFunc
    from rlinf.scheduler.worker.worker_group import WorkerGroupFuncResult as WorkerGroupFuncResult
    from rlinf_scheduler.worker import GroupResult as GroupResult
    from rlinf_scheduler.worker import GroupStream as GroupStream
    from rlinf_scheduler.worker import WorkerGroup as WorkerGroup  # as `launch` is declared to return it
    from rlinf_scheduler.worker import as_completed as as_completed
    from rlinf_scheduler.worker import wait_all as wait_all
    from rlinf_scheduler.worker import wait_first as wait_first

_OWN = {
    "CommMapper": "rlinf.scheduler.worker.routing",
    "DecoupledRouteEntry": "rlinf.scheduler.worker.routing",
    "RouteEntry": "rlinf.scheduler.worker.routing",
    "RoutePlan": "rlinf.scheduler.worker.routing",
    "Worker": "rlinf.scheduler.worker.worker",
    "WorkerAddress": "rlinf.scheduler.manager.addresses",
    "WorkerGroup": "rlinf.scheduler.worker.worker_group",
    "WorkerGroupFunc": "rlinf.scheduler.worker.worker_group",
    "WorkerGroupFuncResult": "rlinf.scheduler.worker.worker_group",
    "WorkerInfo": "rlinf.scheduler.manager.addresses",
    "_build_channel_message": "rlinf.scheduler.worker.routing",
    "build_recv_plan": "rlinf.scheduler.worker.routing",
    "build_route_channel_key": "rlinf.scheduler.worker.routing",
    "build_send_key": "rlinf.scheduler.worker.routing",
    "build_send_plan": "rlinf.scheduler.worker.routing",
    "decoupled_build_recv_plan": "rlinf.scheduler.worker.routing",
    "decoupled_build_send_plan": "rlinf.scheduler.worker.routing",
    "get_batch_size": "rlinf.scheduler.worker.routing",
    "get_group_info": "rlinf.scheduler.worker.routing",
    "get_group_world_size": "rlinf.scheduler.worker.routing",
    "infer_batch_size": "rlinf.scheduler.worker.routing",
    "merge_batches": "rlinf.scheduler.worker.routing",
    "split_batch": "rlinf.scheduler.worker.routing",
    "split_channel_message": "rlinf.scheduler.worker.routing",
    "validate_batch_size": "rlinf.scheduler.worker.routing",
}
_own, _others = loader(globals(), _OWN), mirror(globals(), "rlinf_scheduler.worker")


def __getattr__(name: str) -> Any:
    return _own(name) if name in _OWN else _others(name)
