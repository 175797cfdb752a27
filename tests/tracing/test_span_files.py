"""What a process writes of its spans can be read again: the last ones, whatever there was, and however it ended."""

import fcntl
import os
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from disks import PAGE_BYTES
from effort import tries
from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.comm.rundir import RunDirectory
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.observe.timekeeping import CALL, PUT, TIMES, Span, at_step
from rlinf_scheduler.tracing import span_file
from rlinf_scheduler.tracing.span_file import (
    ClockNote,
    SpanFileHead,
    SpanFileThread,
    SpanFileWriter,
    StillOpen,
    dropped_whole,
    read_span_file,
    segment,
)
from rlinf_scheduler.tracing.span_file_folder import (
    DROPPED_NAME,
    LOCK_NAME,
    drop_oldest,
    drop_span_files,
    folder_of,
    hold_folder,
    hold_span_file,
)
from rlinf_scheduler.tracing.tracer import (
    CLOCK,
    SPAN_FILES,
    TRACE,
    DropSpanFiles,
    ReadSpanFile,
    RoundTrip,
    TraceOff,
    TraceOn,
    Tracer,
    offset_of,
)
from waits import wait_until

MIB = 1 << 20
HEAD = SpanFileHead("rollout:1", 4711, "node1", 0, 0)


def spans(first, count):
    return [Span(CALL, number, number + 0.5, f"step {number}", 1) for number in range(first, first + count)]


def read(path):
    files = [segment(path, place) for place in (1, 0)]
    return read_span_file([file.read_bytes() for file in files if file.exists()])


def test_what_was_written_is_read(tmp_path):
    writer = SpanFileWriter(tmp_path / "p", HEAD, 1 << 20)
    writer.note_threads({1: "MainThread"})
    writer.note_clock(ClockNote(1.0, 0.25, 0.001))
    writer.write(spans(0, 3))
    writer.note_threads({1: "MainThread", 2: "rlinf-call-1"})
    writer.close()
    content = read(tmp_path / "p")
    assert content.spans == spans(0, 3)
    assert content.threads == {1: "MainThread", 2: "rlinf-call-1"}
    assert content.clocks == [ClockNote(1.0, 0.25, 0.001)]
    assert content.head == HEAD


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("name", "shown"), [("\ud800", "\\ud800"), (Name("learn"), "learn"), (Path("a"), "a")]
)
def test_names_that_cannot_be_encoded_are_written_so_that_they_can(tmp_path, name, shown):
    thread = SpanFileThread(SpanFileWriter(tmp_path / "p", HEAD, 1 << 20), "rollout:1")
    thread.add(Span(CALL, 0.0, 0.5, name, 1, items=(("env:0", 7),)))
    thread.note_open(StillOpen(1.0, [Span(CALL, 1.0, 1.0, name, 1)]))
    thread.add(spans(1, 1)[0])
    thread._names[1] = name
    thread.end()
    assert thread.ended.wait(60)
    content = read(tmp_path / "p")
    assert [span.name for span in (*content.spans, *content.still_open.spans)] == [shown, "step 1", shown]
    assert content.spans[0].items == (("env:0", 7),)
    assert content.threads == {1: shown}


@pytest.mark.parametrize(
    ("said", "noted"),
    [(np.int64(7), 7), (-1, -1), (2.5, None), ("warm-up", None), (1 << 70, None), (True, None)],
)
def test_whatever_a_program_calls_its_step_no_span_is_lost(tmp_path, said, noted):
    thread = SpanFileThread(SpanFileWriter(tmp_path / "p", HEAD, 1 << 20), "rollout:1")
    TIMES.trace(thread.add)
    try:
        with at_step(said):
            TIMES.note_moved(PUT, 0.0, "put", "items")
        TIMES.note_moved(PUT, 0.0, "put", "items")
    finally:
        TIMES.trace(None)
    thread.end()
    assert thread.ended.wait(60)
    assert [span.step for span in read(tmp_path / "p").spans] == [noted, None]


def test_what_is_not_understood_hides_nothing_that_follows(tmp_path):
    writer = SpanFileWriter(tmp_path / "p", HEAD, 1 << 20)
    writer.write([Span(CALL, 0.0, 0.5, None, 1)])
    writer.write(spans(0, 3))
    writer.close()
    assert read(tmp_path / "p").spans == spans(0, 3)


