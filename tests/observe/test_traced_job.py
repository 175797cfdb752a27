"""A job of real processes is reported on and traced: also a rank that has left, and one that was killed."""

import gzip
import json
import os
import shutil
import signal
import time

import jsonschema
import pytest
from timed_workers import CHANNEL, Collector, Learner

from forked_job import ForkedJob
from job_processes import THERE, Job, stay
from rlinf.scheduler import Channel, PackedPlacementStrategy
from rlinf.testing import LocalRuntime
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.events import WorkerLost
from rlinf_scheduler.observe.report import ask_report, thing_text
from rlinf_scheduler.observe.timekeeping import CALL, PUT, TIMES, Span
from rlinf_scheduler.tracing.service import TraceService
from rlinf_scheduler.tracing.span_file import SpanFileThread, read_span_file
from rlinf_scheduler.tracing.span_file_folder import folder_of, span_files_in
from rlinf_scheduler.tracing.tracer import TraceOn, Tracer
from waits import wait_until

DEADLINE_S = 60.0
MIB = 1 << 20
# What "Trace Event Format" says of the events that are used here.
NUMBER, TEXT, WHOLE = {"type": "number"}, {"type": "string"}, {"type": "integer", "minimum": 0}
EVENT_SCHEMA = {
    "type": "object",
    "required": ["ph", "name", "pid", "tid"],
    "properties": {
        "name": TEXT,
        "cat": TEXT,
        "pid": WHOLE,
        "tid": WHOLE,
        "ts": {"type": "number", "minimum": 0},
    },
    "oneOf": [
        {
            "properties": {"ph": {"const": "X"}, "dur": {"type": "number", "minimum": 0}},
            "required": ["ts", "dur"],
        },
        {
            "properties": {"ph": {"enum": ["s", "t", "f"]}, "id": WHOLE, "bp": {"const": "e"}},
            "required": ["ts", "id", "cat"],
        },
        {"properties": {"ph": {"const": "i"}, "s": {"enum": ["g", "p", "t"]}}, "required": ["ts", "s"]},
        {"properties": {"ph": {"const": "M"}}, "required": ["args"]},
    ],
}
SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {"traceEvents": {"type": "array", "items": EVENT_SCHEMA}},
}


@pytest.fixture(scope="module")
def launched():
    job = ForkedJob()
    with job.starting():
        placed = PackedPlacementStrategy(0, 2)
        rollout = Collector.create_group().launch(job, placed, name="rollout", on_failure="ignore")
        actor = Learner.create_group().launch(job, PackedPlacementStrategy(0, 0), name="actor")
        Channel.create(CHANNEL)
    yield job, (rollout, actor)
    job.close()


class Traced:
    """What the file of a trace has."""

    def __init__(self, path):
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt") as file:
            self.data = json.load(file)
        jsonschema.Draft202012Validator(SCHEMA).validate(self.data)
        self.events = self.data["traceEvents"]
        about = (e for e in self.events if e["name"] == "process_name")
        self.processes = {e["pid"]: e["args"]["name"].partition(" ")[0] for e in about}

    def slices(self, process, category):
        return [
            e
            for e in self.events
            if e["ph"] == "X" and e["cat"] == category and self.processes[e["pid"]] == process
        ]

    def flows(self, name):
        """Phases of each flow of that name, in time, with the processes that they are in."""
        found = {}
        for event in sorted(
            (e for e in self.events if e.get("cat") == "flow" and e["name"] == name), key=lambda e: e["ts"]
        ):
            found.setdefault(event["id"], []).append((event["ph"], self.processes[event["pid"]]))
        return list(found.values())

    def check_nesting(self):
        """In each track slices nest, as the format wants it; in whole nanoseconds."""
        tracks = {}
        for event in self.events:
            if event["ph"] == "X":
                begins = round(1000 * event["ts"])
                track = tracks.setdefault((event["pid"], event["tid"]), [])
                track.append((begins, -(begins + round(1000 * event["dur"]))))
        for track in tracks.values():
            open_until = []
            for begins, negative_end in sorted(track):
                while open_until and open_until[-1] <= begins:
                    open_until.pop()
                assert not open_until or -negative_end <= open_until[-1]
                open_until.append(-negative_end)


def run_steps(rollout, actor, steps=3):
    """Each step is of six items of rollout:1, for which the actor waits."""
    channel = Channel.connect(CHANNEL)
    for _ in range(steps):
        updating = actor.update(6)
        wait_until(lambda: "waits  actor:0" in str(channel.explain()))
        rollout.execute_on(1).collect(6, 0.004).wait(DEADLINE_S)
        assert updating.wait(DEADLINE_S) == [6]


