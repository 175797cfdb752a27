"""What has begun in this process and has not ended: calls, phases, and waits, read off the stacks that wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from types import FrameType

from rlinf_scheduler.comm.threads import OWN_THREADS
from rlinf_scheduler.comm.waits import IDLE, cause_of, ender_of, wait_kept_in
from rlinf_scheduler.observe.stacks import (
    frames_inwards,
    frames_of_threads,
    frames_outwards,
    loop_run_in,
    wait_in,
)
from rlinf_scheduler.observe.timekeeping import TIMES, WAIT, Span

# So many are told of, those that began first.
MAX_OPEN = 256


def open_spans() -> list[Span]:
    """What has not ended, the oldest first, each of no length. On the I/O thread."""
    begun = [
        Span(each.kind, each.began, each.began, each.name.rpartition("/")[2], each.thread, each.by)
        for each in TIMES.open_works()
    ]
    found = [*begun, *_waits()]
    return sorted(found, key=lambda span: span.began)[:MAX_OPEN]


def _waits() -> Iterator[Span]:
    for thread, innermost in frames_of_threads().items():
        if thread in OWN_THREADS:
            continue
        frames = list(frames_outwards(innermost))
        yield from _wait_in(frames, thread)
        for task in _tasks_in(frames):
            yield from _wait_in(list(frames_inwards(task.get_coro()))[::-1], thread)


def _tasks_in(frames: Iterable[FrameType]) -> list[asyncio.Task[object]]:
    loop = next(filter(None, map(loop_run_in, frames)), None)
    try:
        return [] if loop is None else list(asyncio.all_tasks(loop))
    except RuntimeError:  # too many come and go
        return []


def _wait_in(frames: list[FrameType], thread: int) -> Iterator[Span]:
    """The innermost wait of a stack: as it is counted when it ends, or as it is described."""
    kept = next(filter(None, map(wait_kept_in, frames)), None)
    wait = wait_in(frames)
    if wait is not None and wait.kind == IDLE:
        return
    cause = None if wait is None else cause_of(wait)
    if kept is not None:
        began, source = kept
        cause = source.cause() or cause
    elif wait is not None and wait.since_s:
        began = time.monotonic() - wait.since_s
    else:
        return
    if cause is not None:
        by = "" if wait is None else ender_of(wait)
        yield Span(WAIT, began, began, cause.operation, thread, by, cause.subject)
