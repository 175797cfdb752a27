"""Copies of large memory by several threads: one core alone does not use all of a machine's memory bandwidth."""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import numpy as np

from rlinf.scheduler.comm.framing import Bytes

# Below, waking a thread costs more than it saves.
PARALLEL_BYTES = 8 << 20
MAX_THREADS = 4
_GRAIN_BYTES = 4096

# What there is to do, by process: a forked child has threads of its own.
_jobs: dict[int, _Jobs] = {}


def copy_bytes(source: Bytes, target: Bytes) -> None:
    """Copy `source` into `target`, both uint8 of the same shape (n,); other Python threads run meanwhile.

    If it is interrupted, other threads may still write to `target`, and keep it until they have done. So whoever gives
    the memory to somebody else must know it from that: that nobody refers to it any more.
    """
    num_threads = min(MAX_THREADS, len(os.sched_getaffinity(0))) if len(source) >= PARALLEL_BYTES else 1
    if num_threads == 1:
        np.copyto(target, source)
        return
    size = len(source) // num_threads // _GRAIN_BYTES * _GRAIN_BYTES
    edges = [size * number for number in range(num_threads)] + [len(source)]
    parts = [(target[begin:end], source[begin:end]) for begin, end in pairwise(edges)]
    jobs = _jobs_here(num_threads - 1)
    done: SimpleQueue[BaseException | None] = SimpleQueue()
    if jobs.num_threads:
        for part in parts[1:]:
            jobs.todo.put((*part, done.put))
        parts = parts[:1]
    for part in parts:
        np.copyto(*part)
    for _ in range(num_threads - len(parts)):
        error = done.get()
        if error is not None:
            raise error


class _Jobs:
    """The threads of a process that copy, and what they have to do."""

    def __init__(self) -> None:
        # Its methods are one step each, and may be called in a signal handler while they run.
        self.todo: SimpleQueue[tuple[Bytes, Bytes, Callable[[Any], None]]] = SimpleQueue()
        self.num_threads = 0

    def start(self) -> None:
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # the interpreter is ending, or the system has no threads left
            return
        self.num_threads += 1

    def _run(self) -> None:
        while True:
            target, source, tell = self.todo.get()
            error: BaseException | None = None
            try:
                np.copyto(target, source)
            except BaseException as raised:  # noqa: BLE001 - it is raised where the copy was asked for
                error = raised
            # Nothing may keep the memory when the caller goes on.
            del target, source
            tell(error)
            del tell, error


def _jobs_here(num_threads: int) -> _Jobs:
    pid = os.getpid()
    jobs = _jobs.get(pid) or _jobs.setdefault(pid, _Jobs())
    while jobs.num_threads < num_threads:
        before = jobs.num_threads
        jobs.start()
        if jobs.num_threads == before:
            break
    return jobs
