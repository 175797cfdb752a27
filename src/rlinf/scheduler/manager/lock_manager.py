"""RLinf's names of what gives turns and ports."""

from rlinf.scheduler.absent import absent

DeviceLockManager = absent(
    "DeviceLockManager", __name__, "the job's driver gives turns; use `Worker.device_lock`"
)
PortLockManager = absent(
    "PortLockManager", __name__, "a port is kept by the process that got it; use `Worker.acquire_free_port`"
)
