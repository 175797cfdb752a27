"""Writes down what this process is at, span by span, while the job is traced; a service of every process.

A thread beside all others writes it to the process's spool once a second: so a process that is killed leaves all but
the last moment. What has gathered is fetched when the trace ends, by whoever lives then.
"""

from __future__ import annotations

import os
import platform
import time
from functools import partial
from pathlib import Path

import msgspec

from rlinf.scheduler.comm import Reply, Request
from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.comm.timekeeping import TIMES
from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.observe.clocks import RoundTrip, offset_of
from rlinf.scheduler.observe.open_spans import open_spans
from rlinf.scheduler.observe.spool import ClockNote, SpoolHead, SpoolWriter, StillOpen
from rlinf.scheduler.observe.spool_folder import (
    drop_spools,
    folder_of,
    hold_folder,
    part_of,
    spools_in,
)
from rlinf.scheduler.observe.spool_thread import SpoolThread
from rlinf.scheduler.session import Session

# Services of every process of a job,
TRACE = "job.trace"
SPOOLS = "job.spools"
# and of its home: what time it is.
CLOCK = "job.clock"
# So often the clocks of machines are compared, each time by so many questions.
COMPARE_S, NUM_TRIPS = 10.0, 8
# So often it is noted what has not ended and takes longer than that: of a killed process that is told.
OPEN_S = 1.0
# A process that leaves waits so long until its spool is written.
CLOSING_S = 2.0


class TraceOn(msgspec.Struct, tag=0, frozen=True, array_like=True):
    """Write down what you are at -> None.

    Attributes:
        trace_id: of this trace.
        max_bytes: how much you may write, from now on.
    """

    trace_id: str
    max_bytes: int


class TraceOff(msgspec.Struct, tag=1, frozen=True, array_like=True):
    """Do not write any more -> None, when all is written."""

    trace_id: str


class ListSpools(msgspec.Struct, tag=0, frozen=True, array_like=True):
    """Ask which spools of a trace are on a machine -> list of `SpoolFile`."""

    trace_id: str


class ReadSpool(msgspec.Struct, tag=1, frozen=True, array_like=True):
    """Ask for a part of a spool -> None, and it in a frame."""

    trace_id: str
    name: str
    start: int
    size_bytes: int


class DropSpools(msgspec.Struct, tag=2, frozen=True, array_like=True):
    """The spools of a trace on a machine are not needed any more -> None."""

    trace_id: str


class Tracer:
    """The spool of this process; on the I/O thread, but for its making and its end.

    Args:
        session: this process's.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = messenger = session.messenger
        self._spool: SpoolThread | None = None
        self._trace_id = ""
        # Of the folder of the last trace, until what lies there was fetched.
        self._lock_fd = -1
        messenger.serve(TRACE, self._on_trace, TraceOn | TraceOff)
        messenger.serve(SPOOLS, self._on_ask, ListSpools | ReadSpool | DropSpools)
        if self.is_home:
            messenger.serve(CLOCK, lambda request: _answer(request, time.monotonic()), None)

    @property
    def is_home(self) -> bool:
        """Whether this is the job's home, by whose clock all times are told."""
        return self._session.home.process_id == self._messenger.endpoint.process_id

    def begin(self, order: TraceOn) -> None:
        """Write from now on, or as much as is said now.

        Raises:
            ClusterError: there is no folder for it, or no thread.
            OSError: it cannot be written.
        """
        if self._spool is not None and self._trace_id == order.trace_id:
            self._spool.limit(order.max_bytes)
            return
        self.end(self._trace_id)
        self.release(self._trace_id)
        process_id = self._messenger.endpoint.process_id
        folder = self._folder(order.trace_id)
        self._lock_fd = hold_folder(folder)
        self._session.on_close_last(self._release)
        self._session.on_fork(self._release)
        head = SpoolHead(self._session.name, os.getpid(), platform.node(), 0, 0)
        writer = SpoolWriter(folder / process_id, head, order.max_bytes)
        try:
            self._spool = SpoolThread(writer, self._session.name)
        except RuntimeError as error:
            writer.close()
            raise ClusterError(f"'{self._session.name}' is not traced: {error}") from error
        self._trace_id = order.trace_id
        self._session.on_close(self._end_at_close)
        TIMES.trace(self._spool.add)
        self._compare_clocks(order.trace_id)
        self._note_open(order.trace_id)

    def end(self, trace_id: str) -> Promise[None]:
        """Write what is left of a trace, and no more; done when that is written. From any thread."""
        spool = self._spool
        if spool is None or trace_id != self._trace_id:
            done: Promise[None] = Promise()
            done.set_result(None)
            return done
        self._spool = None
        if TIMES.spool == spool.add:
            TIMES.trace(None)
        self._session.forget(self._end_at_close)
        # From another thread it would be in the way of those who look at stacks: what was said last holds.
        on_io_thread = self._messenger.on_io_thread()
        spool.end(StillOpen(time.monotonic(), open_spans()) if on_io_thread else None)
        return spool.ended

    def release(self, trace_id: str) -> None:
        """What was written of a trace is not needed any more; from any thread."""
        if trace_id == self._trace_id:
            self._release()

    def _release(self) -> None:
        lock_fd, self._lock_fd = self._lock_fd, -1
        if lock_fd >= 0:
            self._session.forget(self._release)
            os.close(lock_fd)

    def _end_at_close(self) -> None:
        ended = self.end(self._trace_id)
        if not self._messenger.on_io_thread():
            ended.wait(CLOSING_S)

    def _note_open(self, trace_id: str) -> None:
        """Note again and again what has not ended: this process may be killed."""
        spool = self._spool  # another thread may end it
        if spool is None or not self._writes(trace_id) or self._messenger.why_closed:
            return
        now = time.monotonic()
        lasting = [span for span in open_spans() if now - span.began >= OPEN_S]
        spool.note_open(StillOpen(now, lasting))
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
        asked = self._messenger.request(
            self._session.home, CLOCK, None, timeout_s=COMPARE_S, reply_type=float
        )
        asked.add_done_callback(partial(self._on_time, trips, time.monotonic()))

    def _on_time(self, trips: list[RoundTrip], asked_at: float, answer: Promise[Reply]) -> None:
        now, spool = time.monotonic(), self._spool  # another thread may end it
        if answer.exception(0) is not None or spool is None:
            return
        trips.append(RoundTrip(asked_at, answer.result(0).head, now))
        if len(trips) < NUM_TRIPS:
            self._ask_time(trips)
        else:
            spool.note_clock(ClockNote(now, *offset_of(trips)))

    def _writes(self, trace_id: str) -> bool:
        spool = self._spool  # another thread may end it
        return spool is not None and trace_id == self._trace_id and not spool.ended.done()

    def _folder(self, trace_id: str) -> Path:
        return folder_of(trace_id, self._messenger.endpoint.machine_id)

    # -- what others ask -------------------------------------------------------------------------

    def _on_trace(self, request: Request) -> None:
        if isinstance(request.head, TraceOn):
            self.begin(request.head)
            request.reply(None)
        else:
            self.end(request.head.trace_id).add_done_callback(lambda _: request.reply(None))

    def _on_ask(self, request: Request) -> None:
        match request.head:
            case ListSpools(trace_id):
                request.reply(spools_in(self._folder(trace_id)))
            case ReadSpool(trace_id, name, start, size_bytes):
                request.reply(None, [part_of(self._folder(trace_id), name, start, size_bytes)])
            case DropSpools(trace_id):
                self.release(trace_id)
                drop_spools(self._folder(trace_id))
                request.reply(None)


def _answer(request: Request, value: float) -> None:
    request.reply(value)