def test_only_its_user_can_read_it(tmp_path):
    SpanFileWriter(tmp_path / "p", HEAD, 1 << 20).close()
    assert segment(tmp_path / "p", 0).stat().st_mode & 0o777 == 0o600


@settings(max_examples=tries(30))
@given(st.lists(st.integers(1, 200), max_size=8), st.integers(2000, 5000))
def test_the_last_spans_are_kept_within_the_bound_and_the_others_counted(
    tmp_path_factory, batches, max_bytes
):
    path = tmp_path_factory.mktemp("spans") / "p"
    writer = SpanFileWriter(path, HEAD, max_bytes)
    written = 0
    for count in batches:
        writer.write(spans(written, count))
        written += count
    writer.close()
    content = read(path)
    # The last ones, without a gap, and all others counted.
    assert content.spans == spans(written - len(content.spans), len(content.spans))
    assert content.num_dropped == writer.num_dropped == written - len(content.spans)
    assert sum(segment(path, place).stat().st_size for place in (0, 1) if segment(path, place).exists()) <= (
        max_bytes + 200
    )


def test_a_span_that_has_no_room_is_dropped_and_counted(tmp_path):
    writer = SpanFileWriter(tmp_path / "p", HEAD, 2000)
    items = tuple(("rollout:1", number) for number in range(4096))
    writer.write([*spans(0, 1), Span(CALL, 1, 2, "large", 1, items=items), *spans(1, 1)])
    writer.close()
    assert read(tmp_path / "p").spans == spans(0, 2)
    assert read(tmp_path / "p").num_dropped == writer.num_dropped == 1


@settings(max_examples=tries(30))
@given(st.integers(0, 2000))
def test_a_process_that_was_killed_while_it_wrote_leaves_what_was_before(tmp_path_factory, length):
    path = tmp_path_factory.mktemp("spans") / "p"
    writer = SpanFileWriter(path, HEAD, 1 << 20)
    for first in range(0, 30, 3):
        writer.write(spans(first, 3))
    writer.close()
    content = read_span_file([segment(path, 0).read_bytes()[:length]])
    if content is not None:
        assert content.spans == spans(0, len(content.spans))


def test_a_share_that_becomes_smaller_is_kept_from_then_on(tmp_path):
    writer = SpanFileWriter(tmp_path / "p", HEAD, 1 << 20)
    writer.write(spans(0, 1000))
    writer.max_bytes = 2000
    for first in range(1000, 1200, 10):
        writer.write(spans(first, 10))
    writer.close()
    assert sum(segment(tmp_path / "p", place).stat().st_size for place in (0, 1)) < 4000
    assert read(tmp_path / "p").spans[-1].name == "step 1199"


def test_where_the_disk_is_full_spans_are_dropped_and_the_rest_is_read(small_disk):
    writer = SpanFileWriter(small_disk.path / "p", HEAD, 1 << 20)
    writer.write(spans(0, 3))
    for first in (3, 1006):
        small_disk.fill(leave_bytes=PAGE_BYTES)  # a part of it is written
        writer.write(spans(first, 1000))
        small_disk.clear()
        writer.write(spans(first + 1000, 3))
    writer.close()
    content = read(small_disk.path / "p")
    assert content.spans == spans(0, 3) + spans(1003, 3) + spans(2006, 3)
    assert content.num_dropped == writer.num_dropped == 2000


def test_what_is_said_once_is_written_when_there_is_room_again(small_disk):
    writer = SpanFileWriter(small_disk.path / "p", HEAD, 1 << 20)
    writer.write(spans(0, 1000))
    small_disk.fill()
    writer.note_clock(ClockNote(1.0, 0.25, 0.001))
    writer.note_threads({1: "MainThread" * 1000})
    writer.note_open(StillOpen(1.0, spans(9, 1000)))
    small_disk.clear()
    writer.write(spans(1000, 1))
    writer.close()
    content = read(small_disk.path / "p")
    assert content.clocks == [ClockNote(1.0, 0.25, 0.001)]
    assert content.threads == {1: "MainThread" * 1000}
    assert content.still_open == StillOpen(1.0, spans(9, 1000))
    assert content.spans == spans(0, 1001)


