"""What a trace becomes: a file, and what it has."""

from __future__ import annotations

import bisect
import dataclasses
import gzip
import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from rlinf_scheduler.addresses import process_order
from rlinf_scheduler.observe.job_trace import TraceContent, TraceFile
from rlinf_scheduler.observe.timekeeping import (
    ACK,
    CALL,
    EVENT,
    FETCH,
    GET,
    LINK,
    PHASE,
    PUBLISH,
    PUT,
    VALUE,
    WAIT,
    Span,
)
from rlinf_scheduler.tracing.span_file import ClockNote, SpanFileContent

TraceEvent: TypeAlias = dict[str, Any]
_COLOURS = {WAIT: "grey"}
_FLOWS = {PUT: "s", PUBLISH: "s", GET: "t", FETCH: "t", ACK: "f"}
_NO_THREAD = 0
_encode = msgspec.json.Encoder().encode
# What had not ended is called so.
_OPEN = " (open)"


@dataclass(frozen=True, slots=True)
class ProcessSpans:
    """The spans of one process, on the home's clock.

    Attributes:
        process: its name.
        pid: its number on its machine.
        host: its machine's name.
        spans: in any order.
        threads: the threads' names.
        num_dropped: how many more spans it had.
        error_s: by how much its times may be wrong, in seconds.
    """

    process: str
    pid: int
    host: str
    spans: list[Span]
    threads: dict[int, str] = field(default_factory=dict)
    num_dropped: int = 0
    error_s: float = 0.0


def on_home_clock(content: SpanFileContent) -> ProcessSpans:
    """What a span file holds, with each time as the home's clock showed it."""
    clocks = content.clocks or [ClockNote(0.0, 0.0, 0.0)]
    since = [note.at for note in clocks]

    def shifted(span: Span) -> Span:
        offset_s = clocks[max(0, bisect.bisect_right(since, span.began) - 1)].offset_s
        return replace(span, began=span.began - offset_s, ended=span.ended - offset_s) if offset_s else span

    head = content.head
    error_s = max(note.error_s for note in clocks)
    still_open = [] if content.still_open is None else content.still_open.of_length(content.spans)
    spans = [shifted(span) for span in (*content.spans, *still_open)]
    return ProcessSpans(
        head.process, head.pid, head.host, spans, content.threads, content.num_dropped, error_s
    )


class Timeline:
    """The timeline of a job.

    Args:
        processes: their spans.
        missing: of what there are none, and why.
        dropped: how many spans more there were of processes of which there are none, or of others of these names.

    Attributes:
        num_written: how many spans `lines` has written.
        num_dropped: how many spans are not part of it, by process name: a rank that was restarted has one.
    """

    def __init__(
        self,
        processes: Sequence[ProcessSpans],
        missing: dict[str, str],
        dropped: Mapping[str, int] | None = None,
    ) -> None:
        self.num_written = 0
        self._processes = sorted(processes, key=lambda each: _place_of(each.process))
        self._missing = missing
        self.num_dropped = Counter(dropped or {})
        for each in self._processes:
            self.num_dropped[each.process] += each.num_dropped

    def lines(self, max_bytes: int, *, bare: bool = False) -> Iterator[bytes]:
        """The file, in pieces; of spans that would make it larger than `max_bytes`, the oldest are left out.

        Args:
            max_bytes: see above.
            bare: one event a line, and nothing around them.
        """
        kept = self._newest(max_bytes)
        begins = min((span.began for each in kept for span in each.spans), default=0.0)
        if not bare:
            yield b'{"displayTimeUnit":"ms","traceEvents":[\n'
        separator = b""
        for number, process in enumerate(kept, start=1):
            for event in process_events(process, number, begins):
                yield separator + _dumped(event)
                separator = b"\n" if bare else b",\n"
        self.num_written = sum(len(each.spans) for each in kept)
        if bare:
            yield b"\n"
            return
        about = {
            "dropped_spans": {name: count for name, count in self.num_dropped.items() if count},
            "clock_error_us": {each.process: round(1e6 * each.error_s, 1) for each in kept if each.error_s},
            "missing": self._missing,
        }
        yield b'\n],"otherData":' + _dumped(about) + b"}\n"

    def _newest(self, max_bytes: int) -> list[ProcessSpans]:
        """The same, with so many spans, of all the last ones, as there is room for."""
        room = max_bytes - sum(_HEAD_BYTES * (1 + len(each.threads)) for each in self._processes)
        newest: list[list[Span]] = [[] for _ in self._processes]
        latest_first = heapq.merge(
            *(_latest_first(place, each.spans) for place, each in enumerate(self._processes)),
            key=lambda each: each[1].ended,
            reverse=True,
        )
        for place, span in latest_first:
            room -= size_of(span)
            if room < 0:
                break
            newest[place].append(span)
        kept = []
        for each, spans in zip(self._processes, newest, strict=True):
            num_left_out = len(each.spans) - len(spans)
            self.num_dropped[each.process] += num_left_out
            kept.append(dataclasses.replace(each, spans=spans, num_dropped=each.num_dropped + num_left_out))
        return kept


