"""Workers: the processes of a component, their launch, their calls and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf_scheduler.addresses import WorkerAddress
    from rlinf_scheduler.host.info import WorkerInfo
    from rlinf_scheduler.worker.group import WorkerGroup
    from rlinf_scheduler.worker.result import GroupResult, as_completed, wait_all, wait_first
    from rlinf_scheduler.worker.stream import GroupStream
    from rlinf_scheduler.worker.worker import Worker

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
    __getattr__ = declared(globals())
