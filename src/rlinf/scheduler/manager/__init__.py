"""What RLinf's scheduler keeps in processes of its own, by its names: here most of it is the job's directory."""

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import loader

if TYPE_CHECKING:
    from rlinf.scheduler.manager.addresses import WorkerAddress as WorkerAddress
    from rlinf.scheduler.manager.addresses import WorkerInfo as WorkerInfo
    from rlinf.scheduler.manager.coll_manager import CollectiveGroupInfo as CollectiveGroupInfo
    from rlinf.scheduler.manager.coll_manager import CollectiveManager as CollectiveManager
    from rlinf.scheduler.manager.lock_manager import DeviceLockManager as DeviceLockManager
    from rlinf.scheduler.manager.lock_manager import PortLockManager as PortLockManager
    from rlinf.scheduler.manager.manager import Manager as Manager
    from rlinf.scheduler.manager.net_emulation import NetEmulationConfig as NetEmulationConfig
    from rlinf.scheduler.manager.net_emulation import NetEmulationManager as NetEmulationManager
    from rlinf.scheduler.manager.node_manager import NodeManager as NodeManager
    from rlinf.scheduler.manager.tracer import Tracer as Tracer
    from rlinf.scheduler.manager.worker_manager import WorkerManager as WorkerManager

_HERE = "rlinf.scheduler.manager"

__getattr__ = loader(
    globals(),
    {
        "CollectiveGroupInfo": f"{_HERE}.coll_manager",
        "CollectiveManager": f"{_HERE}.coll_manager",
        "DeviceLockManager": f"{_HERE}.lock_manager",
        "Manager": f"{_HERE}.manager",
        "NodeManager": f"{_HERE}.node_manager",
        "PortLockManager": f"{_HERE}.lock_manager",
        "WorkerAddress": "rlinf.scheduler.manager.addresses",
        "WorkerInfo": "rlinf.scheduler.manager.addresses",
        "WorkerManager": f"{_HERE}.worker_manager",
        "NetEmulationConfig": f"{_HERE}.net_emulation",
        "NetEmulationManager": f"{_HERE}.net_emulation",
        "Tracer": f"{_HERE}.tracer",
    },
)
