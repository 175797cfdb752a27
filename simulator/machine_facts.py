"""What the product asks its machine beside kernel, network and disk: the same is told in each telling, on any machine.

Where something differs by a digit, a message or a file has another length; what is drawn by that tells another story.
"""

from __future__ import annotations

import os
import resource
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

from rlinf_scheduler.channel import spec
from rlinf_scheduler.comm import failure, waits
from rlinf_scheduler.devices import devices
from rlinf_scheduler.observe.timekeeping import TIMES
from simulator.processes import replaced
from simulator.world import World

PID = 4711
MEMORY_BYTES = 64 << 30
_UNBOUNDED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@contextmanager
def machine_of(world: World) -> Iterator[None]:
    """Within, this thread hears of no real clock, process or limit; others do."""
    teller = threading.get_ident()

    def in_story(real: Callable[..., Any], told: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: (told if threading.get_ident() == teller else real)(*args)

    def now() -> float:
        return world.now_us / 1e6

    def now_ns() -> int:
        return world.now_us * 1000

    def format_exception(error: BaseException) -> list[str]:
        return [type(error).__qualname__]  # without the names of files

    facts: list[tuple[Any, str, Callable[..., Any]]] = [
        *((time, name, now) for name in ("monotonic", "perf_counter", "time")),
        *((time, name, now_ns) for name in ("monotonic_ns", "perf_counter_ns", "time_ns")),
        (waits, "now", now),
        (TIMES, "now", now),
        (os, "getpid", lambda: PID),
        (resource, "getrlimit", lambda _which: _UNBOUNDED),
        (spec, "memory_bytes", lambda: MEMORY_BYTES),
        (devices, "_pool_limit_bytes", lambda: None),
    ]
    formats = in_story(traceback.format_exception, format_exception)
    with ExitStack() as told:
        for owner, name, answer in facts:
            told.enter_context(replaced(owner, name, in_story(getattr(owner, name), answer)))
        told.enter_context(replaced(failure, "traceback", SimpleNamespace(format_exception=formats)))
        yield
