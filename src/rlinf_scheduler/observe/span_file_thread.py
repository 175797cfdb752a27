"""What a traced process writes its spans with: threads only append, and one of its own encodes and writes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.threads import run_beside
from rlinf_scheduler.observe.span_file import ClockNote, SpanFileWriter, StillOpen
from rlinf_scheduler.observe.timekeeping import TIMES, Span

# So often what has gathered is written: so much is lost with a process that is killed. Not more often: each time this
# thread takes the interpreter from the one that works, which then stands in line for a processor where all are busy.
FLUSH_S = 1.0
# What goes on and on is said again after it: to then it is drawn where the process is killed.
AGAIN_S = 10.0
# So many spans may gather before they are written: then the oldest go, and are counted.
MAX_GATHERED = 1 << 17
# So many are encoded at once: no other thread runs meanwhile, for a millisecond or two.
_MAX_AT_ONCE = 4096
_log = Reporter(__name__)


class SpanFileThread:
    """Takes the spans of a process, and writes them once a second, until it is told to end.

    Args:
        writer: of the span file's file.
        process: whose spans they are.

    Attributes:
        ended: done when all is written, after `end`; or when nothing can be written any more.

    Raises:
        RuntimeError: there is no thread to be had.
    """

    def __init__(self, writer: SpanFileWriter, process: str) -> None:
        self.ended: Promise[None] = Promise()
        self._writer = writer
        self._process = process
        self._gathered: deque[Span] = deque(maxlen=MAX_GATHERED)
        self._clocks: deque[ClockNote] = deque()
        # Of threads, as they were called when the first span of each came: it may be gone when that is written.
        self._names: dict[int, str] = {}
        self._still_open = StillOpen(0.0, [])
        self._open_notes: deque[StillOpen] = deque()
        # By threads that gather; and how many of them are noted.
        self._num_lost = self._num_told = 0
        self._over: Promise[None] = Promise()
        run_beside(self._run)

    def add(self, span: Span) -> None:
        """Have a span written; from any thread."""
        if len(self._gathered) == MAX_GATHERED:
            self._num_lost += 1
        if span.thread not in self._names:
            self._names[span.thread] = _names_of((span,)).get(span.thread, "")
        self._gathered.append(span)

    def note_clock(self, note: ClockNote) -> None:
        """Have noted how the clock differs; from any thread."""
        self._clocks.append(note)

    def note_open(self, note: StillOpen) -> None:
        """Have noted what has not ended, unless that was said just so a while ago; from the I/O thread."""
        before = self._still_open
        if note.spans != before.spans or (note.spans and note.at - before.at >= AGAIN_S):
            self._still_open = note
            self._open_notes.append(note)

    def limit(self, max_bytes: int) -> None:
        """So much may be written from now on."""
        self._writer.max_bytes = max_bytes

    def end(self, still_open: StillOpen | None = None) -> None:
        """Write what is left, and what has not ended; and no more."""
        if still_open is not None:
            self._open_notes.append(still_open)
        self._over.set_result(None)

    # -- its thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._over.wait(FLUSH_S):
                self._write()
            self._write()
        except OSError as error:  # its folder is gone, say: nobody has waited for it at the end of the trace
            _log.warning("'%s' is not traced any more: %s", self._process, error)
            if TIMES.span_file == self.add:
                TIMES.trace(None)
        finally:
            self._writer.close()
            self.ended.set_result(None)

    def _write(self) -> None:
        while self._clocks:
            self._writer.note_clock(self._clocks.popleft())
        num_lost = self._num_lost
        if num_lost > self._num_told:
            self._writer.drop(num_lost - self._num_told)
            self._num_told = num_lost
        # Those that come meanwhile are for the next time.
        for _ in range(0, len(self._gathered), _MAX_AT_ONCE):
            self._write_some()
        while self._open_notes:
            note = self._open_notes.popleft()
            self._note_threads(note.spans)
            self._writer.note_open(note)

    def _write_some(self) -> None:
        spans: list[Span] = []
        with suppress(IndexError):
            while len(spans) < _MAX_AT_ONCE:
                spans.append(self._gathered.popleft())
        if spans:
            self._note_threads(spans)
            self._writer.write(spans)

    def _note_threads(self, spans: list[Span]) -> None:
        seen = {span.thread for span in spans}
        first = {thread: self._names[thread] for thread in seen if self._names.get(thread)}
        self._writer.note_threads({**first, **_names_of(spans)})


def _names_of(spans: Iterable[Span]) -> dict[int, str]:
    # Not `threading.enumerate`: this thread would wait for a lock that an interrupted thread may hold.
    named = dict(threading._active)  # type: ignore[attr-defined]
    return {span.thread: named[span.thread].name for span in spans if span.thread in named}