def test_a_report_says_what_a_step_waits_for(job, groups):
    rollout, actor = groups
    run_steps(rollout, actor)
    found = ask_report(job.session, "actor.update")
    assert found.step.count == 3
    (wait,) = [wait for wait in found.step.waits if wait.subject == CHANNEL]
    assert list(wait.ended_by) == ["rollout:1"]
    assert thing_text(wait) == f"{CHANNEL} of rollout:1"
    assert ("rollout", "collect: simulate") in [(part.group, part.what) for part in found.step.path]
    assert sum(part.share for part in found.step.path) == pytest.approx(1)
    groups = {group.name: group for group in found.groups}
    collect = groups["rollout"].methods[0]
    assert (collect.spent.count, collect.phases[0].phase, collect.phases[0].spent.count) == (
        3,
        "simulate",
        18,
    )
    assert {phase.phase for phase in groups["actor"].methods[0].phases} == {"learn", "learn/forward"}
    assert groups["driver"].waiting > 0
    assert str(found).count("\n") > 8


def test_a_step_that_nobody_called_is_told_with_what_was(job):
    with pytest.raises(ConfigError, match=r"report\(step='actor.learn'\)"):
        ask_report(job.session, "actor.learn")


def test_a_trace_has_calls_phases_waits_items_and_weights(job, groups, tmp_path):
    rollout, actor = groups
    service = job.session.service(TraceService)
    with service.begin(tmp_path / "run.json.gz", MIB) as trace:
        run_steps(rollout, actor, 2)
        rollout.execute_on(0).collect(1, 0.0).wait(DEADLINE_S)
        assert actor.take_on_lease().wait(DEADLINE_S) == [(0, 0)]
        with pytest.raises(ConfigError, match="traced already"):
            service.begin(tmp_path / "other", MIB)
    assert not (tmp_path / "other").exists()
    traced = Traced(tmp_path / "run.json.gz")
    assert trace.file.num_processes == len(traced.processes) == 6  # the driver, four ranks, and the channel's
    assert trace.file.missing == {}
    traced.check_nesting()
    assert [e["name"] for e in traced.slices("actor:0", "call")] == ["update", "update", "take_on_lease"]
    assert {e["name"] for e in traced.slices("actor:0", "phase")} == {"learn", "forward"}
    assert len(traced.slices("rollout:1", "phase")) == 12
    waits = traced.slices("actor:0", "wait")
    assert {e["cname"] for e in waits} == {"grey"}
    ended_by = {(e["name"], e.get("args", {}).get("by")) for e in waits}
    assert ("waits in get_batch('trajectories')", "rollout:1") in ended_by
    flows = traced.flows(CHANNEL)
    assert flows.count([("s", "rollout:1"), ("t", "actor:0")]) == 12
    assert [("s", "rollout:0"), ("t", "actor:0"), ("f", "actor:0")] in flows
    assert traced.flows("policy") == [[("s", "actor:0")], [("s", "actor:0")]]
    assert TIMES.span_file is None
    assert trace.stop() is trace.file


def test_a_killed_rank_is_in_the_trace_and_its_times_are_missing_in_the_report(job, groups, tmp_path):
    rollout, _ = groups
    (pid,) = rollout.execute_on(2).where().wait(DEADLINE_S)
    service = job.session.service(TraceService)
    trace = service.begin(tmp_path / "run.json", MIB)
    # It hears of an event after the trace.
    heard = []
    job.session.bus.subscribe(heard.append)
    rollout.execute_on(2).collect(2, 0.0).wait(DEADLINE_S)
    machine = job.session.messenger.endpoint.machine_id
    folder = folder_of(service._tracing.trace_id, machine)

    def is_spooled():
        found = (read_span_file([(folder / file.name).read_bytes()]) for file in span_files_in(folder))
        spans = [each.spans for each in found if each is not None and each.head.process == "rollout:2"]
        return any(span.kind == CALL for each in spans for span in each)

    wait_until(is_spooled)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "rollout:2" in ask_report(job.session).missing)
    wait_until(lambda: any(isinstance(event, WorkerLost) for event in heard))
    job.session.bus.unsubscribe(heard.append)
    trace.stop()
    traced = Traced(tmp_path / "run.json")
    assert [e["name"] for e in traced.slices("rollout:2", "call")] == ["collect"]
    assert any(e["ph"] == "i" and e["name"] == "WorkerLost" for e in traced.events)
    assert not folder.exists()
    assert "missing: rollout:2: " in str(ask_report(job.session))


