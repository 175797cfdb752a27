"""What a thread or task works at: which call of its rank, which training step, and what it has taken for that.

It is known by a context variable: the tasks that a call makes work at what the call works at; threads that it starts do
not, and stand for themselves.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, ClassVar, TypeAlias

# Of what was taken for an item, so many are named; of more, how many.
MAX_SOURCES = 64
_UNNAMED_THREAD = re.compile(r"Thread-\d+( \(.*\))?")


# How many operations there were, by what they are and of what.
Counts: TypeAlias = dict[tuple[str, str], Iterator[int]]


class Work:
    """A call, or a part of one that belongs to a step.

    Args:
        lane: which call, or thread, it is of.
        step: which step; None where nobody said.
        within: what it is a part of; None for all of a call.

    Attributes:
        lane, step: see above.
        counts: of what happened in the lane; None of a thread, which may be one of several of a name.
        sources: what was taken for what will be put: in a step, since that began; else, since the last put.
        num_left_out: how many further ones are not named.
    """

    __slots__ = ("_has_put", "counts", "lane", "num_left_out", "sources", "step")

    has_taken: ClassVar[bool] = False  # until then nothing in this process has sources

    def __init__(self, lane: str, step: int | None = None, within: Work | None = None) -> None:
        self.lane = lane
        self.step = step
        self.sources: list[Any] = []
        self.num_left_out = 0
        self._has_put = False
        self.counts: Counts | None = {} if within is None else within.counts

    def take(self, items: Sequence[Any]) -> None:
        """Note the items that were taken."""
        Work.has_taken = True
        if self._has_put and self.step is None:
            self.sources, self.num_left_out = [], 0
        self._has_put = False
        room = MAX_SOURCES - len(self.sources)
        self.sources.extend(items[:room])
        self.num_left_out += max(0, len(items) - room)

    def put(self) -> None:
        """Note that something was put, which had these sources."""
        self._has_put = True


class Places:
    """Numbers operations: among those of their kind and subject in their lane."""

    def __init__(self) -> None:
        self._of_threads: dict[str, Counts] = {}

    def next(self, work: Work, operation: str, subject: str) -> int:
        """The number of an operation that begins; from any thread."""
        counts = work.counts
        if counts is None:
            counts = self._of_threads.setdefault(work.lane, {})
        return next(counts.setdefault((operation, subject), count()))


_work: ContextVar[Work | None] = ContextVar("rlinf_work", default=None)
# What this thread or task works at, where somebody said so; asked by every operation.
work_said = _work.get
# Of threads that no call has made known, by name: they have no context of their own that would last.
_of_threads = threading.local()


def current_work() -> Work:
    """What this thread or task works at."""
    return work_said() or _work_of_thread()


def current_step() -> int | None:
    """Which step this thread or task works at; None where nobody said."""
    work = work_said()
    return None if work is None else work.step


def _work_of_thread() -> Work:
    own = _of_threads.__dict__
    work = own.get("work")
    if work is None:
        work = own["work"] = Work(f"thread {lane_name(threading.current_thread().name)}")
        work.counts = None
    return work


def lane_name(thread_name: str) -> str:
    """A thread's name, without the number that Python gives those that nobody named.

    >>> lane_name("Thread-12 (collect)"), lane_name("collector")
    ('Thread (collect)', 'collector')
    """
    unnamed = _UNNAMED_THREAD.fullmatch(thread_name)
    return f"Thread{unnamed[1] or ''}" if unnamed else thread_name


class working_at:  # noqa: N801 - used as a function is
    """A block in which this thread or task, and the tasks that it makes, work at something."""

    __slots__ = ("_token", "_work")

    def __init__(self, work: Work) -> None:
        self._work = work

    def __enter__(self) -> Work:
        self._token = _work.set(self._work)
        return self._work

    def __exit__(self, *_: object) -> None:
        _work.reset(self._token)


@contextmanager
def at_step(number: int) -> Iterator[None]:
    """A block that belongs to a training step; see `Worker.at_step`."""
    around = current_work()
    with working_at(Work(around.lane, number, around)):
        yield
