"""A trace as its user holds it, and what its file has; the room `tracing` makes both."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.errors import ClusterTimeout, SchedulerError

# Set, it is the file of a trace of the whole job.
TRACE_VARIABLE = "RLINF_TRACE"
MAX_BYTES = 64 << 20
# How long all of it may take to fetch, in seconds, unless it is said.
FETCH_TIMEOUT_S = 60.0
_log = Reporter(__name__)


def wanted_trace() -> str:
    """Return where RLINF_TRACE has a job traced to; "" where it is not set."""
    return os.environ.get(TRACE_VARIABLE, "")


class TraceContent(msgspec.Struct, frozen=True):
    """What the file of a trace has.

    Attributes:
        size_bytes: how large it is.
        num_processes: how many processes are in it.
        num_spans: how many spans.
        num_dropped: how many spans are not in it, for want of room, by process.
        clock_error_s: by how much the times of another machine's processes may be wrong, in seconds, by process.
        missing: of which processes there is nothing, and why.
    """

    size_bytes: int
    num_processes: int
    num_spans: int
    num_dropped: dict[str, int]
    clock_error_s: dict[str, float]
    missing: dict[str, str]


class TraceFile(TraceContent, frozen=True, kw_only=True):
    """What a trace has written.

    Attributes:
        path: the file; for the others see `TraceContent`.
    """

    path: Path

    @property
    def content(self) -> TraceContent:
        """It, without where it is."""
        return TraceContent(*msgspec.structs.astuple(self)[: len(TraceContent.__struct_fields__)])


class JobTrace:
    """A trace that goes on: `with cluster.trace("run.perfetto"): ...`, or until `stop`; see `Cluster.trace`.

    Attributes:
        path: the file to be written.
        file: what was written; None before.
    """

    def __init__(self, path: Path, finish: Callable[[float], TraceFile]) -> None:
        self.path = path
        self.file: TraceFile | None = None
        self._finish = finish
        # Of several who end it, as a thread and the job's end, one does; again for a signal handler of that one.
        self._stopping = threading.RLock()

    def stop(self, timeout_s: float = FETCH_TIMEOUT_S) -> TraceFile:
        """End it, fetch what all processes wrote, and write the file; a second call gives the same, or tries it again.

        Args:
            timeout_s: how long that may take, in seconds; what has not come by then is missing, and told of.

        Raises:
            OSError: the file cannot be written.
            ClusterTimeout: another thread ends it, and has not by then.
        """
        deadline = time.monotonic() + timeout_s
        if not self._stopping.acquire(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX)):
            problem = f"the trace to {self.path} is not written after {timeout_s:.0f} s"
            raise ClusterTimeout(
                f"{problem}: another thread of this process has begun to end it, and is still at it"
            )
        try:
            if self.file is None:
                self.file = self._finish(max(0.0, deadline - time.monotonic()))
            return self.file
        finally:
            self._stopping.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except (OSError, SchedulerError):
            if error is None:
                raise
            # What ended the block says more.
            _log.exception("the trace could not be written to %s", self.path)

    def __repr__(self) -> str:
        return f"<JobTrace to {self.path}: {'goes on' if self.file is None else 'written'}>"