def test_what_a_group_did_that_has_ended_is_in_the_report(job, groups):
    rollout, actor = groups
    run_steps(rollout, actor, 1)
    before = {group.name: group for group in ask_report(job.session).groups}
    actor.shutdown(DEADLINE_S)
    after = {group.name: group for group in ask_report(job.session).groups}
    assert after["actor"].methods[0].spent.count == before["actor"].methods[0].spent.count
    # Also what it has waited for, by name; and for its leaving.
    assert {wait.operation for method in after["actor"].methods for wait in method.waits} >= {
        wait.operation for method in before["actor"].methods for wait in method.waits
    }
    assert "actor:0" not in ask_report(job.session).missing


def put_two(pipe, _member):
    channel = Channel.connect("items", timeout_s=DEADLINE_S)
    pipe.send("connected")
    assert pipe.recv() == "put"
    channel.put("one", timeout_s=DEADLINE_S)
    channel.put("two", timeout_s=DEADLINE_S)
    pipe.send("put")
    stay(pipe)


def test_span_files_of_other_machines_are_fetched_and_their_clocks_are_compared(tmp_path):
    with Job("tcp") as job:
        session = job.driver
        service = session.service(TraceService)
        channel = Channel.create("items")
        env = job.start(put_two, where=THERE, name="env:0")
        assert env.receive() == "connected"
        trace = service.begin(tmp_path / "run.perfetto", MIB)
        there = folder_of(service._tracing.trace_id, THERE)

        def is_compared():
            # How a clock's note begins; it comes when the clock was asked for several times.
            return any(b"\x94\x02\xcb" in (there / file.name).read_bytes() for file in span_files_in(there))

        wait_until(is_compared)
        env.pipe.send("put")
        assert env.receive() == "put"
        assert [channel.get(timeout_s=DEADLINE_S) for _ in range(2)] == ["one", "two"]
        written = trace.stop()
        wait_until(lambda: not there.exists())
    traced = Traced(tmp_path / "run.perfetto")
    assert traced.flows("items") == [[("s", "env:0"), ("t", "driver")]] * 2
    # It is one clock in truth: what was found is wrong by less than it says.
    assert 0 < written.clock_error_s["env:0"] < 0.1
    puts, gets = traced.slices("env:0", "put"), traced.slices("driver", "get")
    error_us = 2e6 * written.clock_error_s["env:0"]
    for put, get in zip(puts, gets, strict=True):
        assert put["ts"] <= get["ts"] + get["dur"] + error_us


NUM_STEPS = 3000


def fill_span_file(_pipe, member):
    wait_until(lambda: isinstance(getattr(TIMES.span_file, "__self__", None), SpanFileThread))
    now = time.monotonic()
    for number in range(NUM_STEPS):
        TIMES.span_file(Span(CALL, now, now, f"step {number}", 1))
    member.close()  # all is written then


def test_a_trace_is_within_its_bound_however_many_processes_come_and_go(tmp_path):
    with Job() as job:
        service = job.driver.service(TraceService)
        trace = service.begin(tmp_path / "run.json", MIB)
        folder = folder_of(service._tracing.trace_id, job.driver.messenger.endpoint.machine_id)
        for number in range(10):
            env = job.start(fill_span_file, name=f"env:{number}")
            env.result()
            env.kill()
            assert sum(file.size_bytes for file in span_files_in(folder)) <= MIB // 2
        written = trace.stop()
    assert written.size_bytes <= MIB
    assert written.num_dropped["env:0"] >= NUM_STEPS
    calls = Traced(tmp_path / "run.json").slices("env:9", "call")
    assert calls[-1]["name"] == f"step {NUM_STEPS - 1}"


def test_a_process_whose_span_file_is_gone_goes_on_without_it():
    with LocalRuntime() as runtime:
        tracer = runtime.service(Tracer)
        machine = runtime.messenger.endpoint.machine_id
        tracer.begin(tracer.open(TraceOn("a0", 4000, MIB)))
        folder = folder_of("a0", machine)
        shutil.rmtree(folder)
        try:

            def is_given_up():
                # Until another segment begins.
                for _ in range(100):
                    TIMES.note_moved(PUT, 0.0, "put", "items")
                return TIMES.span_file is None

            wait_until(is_given_up)
            assert not folder.exists()
        finally:
            TIMES.trace(None)
    with LocalRuntime():
        assert Channel.create("items").empty()
