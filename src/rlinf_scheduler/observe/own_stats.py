"""Measures this process when the job is looked at, on its I/O thread: well under a millisecond."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from rlinf_scheduler.observe.device_memory import DeviceMemories
from rlinf_scheduler.observe.levels import Additions, Level, Levels
from rlinf_scheduler.observe.process_stats import ProcessStats
from rlinf_scheduler.observe.stacks import Threads
from rlinf_scheduler.observe.status import DRIVERS, WORKERS
from rlinf_scheduler.session import Session

# A level of every process.
STATS = Level("stats", ProcessStats)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MEMORY = Path("/proc/self/statm")


class OwnStats(Additions[ProcessStats]):
    """What this process measures of itself, and what its parts add to that; a service of its session.

    All but its making is on the I/O thread.

    Args:
        session: this process's.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        messenger = session.messenger
        self._threads = session.service(Threads)
        self._name = session.name
        self._kind = DRIVERS if session.home.process_id == messenger.endpoint.process_id else WORKERS
        self._host = platform.node()
        self._device_memories = DeviceMemories(messenger.call_later, messenger.submit)
        session.service(Levels).add(STATS, lambda _about: self.now())

    def now(self) -> ProcessStats:
        """What is so now."""
        wait = self._threads.longest_wait()
        return self.applied(
            ProcessStats(
                self._name,
                os.getpid(),
                self._host,
                time.monotonic(),
                time.process_time(),
                resident_bytes(),
                self._device_memories.last(),
                wait="" if wait is None else wait.operation,
                wait_since_s=0.0 if wait is None else wait.since_s,
                kind=self._kind,
            )
        )


def resident_bytes() -> int:
    """How much memory this process has, what it shares with others included."""
    return int(_MEMORY.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
