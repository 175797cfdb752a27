"""Copies of large memory by several threads: one core alone does not use all of a machine's memory bandwidth."""

from __future__ import annotations

import _thread
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import numpy as np

from rlinf_scheduler.comm.framing import Bytes
from rlinf_scheduler.errors import CommTimeout

# A target and its source, both uint8 of the same shape: (n,), or runs of bytes at regular distances.
Copy: TypeAlias = tuple[Bytes, Bytes]

# Below, waking a thread costs more than it saves.
PARALLEL_BYTES = 8 << 20
# What a thread takes at a time, at least; ranks copy around the cache from here on (see `ray_backend.variables`).
BATCH_BYTES = 4 << 20
MAX_THREADS = 4
# A batch takes milliseconds, and where pages have to come from a disk, a second.
BATCH_TIMEOUT_S = 60.0
_NUM_SLICES = 60
_GRAIN_BYTES = 4096

_Batch: TypeAlias = list[Copy]
# What there is to do, by process: a forked child has threads of its own.
_jobs: dict[int, _Jobs] = {}


def copy_all(copies: Sequence[Copy]) -> None:
    """Copy each source into its target; in any order, and other Python threads run meanwhile.

    Threads take batches while there are any: one that gets no processor holds up nobody.

    If it is interrupted, other threads may still write to targets, and keep them until they have done. So whoever
    gives the memory to somebody else must know it from that: that nobody refers to it any more.

    Raises:
        CommTimeout: a thread has not copied a batch of `BATCH_BYTES` in `BATCH_TIMEOUT_S`.
    """
    if sum(source.nbytes for _, source in copies) < PARALLEL_BYTES:
        _copy(copies)
        return
    batches = _batches(copies)
    done: SimpleQueue[BaseException | None] = SimpleQueue()
    num_left = len(batches)
    jobs = _jobs_here(min(MAX_THREADS, len(os.sched_getaffinity(0)), num_left) - 1)
    try:
        for _ in range(min(jobs.num_threads, num_left - 1)):
            jobs.todo.put((batches, done.put))
        while (batch := _next(batches)) is not None:
            _copy(batch)
            num_left -= 1
        for _ in range(num_left):
            error = _told(done)
            if error is not None:
                raise error
    finally:
        batches.clear()


def _told(done: SimpleQueue[BaseException | None]) -> BaseException | None:
    # In slices: of the time for which the whole process was stopped, and those threads with it, one counts.
    for _ in range(_NUM_SLICES):
        with suppress(Empty):
            return done.get(timeout=BATCH_TIMEOUT_S / _NUM_SLICES)
    threads = "threads of this process that copy"
    raise CommTimeout("copy of large memory", threads, BATCH_TIMEOUT_S, "their last batch")


def _copy(copies: Sequence[Copy]) -> None:
    for target, source in copies:
        np.copyto(target, source)


def _next(batches: deque[_Batch]) -> _Batch | None:
    try:
        return batches.popleft()
    except IndexError:
        return None


def _batches(copies: Sequence[Copy]) -> deque[_Batch]:
    """The same in batches, none twice as large as BATCH_BYTES: large copies are cut, small ones are put together."""
    batches: deque[_Batch] = deque([[]])
    room = BATCH_BYTES
    for copy in copies:
        for piece in _pieces(*copy):
            if batches[-1] and (room <= 0 or piece[1].nbytes - room >= BATCH_BYTES):
                batches.append([])
                room = BATCH_BYTES
            batches[-1].append(piece)
            room -= piece[1].nbytes
    return batches


def _pieces(target: Bytes, source: Bytes) -> list[Copy]:
    num_pieces = max(1, min(source.nbytes // BATCH_BYTES, len(source)))
    grain = _GRAIN_BYTES if source.ndim == 1 else 1
    size = len(source) // num_pieces // grain * grain
    edges = [size * number for number in range(num_pieces)] + [len(source)]
    return [(target[begin:end], source[begin:end]) for begin, end in pairwise(edges)]


class _Jobs:
    """The threads of a process that copy, and what they have to do."""

    def __init__(self) -> None:
        # Its methods are one step each, and may be called in a signal handler while they run.
        self.todo: SimpleQueue[tuple[deque[_Batch], Callable[[Any], None]]] = SimpleQueue()
        self.num_threads = 0

    def start(self) -> None:
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # the interpreter is ending, or the system has no threads left
            return
        self.num_threads += 1

    def _run(self) -> None:
        while True:
            batches, tell = self.todo.get()
            while (batch := _next(batches)) is not None:
                error: BaseException | None = None
                try:
                    _copy(batch)
                except BaseException as raised:  # noqa: BLE001 - it is raised where the copy was asked for
                    error = raised
                # Nothing may keep the memory when the caller goes on.
                del batch
                tell(error)
                del error
            del batches, tell


def _jobs_here(num_threads: int) -> _Jobs:
    pid = os.getpid()
    jobs = _jobs.get(pid) or _jobs.setdefault(pid, _Jobs())
    while jobs.num_threads < num_threads:
        before = jobs.num_threads
        jobs.start()
        if jobs.num_threads == before:
            break
    return jobs
