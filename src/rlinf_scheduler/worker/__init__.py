"""Workers: the processes of a component, their launch, their calls and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import loader

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf_scheduler.addresses import WorkerAddress
    from rlinf_scheduler.host.info import WorkerInfo
    from rlinf_scheduler.worker.group import WorkerGroup
    from rlinf_scheduler.worker.result import GroupResult
    from rlinf_scheduler.worker.stream import GroupStream
    from rlinf_scheduler.worker.waiting import as_completed, wait_all, wait_first
    from rlinf_scheduler.worker.worker import Worker

_MODULES = {
    "GroupResult": "rlinf_scheduler.worker.result",
    "GroupStream": "rlinf_scheduler.worker.stream",
    "Worker": "rlinf_scheduler.worker.worker",
    "WorkerAddress": "rlinf_scheduler.addresses",
    "WorkerGroup": "rlinf_scheduler.worker.group",
    "WorkerInfo": "rlinf_scheduler.host.info",
    "as_completed": "rlinf_scheduler.worker.waiting",
    "wait_all": "rlinf_scheduler.worker.waiting",
    "wait_first": "rlinf_scheduler.worker.waiting",
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

if not TYPE_CHECKING:  # which would believe that every name is there
    __getattr__ = loader(globals(), _MODULES)
