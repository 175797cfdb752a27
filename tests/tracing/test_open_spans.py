"""What had not ended when a trace did, or when a process was killed, is in the trace."""

import ast
import asyncio
import contextlib
import contextvars
import inspect
import json
import threading
from contextlib import contextmanager

import pytest

from alarms import interrupted_at
from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.comm import handle, promise, waits
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside
from rlinf_scheduler.comm.waits import MESSAGE, OTHER, Cause, Wait, awaited, keeps_wait
from rlinf_scheduler.host import timing
from rlinf_scheduler.host.timing import Stopwatch, recording
from rlinf_scheduler.observe import timekeeping
from rlinf_scheduler.observe.timekeeping import CALL, PHASE, TIMES, WAIT, Span
from rlinf_scheduler.session import current_session
from rlinf_scheduler.tracing.service import TraceService
from rlinf_scheduler.tracing.span_file import SpanFileHead, SpanFileWriter, StillOpen, read_span_file, segment
from rlinf_scheduler.tracing.timeline import on_home_clock
from rlinf_scheduler.tracing.tracer import open_spans
from rlinf_scheduler.worker import result
from waits import wait_until

MIB = 1 << 20
MEASURING = (timing.__file__, timekeeping.__file__, contextlib.__file__)
DEADLINE_S = 60.0
HEAD = SpanFileHead("rollout:1", 4711, "node1", 0, 0)


@pytest.fixture
def service():
    with LocalRuntime():
        yield current_session().service(TraceService)
    TIMES.clear()


@awaited(lambda _local: Wait(OTHER, "a planted wait"))
def wait_for(promise):
    promise.wait(DEADLINE_S)


@contextmanager
def hanging():
    """A thread hangs in a phase of a call until the block ends."""
    promise = Promise()

    def hang():
        with recording({}, "train", "driver"), Stopwatch("learn"):
            wait_for(promise)

    thread = threading.Thread(target=hang, name="hangs")
    thread.start()
    try:
        wait_until(lambda: "a planted wait" in [span.name for span in open_spans()])
        yield
    finally:
        promise.set_result(None)
        thread.join(DEADLINE_S)


def slices(path):
    events = json.loads(path.read_text())["traceEvents"]
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found = [event for event in events if event["ph"] == "X"]
    return found, {event["name"]: threads[event["tid"]] for event in found}


def test_a_call_a_phase_and_a_wait_that_hang_are_drawn_to_the_end_as_open(service, tmp_path):
    with hanging():
        trace = service.begin(tmp_path / "run.json", MIB)
        with Stopwatch("goes on"):
            pass
        trace.stop()
    found, tracks = slices(tmp_path / "run.json")
    hung = {"train (open)", "learn (open)", "waits in a planted wait (open)"}
    assert {name for name, track in tracks.items() if track == "hangs"} == hung
    ends = {event["name"]: event["ts"] + event["dur"] for event in found}
    assert all(ends[name] > ends["goes on"] for name in hung)
    assert all(event["args"]["open"] for event in found if event["name"] in hung)


def test_what_has_ended_is_open_no_more(service, tmp_path):
    with hanging():
        pass
    assert not [span for span in open_spans() if span.name in ("train", "learn", "a planted wait")]


def test_a_wait_is_over_while_what_it_brought_is_read():
    seen = []

    def read(_value):
        own = threading.get_ident()  # other tests' threads may wait
        seen.append([span.name for span in open_spans() if span.kind == WAIT and span.thread == own])

    async def main():
        promise = Promise()
        asyncio.get_running_loop().call_later(0.01, promise.set_result, None)
        await handle.AsyncHandle(promise, read, "a planted read")

    asyncio.run(main())
    assert seen == [[]]


class Another(Promise):
    def cause(self):
        return Cause(OTHER, "another's wait")


@keeps_wait("kept")
def wait_unlike_others(event):
    began, kept = waits.now(), Another()
    threading.Event.wait(event, DEADLINE_S)
    waits.account(began, kept.cause(), "")


class Awaited(Promise):
    def awaits(self):
        return Wait(MESSAGE, "a planted message", peers=("rollout:0",))


def test_an_open_wait_tells_who_is_to_end_it():
    promise = Awaited()
    thread = threading.Thread(target=promise.wait_described, args=(DEADLINE_S,))
    thread.start()
    try:
        wait_until(
            lambda: ("a planted message", "rollout:0") in [(each.name, each.by) for each in open_spans()]
        )
    finally:
        promise.set_result(None)
        thread.join(DEADLINE_S)


