"""Locks, by RLinf's names."""

from rlinf.scheduler.absent import absent
from rlinf_scheduler.worker.device_lock import DeviceLock

__all__ = ["DeviceLock", "PortLock"]

PortLock = absent(
    "PortLock", __name__, "a port is kept by the process that got it; use `Worker.acquire_free_port`"
)
