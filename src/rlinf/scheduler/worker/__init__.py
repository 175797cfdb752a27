"""Workers: the processes of a component, their launch, their calls and their end."""

from __future__ import annotations

from rlinf.scheduler.host.info import WorkerAddress, WorkerInfo
from rlinf.scheduler.worker.group import WorkerGroup
from rlinf.scheduler.worker.result import GroupResult
from rlinf.scheduler.worker.worker import Worker

__all__ = ["GroupResult", "Worker", "WorkerAddress", "WorkerGroup", "WorkerInfo"]
