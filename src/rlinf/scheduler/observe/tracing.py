"""Writes down what this process is at, span by span, while the job is traced; a service of every process.

Threads only append to a deque. The I/O thread writes it to the process's spool a few times a second: so a process that
is killed leaves all but the last moment. What has gathered is fetched when the trace ends, by whoever lives then.
"""

from __future__ import annotations

import os
import platform
import shutil
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from rlinf.scheduler.comm import Reply, Request
from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.comm.reports import Reporter
from rlinf.scheduler.comm.rundir import is_private, private_directory
from rlinf.scheduler.comm.timekeeping import TIMES, Span
from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.observe.clocks import RoundTrip, offset_of
from rlinf.scheduler.observe.spool import ClockNote, SpoolHead, SpoolWriter
from rlinf.scheduler.session import Session

# Services of every process of a job,
TRACE = "job.trace"
SPOOLS = "job.spools"
# and of its home: what time it is.
CLOCK = "job.clock"
# So often what has gathered is written, and the clocks of machines are compared, each time by so many questions.
FLUSH_S = 0.25
COMPARE_S, NUM_TRIPS = 10.0, 8
# A process that leaves waits so long until its spool is written.
CLOSING_S = 2.0
# So many spans may gather before they are written: then the oldest go.
MAX_GATHERED = 1 << 17
# A folder that is older was left by a job that was killed.
LEFT_S = 24 * 3600.0
_PREFIX = "trace-"
_log = Reporter(__name__)


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


class SpoolFile(msgspec.Struct, frozen=True, array_like=True):
    """A segment of a spool: its file's name, and how large it is, in bytes."""

    name: str
    size_bytes: int


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
        self._gathered: deque[Span] = deque(maxlen=MAX_GATHERED)
        self._writer: SpoolWriter | None = None
        self._trace_id = ""
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
            ClusterError: there is no folder for it.
            OSError: it cannot be written.
        """
        if self._writer is not None and self._trace_id == order.trace_id:
            self._writer.max_bytes = order.max_bytes
            return
        self.end()
        process_id = self._messenger.endpoint.process_id
        head = SpoolHead(self._session.name, os.getpid(), platform.node(), 0, 0)
        self._writer = SpoolWriter(self._folder(order.trace_id) / process_id, head, order.max_bytes)
        self._trace_id = order.trace_id
        self._session.on_close(self._end_at_close)
        self._gathered.clear()
        TIMES.trace(self._gathered.append)
        self._compare_clocks(order.trace_id)
        self._write_later(order.trace_id)

    def end(self) -> None:
        """Write what is left, and no more."""
        writer = self._writer
        if writer is not None:
            TIMES.trace(None)
            self._session.forget(self._end_at_close)
            self._write()
            self._writer = None
            writer.close()

    def _end_at_close(self) -> None:
        ended: Promise[None] = Promise()

        def end() -> None:
            self.end()
            ended.set_result(None)

        self._messenger.submit(end)
        if not self._messenger.on_io_thread():
            ended.wait(CLOSING_S)

    def _write_later(self, trace_id: str) -> None:
        if self._writer is not None and trace_id == self._trace_id and not self._messenger.why_closed:
            self._write()
            self._messenger.call_later(FLUSH_S, partial(self._write_later, trace_id))

    def _write(self) -> None:
        writer, spans = self._writer, []
        with suppress(IndexError):
            while True:
                spans.append(self._gathered.popleft())
        if writer is None or not spans:
            return
        # Not `threading.enumerate`: this thread would wait for a lock that an interrupted thread may hold.
        named = dict(threading._active)  # type: ignore[attr-defined]
        try:
            writer.note_threads(
                {span.thread: named[span.thread].name for span in spans if span.thread in named}
            )
            writer.write(spans)
        except OSError as error:  # its folder is gone, say: nobody has waited for it at the end of the trace
            _log.warning("'%s' is not traced any more: %s", self._session.name, error)
            TIMES.trace(None)
            self._writer = None

    # -- clocks ----------------------------------------------------------------------------------

    def _compare_clocks(self, trace_id: str) -> None:
        """Find out again and again how the clock differs from the home's; those of one machine are the same."""
        if self.is_home or self._session.home.machine_id == self._messenger.endpoint.machine_id:
            return
        if self._writer is not None and trace_id == self._trace_id and not self._messenger.why_closed:
            self._ask_time([])
            self._messenger.call_later(COMPARE_S, partial(self._compare_clocks, trace_id))

    def _ask_time(self, trips: list[RoundTrip]) -> None:
        asked = self._messenger.request(
            self._session.home, CLOCK, None, timeout_s=COMPARE_S, reply_type=float
        )
        asked.add_done_callback(partial(self._on_time, trips, time.monotonic()))

    def _on_time(self, trips: list[RoundTrip], asked_at: float, answer: Promise[Reply]) -> None:
        now = time.monotonic()
        if answer.exception(0) is not None or self._writer is None:
            return
        trips.append(RoundTrip(asked_at, answer.result(0).head, now))
        if len(trips) < NUM_TRIPS:
            self._ask_time(trips)
        else:
            with suppress(OSError):  # the next spans tell of it
                self._writer.note_clock(ClockNote(now, *offset_of(trips)))

    def _folder(self, trace_id: str) -> Path:
        return folder_of(trace_id, self._messenger.endpoint.machine_id)

    # -- what others ask -------------------------------------------------------------------------

    def _on_trace(self, request: Request) -> None:
        if isinstance(request.head, TraceOn):
            self.begin(request.head)
        elif request.head.trace_id == self._trace_id:
            self.end()
        request.reply(None)

    def _on_ask(self, request: Request) -> None:
        match request.head:
            case ListSpools(trace_id):
                request.reply(spools_in(self._folder(trace_id)))
            case ReadSpool(trace_id, name, start, size_bytes):
                request.reply(None, [part_of(self._folder(trace_id), name, start, size_bytes)])
            case DropSpools(trace_id):
                drop_spools(self._folder(trace_id))
                request.reply(None)


def _answer(request: Request, value: float) -> None:
    request.reply(value)


# -- the folder of a trace on a machine ------------------------------------------------------------


def folder_of(trace_id: str, machine_id: str) -> Path:
    """The folder in which a machine's processes write their spools, this one's; it is made if it is not there.

    Raises:
        ClusterError: none can be had that is this user's alone.
    """
    parent = private_directory()
    if parent is None or not (trace_id + machine_id).isalnum():
        raise ClusterError(
            "no directory for temporary files is this user's alone: this process is not traced"
        )
    folder = parent / f"{_PREFIX}{trace_id}-{machine_id}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if not is_private(folder):
        raise ClusterError(f"{folder} is not this user's alone: this process is not traced")
    return folder


def spools_in(folder: Path) -> list[SpoolFile]:
    """The segments that lie in a folder."""
    return [SpoolFile(path.name, path.stat().st_size) for path in sorted(folder.iterdir())]


def part_of(folder: Path, name: str, start: int, size_bytes: int) -> bytes:
    """A part of a segment.

    Raises:
        ClusterError: it is not in that folder.
        OSError: it cannot be read.
    """
    if Path(name).name != name:
        raise ClusterError(f"'{name}' is no spool")
    with (folder / name).open("rb") as file:
        file.seek(start)
        return file.read(size_bytes)


def drop_spools(folder: Path) -> None:
    """Remove the folder of a trace, and those that killed jobs left a day ago."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in folder.parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            newest = max((each.stat().st_mtime for each in (path, *path.iterdir())), default=0.0)
            if time.time() - newest > LEFT_S:
                shutil.rmtree(path, ignore_errors=True)