def test_a_segment_that_begins_on_a_full_disk_is_read_from_when_there_was_room(small_disk):
    small_disk.fill()
    writer = SpanFileWriter(small_disk.path / "p", HEAD, 4000)
    writer.write(spans(0, 10))
    small_disk.clear()
    writer.write(spans(10, 10))
    writer.close()
    content = read(small_disk.path / "p")
    assert content.spans == spans(10, 10)
    assert content.num_dropped == writer.num_dropped == 10


def test_a_disk_that_has_no_room_for_another_file_ends_no_trace(small_disk):
    writer = SpanFileWriter(small_disk.path / "p", HEAD, 4000)
    writer.write(spans(0, 20))
    small_disk.fill_with_files()
    writer.write(spans(20, 20))
    writer.write(spans(40, 20))
    small_disk.clear()
    writer.write(spans(60, 20))
    writer.close()
    content = read(small_disk.path / "p")
    assert content.spans[-20:] == spans(60, 20)
    assert len(content.spans) + content.num_dropped == 80


def test_what_gathers_faster_than_it_is_written_goes_and_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(span_file, "MAX_GATHERED", 10)
    monkeypatch.setattr(span_file, "FLUSH_S", 60.0)
    thread = SpanFileThread(SpanFileWriter(tmp_path / "p", HEAD, 1 << 20), "rollout:1")
    for span in spans(0, 25):
        thread.add(span)
    thread.note_clock(ClockNote(1.0, 0.25, 0.001))
    thread.end()
    assert thread.ended.wait(60)
    content = read(tmp_path / "p")
    assert content.spans == spans(15, 10)
    assert content.num_dropped == 15
    assert content.clocks == [ClockNote(1.0, 0.25, 0.001)]


def test_no_io_thread_stands_while_a_disk_takes_nothing(tmp_path, monkeypatch):
    disk, stands = threading.Event(), threading.Event()

    def write(self, _spans):
        stands.set()
        assert disk.wait(60)

    monkeypatch.setattr(SpanFileWriter, "write", write)
    try:
        with LocalRuntime() as runtime:
            tracer = runtime.service(Tracer)
            tracer.begin(tracer.open(TraceOn("a1", 4000, MIB)))
            TIMES.note_moved(PUT, 0.0, "put", "items")
            assert stands.wait(60)
            assert Channel.create("items").empty()
            disk.set()
            assert tracer.end("a1").wait(60)
            drop_span_files(folder_of("a1", runtime.messenger.endpoint.machine_id))
    finally:
        disk.set()
        TIMES.clear()


@contextmanager
def writing(folder, number, max_bytes=20_000):
    """A process that writes a span file, until the block ends."""
    span_file = folder / f"p{number}"
    lock_fd = hold_span_file(span_file)
    writer = SpanFileWriter(span_file, replace(HEAD, process=f"rollout:{number % 2}"), max_bytes)
    try:
        yield writer
    finally:  # as the kernel does for one that is killed
        os.close(lock_fd)
    writer.close()


def segments_of(folder):
    """The bytes of the segments of each span file in a folder, by its name."""
    found = {}
    for path in folder.iterdir():
        found.setdefault(path.stem, []).append(path.read_bytes())
    return found


def kept_in(folder):
    """The spans that can be read in a folder, as numbers, and how many were dropped, by process name."""
    files = segments_of(folder)
    dropped = Counter(dropped_whole(*files.pop(Path(DROPPED_NAME).stem, [b""])))
    contents = [read_span_file(segments) for segments in files.values()]
    for content in contents:
        dropped[content.head.process] += content.num_dropped
    return sorted(int(span.began) for content in contents for span in content.spans), dropped