def test_a_wait_is_found_in_the_variable_that_its_function_names():
    event = threading.Event()
    thread = threading.Thread(target=wait_unlike_others, args=(event,))
    thread.start()
    try:
        wait_until(lambda: "another's wait" in [span.name for span in open_spans()])
    finally:
        event.set()
        thread.join(DEADLINE_S)
    with pytest.raises(NameError, match="has no local variable 'other'"):
        keeps_wait("other")(wait_unlike_others)


def test_every_function_that_begins_a_wait_says_where_it_keeps_it():
    for module, source in ((each, inspect.getsource(each)) for each in (promise, handle, result)):
        functions = [
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        told = [
            (node.name, ast.unparse(node.decorator_list))
            for node in functions
            if any(isinstance(each, ast.Attribute) and each.attr == "account" for each in ast.walk(node))
        ]
        assert told, module
        assert all("keeps_wait(" in decorators for _, decorators in told), told


def test_what_an_interruption_cuts_short_anywhere_is_open_no_more():
    def work():
        with recording({}, "train", "driver"), Stopwatch("learn"):
            pass

    for number in range(10_000):
        if not contextvars.copy_context().run(interrupted_at, number, work, MEASURING):
            break
        assert TIMES.open == {}, f"interrupted at its instruction {number}"
    assert number > 100
    assert TIMES.open == {}


def test_an_operation_that_a_task_awaits_is_open():
    async def look(channel):
        getting = asyncio.ensure_future(wait_in_task(channel))
        await asyncio.sleep(0)
        seen = [each.name for each in open_spans() if each.kind == WAIT]
        await channel.put("item", async_op=True)
        await getting
        return seen

    async def wait_in_task(channel):
        return await channel.get(async_op=True)

    with LocalRuntime():
        assert "get('items')" in asyncio.run(look(Channel.create("items")))


def test_waits_of_the_librarys_own_threads_are_neither_counted_nor_traced(service, tmp_path):
    waited = Promise()

    def run():
        Promise().wait(0.01)
        waited.set_result(None)

    trace = service.begin(tmp_path / "run.json", MIB)
    run_beside(run)
    assert waited.wait(DEADLINE_S)
    trace.stop()
    here = test_waits_of_the_librarys_own_threads_are_neither_counted_nor_traced.__qualname__
    for told in (str(slices(tmp_path / "run.json")[0]), str(TIMES.waits)):
        assert "SpanFileThread" not in told
        assert f"{here}.<locals>.run" not in told


def test_a_thread_that_is_gone_before_it_is_written_has_its_name(service, tmp_path):
    trace = service.begin(tmp_path / "run.json", MIB)

    def learn():
        with Stopwatch("learn"):
            pass

    thread = threading.Thread(target=learn, name="a learner")
    thread.start()
    thread.join(DEADLINE_S)
    trace.stop()
    assert slices(tmp_path / "run.json")[1]["learn"] == "a learner"


def read(path):
    return on_home_clock(read_span_file([segment(path, 0).read_bytes()])).spans


def test_of_a_killed_process_there_is_what_was_open_when_it_said_so_last_and_has_not_ended(tmp_path):
    writer = SpanFileWriter(tmp_path / "p", HEAD, MIB)
    call, phase, wait = (
        Span(CALL, 1.0, 1.0, "train", 1),
        Span(PHASE, 2.0, 2.0, "learn", 1),
        Span(WAIT, 3, 3, "w", 1),
    )
    writer.note_open(StillOpen(5.0, [call, phase, wait]))
    ended = Span(WAIT, 3.0, 6.0, "w", 1)
    writer.write([ended])
    # Not what ended before another one of its name began.
    writer.write([Span(PHASE, 0.0, 1.0, "learn", 1)])
    still = [each for each in read(tmp_path / "p") if each.is_open]
    assert still == [
        Span(CALL, 1.0, 5.0, "train", 1, is_open=True),
        Span(PHASE, 2.0, 5.0, "learn", 1, is_open=True),
    ]
    writer.note_open(StillOpen(7.0, []))
    writer.close()
    assert not [each for each in read(tmp_path / "p") if each.is_open]


def test_what_is_open_is_said_again_in_each_segment(tmp_path):
    writer = SpanFileWriter(tmp_path / "p", HEAD, 4000)
    writer.note_open(StillOpen(5.0, [Span(CALL, 1.0, 1.0, "train", 1)]))
    for first in range(0, 600, 10):
        writer.write([Span(PHASE, n, n + 0.5, f"step {n}", 2) for n in range(first, first + 10)])
    writer.close()
    content = read_span_file([segment(tmp_path / "p", place).read_bytes() for place in (0, 1)])
    assert content.head.number > 1
    assert [span.name for span in on_home_clock(content).spans if span.is_open] == ["train"]