def _latest_first(place: int, spans: Iterable[Span]) -> list[tuple[int, Span]]:
    return [(place, span) for span in sorted(spans, key=attrgetter("ended"), reverse=True)]


# What a process and a thread take in the file besides their spans, at most; and a span besides its texts.
_HEAD_BYTES, _SPAN_BYTES, _FLOW_BYTES, _FACT_BYTES = 400, 190, 150, 60


def size_of(span: Span) -> int:
    """How many bytes a span takes in the file, at most."""
    texts = len(_dumped(span.name)) + len(_dumped(span.by)) + len(_dumped(span.subject))
    texts += _FACT_BYTES * (span.is_open + len(span.versions) + (span.step is not None))
    return _SPAN_BYTES + texts + (_FLOW_BYTES + len(_dumped(span.subject))) * len(span.items)


def process_events(process: ProcessSpans, number: int, begins: float) -> Iterator[TraceEvent]:
    """The events of one process.

    Args:
        process: its spans.
        number: its number in the file.
        begins: the time that is zero there, in seconds.
    """
    yield _about("process_name", number, 0, f"{process.process} ({process.host}, {process.pid})")
    yield {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": {"sort_index": number}}
    labels = [f"{process.num_dropped} older spans dropped"] if process.num_dropped else []
    labels += [f"clock ± {1e6 * process.error_s:.0f} µs"] if process.error_s else []
    if labels:
        yield {
            "ph": "M",
            "name": "process_labels",
            "pid": number,
            "tid": 0,
            "args": {"labels": ", ".join(labels)},
        }
    track = 0
    for thread, spans in _by_thread(process.spans).items():
        for place, lane in enumerate(lanes(spans)):
            track += 1
            name = process.threads.get(thread, "events" if thread == _NO_THREAD else f"thread {thread}")
            yield _about("thread_name", number, track, f"{name} ({place + 1})" if place else name)
            for span in lane:
                yield from _span_events(span, number, track, begins)


def lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Spans of one thread in lanes: in each of them two spans nest, or one begins when the other has ended.

    What a thread does nests; what tasks of an event loop do, and operations that go on by themselves, does not.
    """
    found: list[tuple[list[Span], list[float]]] = []
    for span in sorted(spans, key=lambda span: (span.began, -span.ended)):
        lane, open_until = next((each for each in found if _fits(span, each[1])), ([], []))
        if not lane:
            found.append((lane, open_until))
        lane.append(span)
        open_until.append(span.ended)
    return [lane for lane, _ in found]


def _fits(span: Span, open_until: list[float]) -> bool:
    while open_until and open_until[-1] <= span.began:
        open_until.pop()
    return not open_until or span.ended <= open_until[-1]


def _by_thread(spans: Iterable[Span]) -> dict[int, list[Span]]:
    found: dict[int, list[Span]] = {}
    for span in spans:
        found.setdefault(span.thread, []).append(span)
    # The one with the calls first.
    return dict(sorted(found.items(), key=lambda each: not any(span.kind == CALL for span in each[1])))


def _span_events(span: Span, pid: int, tid: int, begins: float) -> Iterator[TraceEvent]:
    began = _microseconds(span.began - begins)
    if span.kind == EVENT:
        yield {
            "ph": "i",
            "s": "g",
            "name": span.name,
            "cat": EVENT,
            "ts": began,
            "pid": pid,
            "tid": tid,
            "args": {"text": span.subject},
        }
        return
    # Of no length it would be no slice, to which an arrow can go.
    ended = max(_microseconds(span.ended - begins), round(began + 0.001, 3))
    event = {
        "ph": "X",
        "name": _title(span),
        "cat": span.kind,
        "ts": began,
        "dur": round(ended - began, 3),
        "pid": pid,
        "tid": tid,
    }
    if span.kind in _COLOURS:
        event["cname"] = _COLOURS[span.kind]
    versions = {"unknown" if version is None else str(version): count for version, count in span.versions}
    args = {
        "by": span.by,
        "of": span.subject,
        "items": len(span.items),
        "open": span.is_open,
        "versions": versions,
    }
    told = {name: value for name, value in args.items() if value}
    if span.step is not None:
        told["step"] = span.step
    yield {**event, "args": told} if told else event
    flow = _FLOWS.get(span.kind)
    for producer, item in span.items if flow else ():
        yield {
            "ph": flow,
            "bp": "e",
            "name": span.subject,
            "cat": "flow",
            "id": _number_of(f"{span.subject}/{producer}/{item}"),
            # Inside of the slice, to which it belongs.
            "ts": began if flow == "s" else round(ended - 0.001, 3),
            "pid": pid,
            "tid": tid,
        }


def _number_of(flow: str) -> int:
    """A number for a flow: others than whole numbers, and larger ones than JSON is sure of, are not understood."""
    return int.from_bytes(hashlib.blake2b(flow.encode(), digest_size=6).digest(), "big")


def _title(span: Span) -> str:
    return f"{_what(span)}{_OPEN if span.is_open else ''}"


def _what(span: Span) -> str:
    if span.kind == WAIT:
        return f"waits in {span.name}"
    if span.kind in (CALL, PHASE, LINK):
        return span.name
    if span.kind == VALUE:
        return f"a value of {span.name}"
    return f"{span.name} '{span.subject}'"


def _about(name: str, pid: int, tid: int, value: str) -> TraceEvent:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": value}}


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def _dumped(value: Any) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError:  # of a path in why somebody is missing, say
        return json.dumps(value, separators=(",", ":")).encode()


def _place_of(process: str) -> tuple[bool, str, tuple[int, ...]]:
    """The driver first, then ranks by group and number."""
    return process != "driver", *process_order(process)


# A file that is called so has one event a line.
_LINES = ".jsonl"


def trace_file(path: Path, content: TraceContent) -> TraceFile:
    """A file that was written with that, as large as it is now."""
    about = msgspec.structs.asdict(content)
    return TraceFile(**{**about, "path": path, "size_bytes": path.stat().st_size})


def opened_file(path: Path) -> BinaryIO:
    """The file of a trace, to be written; compressed if it is called so."""
    return cast(BinaryIO, gzip.open(path, "wb")) if path.suffix == ".gz" else path.open("wb")


def written(
    path: Path,
    max_bytes: int,
    contents: Iterable[SpanFileContent],
    missing: dict[str, str],
    dropped: Mapping[str, int],
) -> TraceFile:
    """Write the file of a trace.

    Args:
        path: where.
        max_bytes: how large it may become.
        contents: of the processes' span files.
        missing: of which processes there is none, and why.
        dropped: how many spans were dropped with whole span files, by process.

    Raises:
        OSError: it cannot be written.
    """
    processes = [on_home_clock(content) for content in contents]
    timeline = Timeline(processes, missing, dropped)
    with opened_file(path) as file:
        file.writelines(timeline.lines(max_bytes, bare=_LINES in path.suffixes))
    num_dropped = {name: count for name, count in timeline.num_dropped.items() if count}
    errors_s = {each.process: each.error_s for each in processes if each.error_s}
    content = TraceContent(0, len(processes), timeline.num_written, num_dropped, errors_s, missing)
    return trace_file(path, content)
