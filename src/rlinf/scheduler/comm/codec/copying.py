"""Copies of large memory by several threads: one core alone does not use all of a machine's memory bandwidth."""

from __future__ import annotations

import _thread
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rlinf.scheduler.comm.framing import Bytes
from rlinf.scheduler.errors import CommTimeout

# A target and its source, both uint8 of the same shape (n,).
Copy: TypeAlias = tuple[Bytes, Bytes]

# Below, waking a thread costs more than it saves.
PARALLEL_BYTES = 8 << 20
# What a thread takes at a time, at least; ranks copy around the cache from here on (see `engine.node.copying`).
BATCH_BYTES = 4 << 20
MAX_THREADS = 4
# A batch takes milliseconds, and where pages have to come from a disk, a second.
BATCH_TIMEOUT_S = 60.0
_NUM_SLICES = 60
_GRAIN_BYTES = 4096
_LARGEST_PLACE = (1 << 16) - 1

_Batch: TypeAlias = list[Copy]


class Company(NamedTuple):
    """The processes of this machine that copy the same memory about now, this one with them.

    Each begins with the batch at which another one is: what a batch is read from is in the cache then, and comes from
    there in half the time. One may be late, or wait for a processor meanwhile: it skips what it has missed, and has its
    turn with that at the end.

    Attributes:
        num_processes: how many they are.
        place: one number that all of them see, 16 bits: which batch was begun last by any of them.
    """

    num_processes: int
    place: memoryview[Any]


# What there is to do, by process: a forked child has threads of its own.
_jobs: dict[int, _Jobs] = {}


def copy_all(copies: Sequence[Copy], company: Company | None = None) -> None:
    """Copy each source into its target; in any order, and other Python threads run meanwhile.

    Threads take batches while there are any: one that gets no processor holds up nobody.

    If it is interrupted, other threads may still write to targets, and keep them until they have done. So whoever
    gives the memory to somebody else must know it from that: that nobody refers to it any more.

    Args:
        copies: what to copy.
        company: who else copies the same sources, in the same order; None: nobody.

    Raises:
        CommTimeout: a thread has not copied a batch of `BATCH_BYTES` in `BATCH_TIMEOUT_S`.
    """
    if sum(len(source) for _, source in copies) < PARALLEL_BYTES:
        _copy(copies)
        return
    batches = _Batches(_cut(copies), company)
    done: SimpleQueue[BaseException | None] = SimpleQueue()
    num_left = len(batches)
    num_helpers = min(MAX_THREADS, _num_processors(company), num_left) - 1
    jobs = _jobs_here(num_helpers)
    try:
        for _ in range(min(jobs.num_threads, num_helpers)):
            jobs.todo.put((batches, done.put))
        while (batch := batches.next()) is not None:
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


def _num_processors(company: Company | None) -> int:
    """How many processors there are for the threads of this process."""
    num_processors = len(os.sched_getaffinity(0))
    return num_processors if company is None else max(1, num_processors // max(1, company.num_processes))


class _Batches:
    """What is to be copied yet; threads take from it, each batch once."""

    def __init__(self, batches: list[_Batch], company: Company | None) -> None:
        self._batches = batches
        self._left = list(range(len(batches)))
        self._place = None if company is None or company.num_processes < 2 else company.place

    def __len__(self) -> int:
        return len(self._left)

    def next(self) -> _Batch | None:
        """A batch; None if all were taken."""
        left, place = self._left, self._place
        here = 0 if place is None else place[0]
        while left:
            try:
                # `pop` is one step: of threads that found the same, each gets another one.
                number = left.pop(bisect_left(left, here) % len(left))
            except (IndexError, ZeroDivisionError):  # others have taken the last ones meanwhile
                continue
            if place is not None and number != here:
                place[0] = number & _LARGEST_PLACE
            return self._batches[number]
        return None

    def clear(self) -> None:
        """Nothing is to be copied any more."""
        self._left.clear()


def _cut(copies: Sequence[Copy]) -> list[_Batch]:
    """The same in batches, none twice as large as BATCH_BYTES: large copies are cut, small ones are put together."""
    batches: list[_Batch] = [[]]
    room = BATCH_BYTES
    for copy in copies:
        for piece in _pieces(*copy):
            if batches[-1] and (room <= 0 or len(piece[1]) - room >= BATCH_BYTES):
                batches.append([])
                room = BATCH_BYTES
            batches[-1].append(piece)
            room -= len(piece[1])
    return batches


def _pieces(target: Bytes, source: Bytes) -> list[Copy]:
    num_pieces = max(1, len(source) // BATCH_BYTES)
    size = len(source) // num_pieces // _GRAIN_BYTES * _GRAIN_BYTES
    edges = [size * number for number in range(num_pieces)] + [len(source)]
    return [(target[begin:end], source[begin:end]) for begin, end in pairwise(edges)]


class _Jobs:
    """The threads of a process that copy, and what they have to do."""

    def __init__(self) -> None:
        # Its methods are one step each, and may be called in a signal handler while they run.
        self.todo: SimpleQueue[tuple[_Batches, Callable[[Any], None]]] = SimpleQueue()
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
            while (batch := batches.next()) is not None:
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
