"""What a trace becomes: a file, and what it has."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from rlinf_scheduler.observe.span_file import SpanFileContent
from rlinf_scheduler.observe.timeline import Timeline, on_home_clock


class TraceContent(msgspec.Struct, frozen=True):
    """What the file of a trace has.

    Attributes:
        size_bytes: how large it is.
        num_processes: how many processes are in it.
        num_spans: how many spans.
        num_dropped: how many spans are not in it, for want of room, by process.
        clock_error_s: by how much the times of another machine's processes may be wrong, in seconds, by process.
        missing: of which processes there is nothing, and why.
    """

    size_bytes: int
    num_processes: int
    num_spans: int
    num_dropped: dict[str, int]
    clock_error_s: dict[str, float]
    missing: dict[str, str]


class TraceFile(TraceContent, frozen=True, kw_only=True):
    """What a trace has written.

    Attributes:
        path: the file; for the others see `TraceContent`.
    """

    path: Path

    @property
    def content(self) -> TraceContent:
        """It, without where it is."""
        return TraceContent(*msgspec.structs.astuple(self)[: len(TraceContent.__struct_fields__)])


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
