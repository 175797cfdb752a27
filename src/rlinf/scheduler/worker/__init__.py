"""Workers: the processes of a component, their launch, their calls and their end."""

from __future__ import annotations

from rlinf.scheduler.host.info import WorkerAddress, WorkerInfo
from rlinf.scheduler.worker.group import WorkerGroup
from rlinf.scheduler.worker.result import GroupResult
from rlinf.scheduler.worker.stream import GroupStream
from rlinf.scheduler.worker.waiting import as_completed, wait_all, wait_first
from rlinf.scheduler.worker.worker import Worker

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
