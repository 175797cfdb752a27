"""Copies of large memory by several threads: one core alone does not use all of a machine's memory bandwidth."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from rlinf.scheduler.comm.shm.maps import Bytes

# Below, waking a thread costs more than it saves.
PARALLEL_BYTES = 8 << 20
MAX_THREADS = 4
_GRAIN_BYTES = 4096

_pools: dict[int, ThreadPoolExecutor] = {}


def copy_bytes(source: Bytes, target: Bytes) -> None:
    """Copy `source` into `target`, both uint8 of the same shape (n,); other Python threads run meanwhile."""
    num_threads = min(MAX_THREADS, len(os.sched_getaffinity(0))) if len(source) >= PARALLEL_BYTES else 1
    if num_threads == 1:
        np.copyto(target, source)
        return
    size = len(source) // num_threads // _GRAIN_BYTES * _GRAIN_BYTES
    others = []
    done = size
    try:
        pool = _pool()
        for number in range(1, num_threads):
            end = len(source) if number == num_threads - 1 else done + size
            others.append(pool.submit(np.copyto, target[done:end], source[done:end]))
            done = end
    except RuntimeError:  # the interpreter is ending and starts no threads
        np.copyto(target[done:], source[done:])
    try:
        np.copyto(target[:size], source[:size])
    finally:
        # Even if this thread is interrupted: nobody may write into the target any more when it is given up.
        for other in others:
            other.result()


def _pool() -> ThreadPoolExecutor:
    """The threads of this process; a forked child has its own."""
    pid = os.getpid()
    pool = _pools.get(pid)
    if pool is None:
        pool = _pools.setdefault(pid, ThreadPoolExecutor(MAX_THREADS - 1, thread_name_prefix="comm-copy"))
    return pool
