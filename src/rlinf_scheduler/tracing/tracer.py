"""Writes down what this process is at, span by span, while the job is traced; a service of every process.

A thread beside all others writes it to the process's span file once a second: so a process that is killed leaves all
but the last moment. What has gathered is fetched when the trace ends, by the processes that live then.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import msgspec

from rlinf_scheduler.comm import Reply, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import OWN_THREADS, run_beside_in_time
from rlinf_scheduler.comm.waits import IDLE, cause_of, ender_of, wait_kept_in
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.observe.levels import Level, Levels
from rlinf_scheduler.observe.stacks import (
    frames_inwards,
    frames_of_threads,
    loop_run_in,
    wait_in,
)
from rlinf_scheduler.observe.timekeeping import TIMES, WAIT, Span
from rlinf_scheduler.session import Session
from rlinf_scheduler.tracing.span_file import (
    MAX_GATHERED,
    ClockNote,
    SpanFileHead,
    SpanFileThread,
    SpanFileWriter,
    StillOpen,
)
from rlinf_scheduler.tracing.span_file_folder import (
    drop_oldest,
    drop_span_files,
    folder_of,
    hold_folder,
    hold_span_file,
    part_of,
    span_files_in,
)


class RoundTrip(NamedTuple):
    """A question for the time.

    Attributes:
        asked_at: when it was asked, by the clock here, in seconds.
        said: the time that was answered, by the clock there.
        answered_at: when the answer came, by the clock here.
    """

    asked_at: float
    said: float
    answered_at: float


class Offset(NamedTuple):
    """What the clock here shows more than the one there, and by how much that may be wrong, in seconds."""

    seconds: float
    error_s: float


def offset_of(trips: Iterable[RoundTrip]) -> Offset:
    """How the clock here differs from the one that was asked.

    >>> offset_of([RoundTrip(100.0, 7.0, 100.5), RoundTrip(101.0, 8.25, 103.0)])
    Offset(seconds=93.25, error_s=0.25)
    """
    best = min(trips, key=lambda trip: trip.answered_at - trip.asked_at)
    halfway = (best.asked_at + best.answered_at) / 2
    return Offset(halfway - best.said, (best.answered_at - best.asked_at) / 2)


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
    for thread, frames in frames_of_threads(list).items():
        if thread in OWN_THREADS:
            continue
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


# A service of every process of a job.
SPAN_FILES = "job.spools"
# So often the clocks of machines are compared, each time by so many questions.
COMPARE_S, NUM_TRIPS = 10.0, 8
# So often it is noted what has not ended and takes longer than that: of a killed process that is told.
OPEN_S = 1.0
# A process that leaves waits so long until its span file is written.
CLOSING_S = 2.0


class TraceOn(msgspec.Struct, tag=0, frozen=True, array_like=True):
    """Write down what you are at -> None.

    Attributes:
        trace_id: of this trace.
        max_bytes: how much you may write, from now on.
        max_ended_bytes: how much processes that have ended may have left on a machine.
    """

    trace_id: str
    max_bytes: int
    max_ended_bytes: int


class TraceOff(msgspec.Struct, tag=1, frozen=True, array_like=True):
    """Do not write any more -> None, when all is written."""

    trace_id: str


# A level of every process; and one of the job's home: what time it is.
TRACE, CLOCK = Level("trace", type(None), TraceOn | TraceOff), Level("job.clock", float)


class ListSpanFiles(msgspec.Struct, tag=0, frozen=True, array_like=True):
    """Ask which span files of a trace are on a machine -> list of `SpanFileRecord`."""

    trace_id: str


class ReadSpanFile(msgspec.Struct, tag=1, frozen=True, array_like=True):
    """Ask for a part of a span file -> None, and it in a frame."""

    trace_id: str
    name: str
    start: int
    size_bytes: int


class DropSpanFiles(msgspec.Struct, tag=2, frozen=True, array_like=True):
    """The span files of a trace on a machine are not needed any more -> None."""

    trace_id: str


class OpenSpanFile(NamedTuple):
    """A span file to be written: the file, and what keeps its folder and itself there."""

    trace_id: str
    locks: ExitStack
    writer: SpanFileWriter

    def close(self) -> None:
        """Nobody writes it."""
        self.writer.close()
        self.locks.close()


class Tracer:
    """The span file of this process; on the I/O thread, which touches no file, but for its making and its end.

    Args:
        session: this process's.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = messenger = session.messenger
        self._span_file: SpanFileThread | None = None
        self._trace_id = ""
        # The orders of traces whose span files are being opened.
        self._opening: dict[str, list[tuple[TraceOn, Promise[None]]]] = {}
        # Spans since the first of these asked; a process is traced from then on.
        self._early: deque[Span] = deque(maxlen=MAX_GATHERED)
        # Of the folder of the last trace and of the span file there, until what lies there was fetched.
        self._locks = ExitStack()
        levels = session.service(Levels)
        levels.add(TRACE, self._on_trace)
        messenger.serve(SPAN_FILES, self._on_ask, ListSpanFiles | ReadSpanFile | DropSpanFiles)
        if self.is_home:
            levels.add(CLOCK, lambda _about: time.monotonic())

    @property
    def is_home(self) -> bool:
        """Whether this is the job's home, by whose clock all times are told."""
        return self._session.home.process_id == self._messenger.endpoint.process_id

    def open(self, order: TraceOn) -> OpenSpanFile:
        """Open the file of a span file, for `begin`; not on the I/O thread: somebody may remove its folder just now.

        Raises:
            ClusterError: there is no folder for it.
            OSError: it cannot be written.
        """
        folder = self._folder(order.trace_id)
        span_file = folder / self._messenger.endpoint.process_id
        head = SpanFileHead(self._session.name, os.getpid(), platform.node(), 0, 0)
        with ExitStack() as locks:
            locks.callback(os.close, hold_folder(folder))
            drop_oldest(folder, order.max_ended_bytes)
            locks.callback(os.close, hold_span_file(span_file))
            writer = SpanFileWriter(span_file, head, order.max_bytes)
            return OpenSpanFile(order.trace_id, locks.pop_all(), writer)

    def begin(self, opened: OpenSpanFile) -> None:
        """Write from now on; what was written before is over.

        Raises:
            ClusterError: there is no thread for it.
        """
        try:
            span_file = SpanFileThread(opened.writer, self._session.name)
        except RuntimeError as error:
            opened.close()
            raise ClusterError(f"'{self._session.name}' is not traced: {error}") from error
        self.end(self._trace_id)
        self.release(self._trace_id)
        self._locks, self._span_file, self._trace_id = opened.locks, span_file, opened.trace_id
        self._session.on_close_last(self._release)
        self._session.on_fork(self._release)
        self._session.on_close(self._end_at_close)
        TIMES.trace(span_file.add)
        self._compare_clocks(opened.trace_id)
        self._note_open(opened.trace_id)

    def limit(self, order: TraceOn) -> bool:
        """Write as much as is said now, if that trace goes on; whether it does."""
        span_file = self._span_file
        if span_file is None or self._trace_id != order.trace_id:
            return False
        span_file.limit(order.max_bytes)
        return True

    def end(self, trace_id: str) -> Promise[None]:
        """Write what is left of a trace, and no more; done when that is written. From any thread."""
        span_file = self._span_file
        if span_file is None or trace_id != self._trace_id:
            done: Promise[None] = Promise()
            done.set_result(None)
            return done
        self._span_file = None
        if TIMES.span_file == span_file.add:
            TIMES.trace(None)
        self._session.forget(self._end_at_close)
        # From another thread it would be in the way of those who look at stacks: what was said last holds.
        on_io_thread = self._messenger.on_io_thread()
        span_file.end(StillOpen(time.monotonic(), open_spans()) if on_io_thread else None)
        return span_file.ended

    def release(self, trace_id: str) -> None:
        """What was written of a trace is not needed any more; from any thread."""
        if trace_id == self._trace_id:
            self._release()

    def _release(self) -> None:
        locks, self._locks = self._locks, ExitStack()
        self._session.forget(self._release)
        locks.close()

    def _end_at_close(self) -> None:
        ended = self.end(self._trace_id)
        if not self._messenger.on_io_thread():
            ended.wait(CLOSING_S)

    def _note_open(self, trace_id: str) -> None:
        """Note again and again what has not ended: this process may be killed."""
        span_file = self._span_file  # another thread may end it
        if span_file is None or not self._writes(trace_id) or self._messenger.why_closed:
            return
        now = time.monotonic()
        lasting = [span for span in open_spans() if now - span.began >= OPEN_S]
        span_file.note_open(StillOpen(now, lasting))
        self._messenger.call_later(OPEN_S, partial(self._note_open, trace_id))

    # -- clocks ----------------------------------------------------------------------------------

    def _compare_clocks(self, trace_id: str) -> None:
        """Find out again and again how the clock differs from the home's; those of one machine are the same."""
        if self.is_home or self._session.home.machine_id == self._messenger.endpoint.machine_id:
            return
        if self._writes(trace_id) and not self._messenger.why_closed:
            self._ask_time([])
            self._messenger.call_later(COMPARE_S, partial(self._compare_clocks, trace_id))

    def _ask_time(self, trips: list[RoundTrip]) -> None:
        asked = CLOCK.ask(self._messenger, self._session.home, timeout_s=COMPARE_S)
        asked.add_done_callback(partial(self._on_time, trips, time.monotonic()))

    def _on_time(self, trips: list[RoundTrip], asked_at: float, answer: Promise[Reply]) -> None:
        now, span_file = time.monotonic(), self._span_file  # another thread may end it
        if answer.exception(0) is not None or span_file is None:
            return
        trips.append(RoundTrip(asked_at, CLOCK.answer(answer.result(0)), now))
        if len(trips) < NUM_TRIPS:
            self._ask_time(trips)
        else:
            span_file.note_clock(ClockNote(now, *offset_of(trips)))

    def _writes(self, trace_id: str) -> bool:
        span_file = self._span_file  # another thread may end it
        return span_file is not None and trace_id == self._trace_id and not span_file.ended.done()

    def _folder(self, trace_id: str) -> Path:
        return folder_of(trace_id, self._messenger.endpoint.machine_id)

    # -- what others ask -------------------------------------------------------------------------

    def _on_trace(self, order: TraceOn | TraceOff) -> Promise[None] | None:
        if isinstance(order, TraceOff):
            for _, opening in self._opening.pop(order.trace_id, ()):
                opening.set_result(None)
            return self.end(order.trace_id)
        if self.limit(order):
            return None
        begun: Promise[None] = Promise()
        is_first = order.trace_id not in self._opening
        self._opening.setdefault(order.trace_id, []).append((order, begun))
        if is_first:
            if TIMES.span_file is None:
                TIMES.trace(self._early.append)
            self._beside(self._open, order)
        return begun

    def _open(self, order: TraceOn) -> None:
        """Open a span file, in a thread of its own."""
        opened: Promise[OpenSpanFile] = Promise()
        opened.set_from(lambda: self.open(order))
        self._messenger.submit(partial(self._on_opened, order, opened))

    def _on_opened(self, order: TraceOn, opened: Promise[OpenSpanFile]) -> None:
        asked = self._opening.pop(order.trace_id, None)
        try:
            span_file = opened.result(0)
            if asked is None or self._messenger.why_closed:  # it is over by now
                span_file.close()
                self._forget_early()
                return
            self.begin(span_file)
        except (ClusterError, OSError) as error:
            self._forget_early()
            for _, begun in asked or ():
                begun.set_exception(error)
        else:
            if self._span_file is not None:
                for span in tuple(self._early):
                    self._span_file.add(span)
            self._forget_early()
            for order, begun in asked:
                self.limit(order)
                begun.set_result(None)

    def _forget_early(self) -> None:
        if TIMES.span_file == self._early.append:
            TIMES.trace(None)
        self._early.clear()

    def _on_ask(self, request: Request) -> None:
        if isinstance(request.head, DropSpanFiles):
            self.release(request.head.trace_id)
        self._beside(self._answer_span_files, request)

    def _answer_span_files(self, request: Request) -> None:
        """Answer what is asked of a trace's folder, in a thread of its own."""
        try:
            match request.head:
                case ListSpanFiles(trace_id):
                    request.reply(span_files_in(self._folder(trace_id)))
                case ReadSpanFile(trace_id, name, start, size_bytes):
                    request.reply(None, [part_of(self._folder(trace_id), name, start, size_bytes)])
                case DropSpanFiles(trace_id):
                    drop_span_files(self._folder(trace_id))
                    request.reply(None)
        except Exception as error:  # noqa: BLE001 - it belongs to the caller
            request.fail(error)

    def _beside(self, function: Callable[..., object], *args: Any) -> None:
        run_beside_in_time(self._messenger.call_later, function, *args)
