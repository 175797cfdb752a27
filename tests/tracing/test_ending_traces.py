"""A trace ends once, whoever ends it and whoever comes or goes meanwhile."""

import errno
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from alarms import Interrupted
from rlinf.testing import LocalRuntime
from rlinf_scheduler.errors import ClusterTimeout, ConfigError
from rlinf_scheduler.host.timing import Stopwatch
from rlinf_scheduler.observe.job_trace import JobTrace
from rlinf_scheduler.observe.process_stats import Enlist
from rlinf_scheduler.observe.timekeeping import TIMES
from rlinf_scheduler.session import current_session
from rlinf_scheduler.tracing.service import TraceService
from rlinf_scheduler.tracing.tracer import TraceOn, Tracer
from waits import wait_until

MIB = 1 << 20
DEADLINE_S = 60.0


@pytest.fixture
def service():
    with LocalRuntime():
        yield current_session().service(TraceService)
    TIMES.clear()


def phases(path):
    events = json.loads(path.read_text())["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == "phase"]


def test_two_who_end_a_trace_at_once_get_the_same_file(service, tmp_path):
    trace = service.begin(tmp_path / "run.json", MIB)
    with Stopwatch("learn"):
        pass
    both = threading.Barrier(2)

    def stop():
        both.wait(DEADLINE_S)
        return trace.stop()

    with ThreadPoolExecutor(2) as threads:
        first, second = [each.result(DEADLINE_S) for each in [threads.submit(stop), threads.submit(stop)]]
    assert first is second
    assert (tmp_path / "run.json").stat().st_mode & 0o777 == 0o600
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert "learn" in [event["name"] for event in events]


def test_of_two_who_begin_a_trace_at_once_one_is_refused(service, tmp_path, monkeypatch):
    on_io_thread, refused = service._on_io_thread, []

    def begin_another(step):
        monkeypatch.setattr(service, "_on_io_thread", on_io_thread)
        with pytest.raises(ConfigError, match=r"traced already, to .*run\.json") as other:
            service.begin(tmp_path / "other.json", MIB)
        refused.append(other)
        return on_io_thread(step)

    monkeypatch.setattr(service, "_on_io_thread", begin_another)
    with service.begin(tmp_path / "run.json", MIB), Stopwatch("learn"):
        assert refused
    assert phases(tmp_path / "run.json") == ["learn"]
    assert not (tmp_path / "other.json").exists()


def closers(session):
    return [list(each) for each in (session._first_closers, session._closers, session._fork_callbacks)]


def test_a_trace_that_is_over_leaves_nothing_to_be_closed(service, tmp_path):
    session = current_session()
    service.begin(tmp_path / "first.json", MIB).stop()
    before = closers(session)
    for number in range(3):
        service.begin(tmp_path / f"{number}.json", MIB).stop()
    assert closers(session) == before


def test_a_process_that_hears_of_no_end_has_the_last_trace_to_close_and_no_other(service):
    session, tracer = current_session(), service._tracer
    sizes = []
    for number in range(3):
        opened = tracer.open(TraceOn(f"{number}", MIB, MIB))
        service._on_io_thread(partial(tracer.begin, opened))
        sizes.append([len(each) for each in closers(session)])
    assert sizes[0] == sizes[1] == sizes[2]


def test_a_trace_whose_beginning_was_interrupted_goes_on_nowhere(service, tmp_path, monkeypatch):
    on_io_thread = service._on_io_thread

    def interrupted(step):
        on_io_thread(step)
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(service, "_on_io_thread", interrupted)
        with pytest.raises(Interrupted):
            service.begin(tmp_path / "lost.json", MIB)
    wait_until(lambda: TIMES.span_file is None)
    with service.begin(tmp_path / "run.json", MIB), Stopwatch("learn"):
        pass
    assert phases(tmp_path / "run.json") == ["learn"]


def test_a_trace_that_cannot_be_begun_leaves_room_for_another(service, tmp_path):
    with pytest.raises(FileNotFoundError):
        service.begin(tmp_path / "nowhere" / "run.json", MIB)
    with service.begin(tmp_path / "run.json", MIB), Stopwatch("learn"):
        pass
    assert phases(tmp_path / "run.json") == ["learn"]


def test_an_error_in_the_block_is_not_hidden_by_a_full_disk(service, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "no space left")

    def trace_one(error):
        with service.begin(tmp_path / "run.json", MIB) as trace:
            traces.append(trace)
            with Stopwatch("in the first"):
                pass
            if error is not None:
                raise error

    traces = []
    with monkeypatch.context() as patch:
        patch.setattr("rlinf_scheduler.tracing.service.written", full)
        with pytest.raises(ZeroDivisionError):
            trace_one(ZeroDivisionError())
        with pytest.raises(OSError, match="no space left"):
            trace_one(None)
    # There is room again, and another trace goes on meanwhile.
    with Stopwatch("in no trace"):
        pass
    other = service.begin(tmp_path / "other.json", MIB)
    with Stopwatch("in the other"):
        pass
    assert traces[-1].stop().path == tmp_path / "run.json"
    with pytest.raises(ConfigError, match=r"traced already, to .*other\.json"):
        service.begin(tmp_path / "third.json", MIB)
    other.stop()
    assert phases(tmp_path / "run.json") == ["in the first"]
    assert phases(tmp_path / "other.json") == ["in the other"]


def test_who_comes_while_a_trace_ends_is_not_told_to_write_one(service, tmp_path, monkeypatch):
    late, told = Enlist(current_session().messenger.endpoint, 1, 0), []
    monkeypatch.setattr(service, "_tell", lambda name, *_: told.append(name))
    tell_end = service._tell_end

    def come_late(*arguments):
        service._on_io_thread(lambda: service._on_enlisted("late:0", late))
        return tell_end(*arguments)

    monkeypatch.setattr(service, "_tell_end", come_late)
    trace = service.begin(tmp_path / "run.json", MIB)
    service._on_io_thread(lambda: service._on_enlisted("early:0", late))
    trace.stop()
    assert told == ["early:0"]


def test_a_trace_that_another_thread_ends_while_it_is_noted_what_is_open_just_ends(
    service, tmp_path, monkeypatch
):
    tracer = current_session().service(Tracer)

    def ended_meanwhile():
        with ThreadPoolExecutor(1) as threads:
            threads.submit(tracer.end, tracer._trace_id).result(DEADLINE_S)
        return []

    with service.begin(tmp_path / "run.json", MIB):
        monkeypatch.setattr("rlinf_scheduler.tracing.tracer.open_spans", ended_meanwhile)
        service._on_io_thread(partial(tracer._note_open, tracer._trace_id))
        assert tracer._span_file is None


@pytest.mark.parametrize("timeout_s", [float("inf"), -1.0])
def test_a_trace_ends_with_any_deadline(tmp_path, timeout_s):
    given = []
    JobTrace(tmp_path / "run.json", given.append).stop(timeout_s)
    assert given == [max(0.0, timeout_s)]


def test_who_ends_a_trace_that_another_thread_is_ending_waits_no_longer_than_it_says(tmp_path):
    begun, goes_on = threading.Event(), threading.Event()

    def finish(timeout_s):
        begun.set()
        assert goes_on.wait(DEADLINE_S)
        return f"written within {timeout_s:.0f} s"

    trace = JobTrace(tmp_path / "run.json", finish)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(trace.stop, DEADLINE_S)
        try:
            assert begun.wait(DEADLINE_S)
            with pytest.raises(ClusterTimeout, match=r"run\.json is not written after 0 s: another thread"):
                trace.stop(0.01)
        finally:
            goes_on.set()
        assert first.result(DEADLINE_S) == trace.stop(0.0) == "written within 60 s"
