"""What this process measures of itself when the job is looked at, on its I/O thread, and in which states it was."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rlinf_scheduler.comm.pull.records import PullStats
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.observe.levels import Additions, Level, Levels
from rlinf_scheduler.observe.process_stats import (
    DRIVERS,
    RUNNING,
    WAITING,
    WORKERS,
    DeviceMemory,
    ProcessStats,
)
from rlinf_scheduler.observe.stacks import Threads
from rlinf_scheduler.session import Session

# The parts of torch that are about a vendor's devices, and have the same functions.
PLATFORMS = ("cuda", "npu", "xpu", "musa", "mlu")
_log = Reporter(__name__)


class DeviceMemories:
    """Measures beside the I/O thread: a driver, or an allocator's lock, may hold up the asking thread.

    So what is told is what was found when somebody asked before.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        submit: Callable[[Callable[[], None]], None],
    ) -> None:
        self._call_later = call_later
        self._submit = submit
        self._found: tuple[DeviceMemory, ...] = ()
        self._is_measuring = self._has_failed = False

    def last(self) -> tuple[DeviceMemory, ...]:
        """Return the last measurement, and begin the next one; on the I/O thread."""
        platform = initialised_platform()
        if platform is None:
            return ()
        if not self._is_measuring:
            self._is_measuring = True
            run_beside_in_time(self._call_later, self._measure, platform)
        return self._found

    def _measure(self, platform: Any) -> None:
        found: tuple[DeviceMemory, ...] = ()
        try:
            found = measured(platform)
        except Exception:  # noqa: BLE001 - of torch, or a vendor's: whatever it is, the process has no part in it
            if not self._has_failed:  # once: it is asked for again and again
                self._has_failed = True
                _log.exception("how much device memory is used could not be found out")
        self._submit(partial(self._note, found))

    def _note(self, found: tuple[DeviceMemory, ...]) -> None:
        self._found = found
        self._is_measuring = False


def initialised_platform() -> Any:
    """The part of torch whose devices this process has initialised; None if there is none. It loads nothing."""
    torch = sys.modules.get("torch")
    platforms = (getattr(torch, name, None) for name in PLATFORMS)
    return next((each for each in platforms if each is not None and _is_initialised(each)), None)


def _is_initialised(platform: Any) -> bool:
    return bool(getattr(platform, "is_initialized", bool)())


def measured(platform: Any) -> tuple[DeviceMemory, ...]:
    """The memory of the devices of which this process has some; asked about another one it would begin to use it."""
    found = []
    for index in range(platform.device_count()):
        reserved_bytes = platform.memory_reserved(index)
        if reserved_bytes:
            free_bytes, total_bytes = platform.mem_get_info(index)
            found.append(DeviceMemory(index, reserved_bytes, total_bytes - free_bytes, total_bytes))
    return tuple(found)


# A level of every process.
STATS = Level("stats", ProcessStats)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MEMORY = Path("/proc/self/statm")


class OwnStats(Additions[ProcessStats]):
    """What this process measures of itself, and what its parts add to that; a service of its session.

    All but its making is on the I/O thread.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        messenger = session.messenger
        self._threads = session.service(Threads)
        self._messenger = messenger
        self._name = session.name
        self._kind = DRIVERS if session.home.process_id == messenger.endpoint.process_id else WORKERS
        self._host = platform.node()
        self._device_memories = DeviceMemories(messenger.call_later, messenger.submit)
        session.service(Levels).add(STATS, lambda _about: self.now())

    def now(self) -> ProcessStats:
        """What is so now."""
        wait, pulls = self._threads.longest_wait(), self._messenger.pulls
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
                pulls=PullStats() if pulls is None else pulls.stats(),
            )
        )


def resident_bytes() -> int:
    """How much memory this process has, what it shares with others included."""
    return int(_MEMORY.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


# So often a process notes its state, in seconds, and so many of them are kept: of five minutes.
NOTE_S, MAX_STATES = 2.0, 150


class PastOf(msgspec.Struct, frozen=True, array_like=True):
    """The last states of a process, one every `NOTE_S` seconds, the newest last; "" where it noted none."""

    process: str
    states: tuple[str, ...]


class JobPast(msgspec.Struct, frozen=True, array_like=True):
    """The last states of all processes.

    Attributes:
        at_s: when they were asked, in seconds since 1970.
        states: of each process that answered, by its name, the newest last.
    """

    at_s: float
    every_s: float
    states: dict[str, tuple[str, ...]]


# A level of every process, and one of the job's home.
STATES, JOB_PAST = Level("states", PastOf), Level("job.past", JobPast, what="what the job did")


class PastStates:
    """The last states of this process; a service of its session. On the I/O thread.

    Attributes:
        state: says which it is in now, as of `RankStatus`.
    """

    def __init__(self, session: Session) -> None:
        threads = session.service(Threads)
        self.state: Callable[[], str] = lambda: RUNNING if threads.longest_wait() is None else WAITING
        self._name = session.name
        self._states: deque[str] = deque(maxlen=MAX_STATES)
        self._noted_at = time.monotonic()
        session.service(Levels).add(STATES, lambda _about: self.all())

    def note(self) -> None:
        """Note the present one; every `NOTE_S` seconds, unless this process was stopped, say."""
        now = time.monotonic()
        num_missed = round((now - self._noted_at) / NOTE_S) - 1
        self._states.extend([""] * min(num_missed, MAX_STATES))
        self._states.append(self.state())
        self._noted_at = now

    def all(self) -> PastOf:
        """Return what was noted."""
        return PastOf(self._name, tuple(self._states))
