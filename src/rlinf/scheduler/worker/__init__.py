"""Workers: the processes of a component, their launch, their calls and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.scheduler.lazy import loader

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf.scheduler.host.info import WorkerAddress, WorkerInfo
    from rlinf.scheduler.worker.group import WorkerGroup
    from rlinf.scheduler.worker.result import GroupResult
    from rlinf.scheduler.worker.stream import GroupStream
    from rlinf.scheduler.worker.waiting import as_completed, wait_all, wait_first
    from rlinf.scheduler.worker.worker import Worker

_MODULES = {
    "GroupResult": "rlinf.scheduler.worker.result",
    "GroupStream": "rlinf.scheduler.worker.stream",
    "Worker": "rlinf.scheduler.worker.worker",
    "WorkerAddress": "rlinf.scheduler.host.info",
    "WorkerGroup": "rlinf.scheduler.worker.group",
    "WorkerInfo": "rlinf.scheduler.host.info",
    "as_completed": "rlinf.scheduler.worker.waiting",
    "wait_all": "rlinf.scheduler.worker.waiting",
    "wait_first": "rlinf.scheduler.worker.waiting",
}

__all__ = [
    "GroupResult",
    "GroupStream",
    "Worker",
    "WorkerAddress",
    "WorkerGroup",
    "WorkerInfo",
    "as_completed",
    "wait_all",
    "wait_first",
]


__getattr__ = loader(globals(), _MODULES)