@settings(max_examples=tries(20))
@given(st.lists(st.integers(1, 400), min_size=1, max_size=30), st.integers(0, 60_000))
def test_what_dead_processes_wrote_is_bounded_and_its_oldest_goes_and_is_counted(
    tmp_path_factory, sizes, max_bytes
):
    folder = tmp_path_factory.mktemp("trace")
    written_by = []
    for number, count in enumerate(sizes):
        written = len(written_by)
        with writing(folder, number) as writer:
            for first in range(written, written + count, 20):
                writer.write(spans(first, min(20, written + count - first)))
        for path in folder.glob(f"p{number}.*"):  # the clock of files stands for milliseconds
            os.utime(path, (number, number))
        written_by += [f"rollout:{number % 2}"] * count
        drop_oldest(folder, max_bytes)
        span_files = [path for path in folder.iterdir() if path.name != DROPPED_NAME]
        assert sum(path.stat().st_size for path in span_files) <= max_bytes
        kept, dropped = kept_in(folder)
        # The last ones, and all others counted.
        assert kept == list(range(len(written_by) - len(kept), len(written_by)))
        assert dropped == Counter(written_by[: len(written_by) - len(kept)])


def test_what_a_living_process_writes_is_not_taken_for_what_a_dead_one_left(tmp_path):
    with writing(tmp_path, 0) as living:
        living.write(spans(0, 10))
        with writing(tmp_path, 1) as other:
            other.write(spans(10, 10))
        drop_oldest(tmp_path, 0)
        living.write(spans(20, 10))
        kept, dropped = kept_in(tmp_path)
        assert kept == [*range(10), *range(20, 30)]
        assert dropped == {"rollout:0": 0, "rollout:1": 10}
    drop_oldest(tmp_path, 0)
    assert kept_in(tmp_path) == ([], {"rollout:0": 20, "rollout:1": 10})


def test_what_is_written_within_one_tick_of_the_clock_goes_in_its_order(tmp_path):
    with writing(tmp_path, 0) as writer:
        for first in range(0, 1200, 20):
            writer.write(spans(first, 20))
    files = list(tmp_path.glob("p0.*"))
    for path in files:
        os.utime(path, (1, 1))
    drop_oldest(tmp_path, max(path.stat().st_size for path in files) + PAGE_BYTES)
    kept, dropped = kept_in(tmp_path)
    assert kept == list(range(1200 - len(kept), 1200))
    assert 0 < len(kept) == 1200 - dropped["rollout:0"]


def test_of_two_processes_that_begin_at_once_one_makes_room(tmp_path):
    with writing(tmp_path, 0) as writer:
        writer.write(spans(0, 10))
    at_it = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(at_it, fcntl.LOCK_EX)
    drop_oldest(tmp_path, 0)
    assert len(kept_in(tmp_path)[0]) == 10
    os.close(at_it)
    drop_oldest(tmp_path, 0)
    assert kept_in(tmp_path)[0] == []


@pytest.fixture
def traced():
    """A process of which others ask what it has traced."""
    with LocalRuntime() as runtime:
        runtime.service(Tracer)
        folder = folder_of("a2", runtime.messenger.endpoint.machine_id)
        yield runtime.messenger, folder
        drop_span_files(folder)


def asked(messenger, service, head):
    return messenger.request(messenger.endpoint, service, head, timeout_s=60, reply_type=None)


def assert_goes_on(messenger):
    assert CLOCK.answer(CLOCK.ask(messenger, messenger.endpoint, timeout_s=60).result())


