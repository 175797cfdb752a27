"""Steps of a rank that are profiled: by torch's profiler here, or in a window of the profiler that it runs under."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rlinf_scheduler.hardware.profilers import CAPTURE, ProfilingConfig
from rlinf_scheduler.host.info import Role, job_settings
from rlinf_scheduler.observe.timekeeping import at_step
from rlinf_scheduler.session import Session

_log = logging.getLogger("rlinf.worker")
# A process has one profiler, and blocks of its threads and tasks may overlap: the first one has it.
_is_profiled = False


def profiled_step(session: Session, step: int) -> tuple[ProfilingConfig, str] | None:
    """Return how a step of this rank is profiled, and where its report goes; None where it is not."""
    profiling, role = job_settings(session).profiling, session.fact(Role)
    if profiling is None or role is None:
        return None
    address = role.info.address
    in_windows = profiling.backend == "torch" or profiling.steps is not None
    if _is_profiled or CAPTURE.is_open or not in_windows or not profiling.captures(step):
        return None
    if not profiling.profiles(address.group, address.rank):
        return None
    return profiling, profiling.report_of(address.group, address.rank).replace("%p", str(os.getpid()))


@contextmanager
def profiled_block(session: Session, step: int) -> Iterator[None]:
    """A block of a step, profiled where the config says so."""
    chosen = profiled_step(session, step)
    with at_step(step):
        if chosen is None:
            yield
        else:
            with _profiled(*chosen, step):
                yield


@contextmanager
def _profiled(profiling: ProfilingConfig, report: str, step: int) -> Iterator[None]:
    """Profile a block; a profiler that fails ends no step."""
    global _is_profiled
    begin = _begin_torch if profiling.backend == "torch" else _begin_window
    end = None
    try:
        _is_profiled = True
        end = _tried(begin, profiling, f"{report}-step-{step}", step)
        yield
    finally:
        if end is not None:
            _tried(end)
        _is_profiled = False


def _tried(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001 - of the profiler, which is beside the work
        _log.warning("a step is not profiled: %s: %s", type(error).__name__, error)
        return None


def _begin_window(_profiling: ProfilingConfig, _report: str, step: int) -> Callable[[], None]:
    opened = ExitStack()
    with opened:
        CAPTURE.open()
        opened.callback(CAPTURE.close)
        opened.enter_context(CAPTURE.range(f"step {step}"))
        return opened.pop_all().close


def _begin_torch(profiling: ProfilingConfig, report: str, step: int) -> Callable[[], None]:
    # Loaded by the ranks that are profiled.
    from torch.profiler import profile  # noqa: PLC0415

    running = profile(**dict.fromkeys(profiling.flags, True))
    running.start()

    def end() -> None:
        running.stop()
        Path(report).parent.mkdir(parents=True, exist_ok=True)
        file, number = f"{report}.json.gz", 1
        while Path(file).exists():  # of a block before, of the same step
            number += 1
            file = f"{report}-{number}.json.gz"
        running.export_chrome_trace(file)
        _log.info("the profile of step %d is in %s", step, file)

    return end
