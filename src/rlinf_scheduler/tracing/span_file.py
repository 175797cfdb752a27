"""The file into which a traced process writes its spans, as far as they fit, and that outlives it.

Two segments, `NAME.0` and `NAME.1`, are written in turn: where one is full the other one, which is older, begins anew.

A segment is records (`record_log`) whose heads are msgpack of one of `Frame`. A process that is killed may leave half a
record, which is not read; of one that has no room on the disk nothing is left.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.threads import run_beside
from rlinf_scheduler.observe.timekeeping import TIMES, Span
from rlinf_scheduler.record_log import RECORD_BYTES, append_whole, record, records_in
from rlinf_scheduler.wording import plain_text

NUM_SEGMENTS = 2
# What is written at once is no larger than such a part of the bound: else a segment would hold that alone, or more.
NUM_PIECES = 8


class SpanFileHead(msgspec.Struct, tag=0, frozen=True, array_like=True):
    """How a segment begins.

    Attributes:
        process: whose spans they are.
        host: its machine's name.
        number: how many segments there were before.
        num_before: how many spans were written or dropped before this segment: those that cannot be read are gone.
    """

    process: str
    pid: int
    host: str
    number: int
    num_before: int


class ThreadNames(msgspec.Struct, tag=1, frozen=True, array_like=True):
    """Names of threads, by their numbers."""

    names: dict[int, str]


class ClockNote(msgspec.Struct, tag=2, frozen=True, array_like=True):
    """What the process's clock shows more than the home's from a moment on; so much it may be wrong, in seconds."""

    at: float
    offset_s: float
    error_s: float


class Spans(msgspec.Struct, tag=3, frozen=True, array_like=True):
    """Some spans, in the order of their ends, mostly."""

    spans: list[Span]


class Dropped(msgspec.Struct, tag=4, frozen=True, array_like=True):
    """So many spans more were dropped since the segment began."""

    count: int


class StillOpen(msgspec.Struct, tag=5, frozen=True, array_like=True):
    """What had begun at a moment and had not ended; it takes the place of what was said so before.

    Attributes:
        at: when that was.
        spans: each of no length.
    """

    at: float
    spans: list[Span]

    def of_length(self, ended: list[Span]) -> list[Span]:
        """Those that are not among what has ended since, from their beginning to that moment."""
        over = {(span.kind, span.thread, span.name) for span in ended if span.began <= self.at <= span.ended}
        return [
            msgspec.structs.replace(span, ended=max(self.at, span.began), is_open=True)
            for span in self.spans
            if (span.kind, span.thread, span.name) not in over
        ]


class DroppedWhole(msgspec.Struct, tag=6, frozen=True, array_like=True):
    """So many spans were dropped with the whole span files of processes that had ended, by process name."""

    num_spans: dict[str, int]


Frame = SpanFileHead | ThreadNames | ClockNote | Spans | Dropped | StillOpen | DroppedWhole
_encode_as_it_is = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def _encode(frame: Frame) -> bytes:
    try:
        return _encode_as_it_is(frame)
    except (TypeError, UnicodeEncodeError):  # names are the users' own
        return _encode_as_it_is(_with_plain_text(frame))


def _with_plain_text(value: Any) -> Any:
    """The same, with each text, and whatever takes the place of one, as text that UTF-8 can have."""
    if isinstance(value, msgspec.Struct):
        return type(value)(*map(_with_plain_text, msgspec.structs.astuple(value)))
    if isinstance(value, dict):
        return {key: _with_plain_text(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_with_plain_text, value))
    return value if value is None or isinstance(value, int | float) else plain_text(value)


class SpanFileWriter:
    """Writes the span file of one process. Where the disk is full, spans are dropped, and counted.

    Args:
        path: of the file, without its segment's number.
        head: what each segment begins with.
        max_bytes: how large it may become; changed at any time.

    Raises:
        OSError: there can be no such file.
    """

    def __init__(self, path: Path, head: SpanFileHead, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._path = path
        self._head = head
        self._number = 0
        # Of the segments that are there; and with them all that were written, or dropped and told.
        self._num_spans = [0] * NUM_SEGMENTS
        self._num_all = 0
        # What was dropped, and is not written anywhere.
        self._num_untold = 0
        # What was said last, of each kind; and of that what this segment is to say before anything else.
        self._said: dict[type[Frame], Frame] = {}
        self._owed: dict[type[Frame], Frame] = {SpanFileHead: head}
        self._file = open_private(segment(path, 0))
        self._size_bytes = 0

    @property
    def num_dropped(self) -> int:
        """How many spans were dropped, as far as the file says it."""
        return self._num_all - sum(self._num_spans)

    def write(self, spans: list[Span]) -> None:
        """Write spans; the oldest ones go where there is no room."""
        data, limit = _encode(Spans(spans)), self.max_bytes // NUM_PIECES
        if len(data) <= limit and self._append(data):
            self._num_spans[self._place] += len(spans)
            self._num_all += len(spans)
        elif len(data) > limit and len(spans) > 1:
            size = max(1, len(spans) * limit // (2 * len(data)))
            for first in range(0, len(spans), size):
                self.write(spans[first : first + size])
        else:
            self.drop(len(spans))

    def drop(self, count: int) -> None:
        """So many spans are not written."""
        self._num_untold += count
        self._tell_dropped()

    def note_threads(self, names: dict[int, str]) -> None:
        """Threads are called so."""
        known = self._said.get(ThreadNames, ThreadNames({}))
        if isinstance(known, ThreadNames) and names.items() - known.names.items():
            self._note(ThreadNames({**known.names, **names}))

    def note_clock(self, note: ClockNote) -> None:
        """The clock differs by so much from now on."""
        self._note(note)

    def note_open(self, note: StillOpen) -> None:
        """That has not ended."""
        self._note(note)

    def close(self) -> None:
        """Write no more."""
        self._pay()
        if self._num_untold:
            self._tell_dropped()
        self._file.close()

    def _note(self, frame: Frame) -> None:
        """Write a frame that takes the place of the one before of its kind, as soon as there is room."""
        self._said[type(frame)] = frame
        data = _encode(frame)
        if self._make_room(len(data)):
            self._owed[type(frame)] = frame
            self._pay()

    def _tell_dropped(self) -> None:
        # A segment that it begins does not count them.
        if self._append(_encode(Dropped(self._num_untold))):
            self._num_all += self._num_untold
            self._num_untold = 0

    def _append(self, data: bytes) -> bool:
        return self._make_room(len(data)) and self._pay() and self._put(data)

    def _make_room(self, num_bytes: int) -> bool:
        """Begin the next segment if this one has no room for a frame of so many bytes; False: it cannot be."""
        room = self.max_bytes // NUM_SEGMENTS
        if self._size_bytes + RECORD_BYTES + num_bytes <= room or not self._num_spans[self._place]:
            return True
        try:
            file = open_private(segment(self._path, (self._number + 1) % NUM_SEGMENTS))
        except FileNotFoundError:  # its folder is gone
            raise
        except OSError:  # no room for a file, either
            return False
        self._file.close()
        self._file, self._size_bytes = file, 0
        self._number += 1
        self._num_spans[self._place] = 0
        head = msgspec.structs.replace(self._head, number=self._number, num_before=self._num_all)
        self._owed = {SpanFileHead: head, **self._said}
        return True

    @property
    def _place(self) -> int:
        return self._number % NUM_SEGMENTS

    def _pay(self) -> bool:
        """Write what is owed; whether there was room."""
        while self._owed:
            kind, frame = next(iter(self._owed.items()))
            if not self._put(_encode(frame)):
                return False
            del self._owed[kind]
        return True

    def _put(self, data: bytes) -> bool:
        try:
            self._size_bytes = append_whole(self._file.fileno(), self._size_bytes, record(data))
        except OSError:  # the disk is full
            return False
        return True


def segment(path: Path, place: int) -> Path:
    """One of the files that a span file is made of."""
    return path.with_name(f"{path.name}.{place}")


def open_private(path: Path) -> BinaryIO:
    """A new file, or an emptied one, that only this user can read; what is written there is written at once."""
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)


class SpanFileContent(msgspec.Struct):
    """What a span file holds.

    Attributes:
        head: of its first segment that is there.
        threads: their names.
        clocks: how the clock differed, in order.
        spans: in the order in which they were written.
        num_dropped: how many spans more there were, before these or since.
        still_open: what had not ended when it was last said; None if it never was.
    """

    head: SpanFileHead
    threads: dict[int, str]
    clocks: list[ClockNote]
    spans: list[Span]
    num_dropped: int = 0
    still_open: StillOpen | None = None


def read_span_file(segments: Iterable[bytes]) -> SpanFileContent | None:
    """What the segments of a span file hold, given in any order; None if there is nothing."""
    content: SpanFileContent | None = None
    for data in sorted(segments, key=number_of):
        for frame in _frames(data):
            if isinstance(frame, SpanFileHead):
                content = content or SpanFileContent(frame, {}, [], [], frame.num_before)
            elif content is not None:
                _add(content, frame)
    return content


def number_of(beginning: bytes) -> int:
    """How many segments there were before the one that begins so; -1: it has no head."""
    first = next(_frames(beginning), None)
    return first.number if isinstance(first, SpanFileHead) else -1


def dropped_whole(segment_bytes: bytes) -> dict[str, int]:
    """What `note_dropped_whole` has written."""
    first = next(_frames(segment_bytes), None)
    return first.num_spans if isinstance(first, DroppedWhole) else {}


def note_dropped_whole(path: Path, num_spans: dict[str, int]) -> None:
    """Write how many spans were dropped with whole span files, in place of what was there."""
    data = _encode(DroppedWhole(num_spans))
    with open_private(path) as file:
        append_whole(file.fileno(), 0, record(data))


def _add(content: SpanFileContent, frame: Frame) -> None:
    if isinstance(frame, ThreadNames):
        content.threads.update(frame.names)
    elif isinstance(frame, ClockNote):
        content.clocks.append(frame)
    elif isinstance(frame, Spans):
        content.spans += frame.spans
    elif isinstance(frame, StillOpen):
        content.still_open = frame
    elif isinstance(frame, Dropped):
        content.num_dropped += frame.count


def _frames(data: bytes) -> Iterator[Frame]:
    for each in records_in(data):
        with suppress(msgspec.MsgspecError):  # of what is not understood, what follows is
            yield _decode(each.head)


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