def test_a_process_goes_on_while_the_folder_of_its_trace_is_being_removed(traced):
    messenger, folder = traced
    with (folder / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as who removes it has
        asked_for = [
            TRACE.ask(messenger, messenger.endpoint, TraceOn("a2", size, MIB), timeout_s=60)
            for size in (4000, 5000)
        ]
        assert_goes_on(messenger)
        assert not any(each.done() for each in asked_for)
    for each in asked_for:
        each.result(60)
    assert TIMES.span_file is not None
    TRACE.ask(messenger, messenger.endpoint, TraceOff("a2"), timeout_s=60).result(60)
    assert TIMES.span_file is None


def test_what_a_process_does_before_its_span_file_is_open_is_traced(traced):
    messenger, folder = traced
    with (folder / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        begun = TRACE.ask(messenger, messenger.endpoint, TraceOn("a2", 4000, MIB), timeout_s=60)
        assert_goes_on(messenger)
        for span in spans(0, 3):
            TIMES.span_file(span)
    begun.result(60)
    TRACE.ask(messenger, messenger.endpoint, TraceOff("a2"), timeout_s=60).result(60)
    written = read(folder / messenger.endpoint.process_id).spans
    assert [span for span in written if span in spans(0, 3)] == spans(0, 3)


def test_a_trace_that_is_over_before_its_span_file_is_open_is_not_begun(traced):
    messenger, folder = traced
    with (folder / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        begun = TRACE.ask(messenger, messenger.endpoint, TraceOn("a2", 4000, MIB), timeout_s=60)
        TRACE.ask(messenger, messenger.endpoint, TraceOff("a2"), timeout_s=60).result(60)
        begun.result(60)
    wait_until(lambda: list(folder.glob("*0")))  # it was opened, and is closed at once
    assert_goes_on(messenger)
    wait_until(lambda: TIMES.span_file is None)


def test_a_process_goes_on_while_its_disk_does_not_give_a_span_file(traced):
    messenger, folder = traced
    os.mkfifo(folder / "slow")  # nobody writes to it
    slow = asked(messenger, SPAN_FILES, ReadSpanFile("a2", "slow", 0, 100))
    assert_goes_on(messenger)
    (folder / "slow").open("wb").close()
    with pytest.raises(OSError, match="not seekable"):
        slow.result(60)
    with pytest.raises(ClusterError, match="is no span file"):
        asked(messenger, SPAN_FILES, ReadSpanFile("a2", "../slow", 0, 100)).result(60)
    asked(messenger, SPAN_FILES, DropSpanFiles("a2")).result(60)
    assert not folder.exists()


def test_the_thread_that_writes_is_in_no_trace_and_counts_no_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(span_file, "FLUSH_S", 0.001)
    flushed = []
    note_threads = SpanFileWriter.note_threads
    monkeypatch.setattr(SpanFileWriter, "note_threads", lambda *about: flushed.append(note_threads(*about)))
    thread = SpanFileThread(SpanFileWriter(tmp_path / "p", HEAD, 1 << 20), "rollout:1")
    TIMES.clear()
    TIMES.trace(thread.add)
    try:
        for number in range(3):
            thread.add(spans(number, 1)[0])
            wait_until(lambda: len(flushed) > number)  # noqa: B023 - it is called here
        assert TIMES.waits == {}
    finally:
        TIMES.clear()
    thread.end()
    assert thread.ended.wait(60)
    assert read(tmp_path / "p").spans == spans(0, 3)


def test_nothing_is_read_of_what_is_no_span_file():
    assert read_span_file([]) is None
    assert read_span_file([b"", b"\x05\x00\x00\x00hello"]) is None


@settings(max_examples=tries(30))
@given(
    st.floats(-1e6, 1e6),
    st.lists(st.tuples(st.floats(0, 1e3), st.floats(1e-6, 1), st.floats(1e-6, 1)), min_size=1, max_size=8),
)
def test_clocks_differ_by_what_was_found_give_or_take_the_error(offset_s, delays):
    trips = [
        RoundTrip(at + offset_s, at + there_s, at + there_s + back_s + offset_s)
        for at, there_s, back_s in delays
    ]
    found = offset_of(trips)
    assert found.seconds == pytest.approx(offset_s, abs=found.error_s + 1e-6)


def test_an_empty_folder_of_a_trace_is_taken_away_as_others_are(monkeypatch):
    left, young = folder_of("a2", "m1"), folder_of("a3", "m1")
    try:
        os.utime(left, (0, 0))
        RunDirectory().close()
        assert not left.exists()
        assert young.exists()
    finally:
        drop_span_files(young)


def test_a_folder_that_is_taken_away_before_it_is_held_is_made_again(monkeypatch):
    folder, take_away = folder_of("a4", "m1"), [True]
    drop_span_files(folder)  # what another run that was ended has left
    folder.mkdir(mode=0o700)
    open_file = os.open

    def open_late(path, *about, **options):
        if take_away.pop() if take_away else False:
            folder.rmdir()
        return open_file(path, *about, **options)

    monkeypatch.setattr(os, "open", open_late)
    try:
        os.close(hold_folder(folder))
        assert not take_away
        assert folder.exists()
    finally:
        drop_span_files(folder)
