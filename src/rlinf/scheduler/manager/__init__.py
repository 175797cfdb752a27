"""Managers, by RLinf's names: not processes of their own here, but for the most part the job's directory."""

from typing import TYPE_CHECKING

from rlinf.scheduler.absent import add_absent_modules
from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:
    from rlinf.scheduler.absent import CollectiveGroupInfo as CollectiveGroupInfo
    from rlinf.scheduler.absent import CollectiveManager as CollectiveManager
    from rlinf.scheduler.absent import DeviceLockManager as DeviceLockManager
    from rlinf.scheduler.absent import Manager as Manager
    from rlinf.scheduler.absent import NodeManager as NodeManager
    from rlinf.scheduler.absent import PortLockManager as PortLockManager
    from rlinf.scheduler.manager.addresses import WorkerAddress as WorkerAddress
    from rlinf.scheduler.manager.addresses import WorkerInfo as WorkerInfo
    from rlinf.scheduler.manager.net_emulation import NetEmulationConfig as NetEmulationConfig
    from rlinf.scheduler.manager.net_emulation import NetEmulationManager as NetEmulationManager
    from rlinf.scheduler.manager.tracer import Tracer as Tracer
    from rlinf.scheduler.manager.worker_manager import WorkerManager as WorkerManager
else:
    __getattr__ = declared(globals())

add_absent_modules(__name__)
