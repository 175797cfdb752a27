"""The file of a trace: one timeline of all processes, as Perfetto reads it."""

import json
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import tries
from rlinf_scheduler.observe.timekeeping import ACK, CALL, EVENT, FETCH, GET, PHASE, PUBLISH, PUT, WAIT, Span
from rlinf_scheduler.tracing.span_file import ClockNote, SpanFileContent, SpanFileHead
from rlinf_scheduler.tracing.timeline import ProcessSpans, Timeline, lanes, on_home_clock, size_of

ITEM = (("env:0", 7),)
ENV = ProcessSpans(
    "env:0",
    11,
    "node1",
    [
        Span(CALL, 10.0, 12.0, "collect", 1, "driver"),
        Span(PUT, 10.5, 10.6, "put", 1, "", "trajectories", ITEM),
        Span(FETCH, 11.0, 11.1, "fetch version 3", 1, "", "policy", (("policy", 3),)),
    ],
    {1: "MainThread"},
)
ACTOR = ProcessSpans(
    "actor:0",
    12,
    "node2",
    [
        Span(CALL, 10.0, 13.0, "update", 5, "driver"),
        Span(GET, 10.1, 10.7, "get_batch", 5, "", "trajectories", ITEM),
        Span(WAIT, 10.1, 10.65, "get_batch('trajectories')", 5, "env:0", "trajectories"),
        Span(PHASE, 11.0, 12.5, "learn", 5),
        Span(ACK, 12.6, 12.6, "ack", 5, "", "trajectories", ITEM),
        Span(PUBLISH, 10.75, 10.9, "publish version 3", 5, "", "policy", (("policy", 3),)),
    ],
    {5: "MainThread"},
    num_dropped=4,
    error_s=20e-6,
)
DRIVER = ProcessSpans("driver", 1, "node1", [Span(EVENT, 10.2, 10.2, "WorkerLost", 0, "", "rank=1")])


def parsed(processes, missing=None, max_bytes=1 << 20):
    timeline = Timeline(processes, missing or {})
    text = b"".join(timeline.lines(max_bytes))
    return timeline, json.loads(text), text


def of(events, phase):
    return [event for event in events if event["ph"] == phase]


def test_processes_are_named_and_in_order():
    _, data, _ = parsed([ENV, DRIVER, ACTOR])
    named = [e["args"]["name"] for e in data["traceEvents"] if e["name"] == "process_name"]
    assert named == ["driver (node1, 1)", "actor:0 (node2, 12)", "env:0 (node1, 11)"]
    assert {e["args"]["name"] for e in data["traceEvents"] if e["name"] == "thread_name"} == {
        "MainThread",
        "events",
    }
    (label,) = [e["args"]["labels"] for e in data["traceEvents"] if e["name"] == "process_labels"]
    assert label == "4 older spans dropped, clock ± 20 µs"


def test_slices_have_their_times_and_what_they_are():
    _, data, _ = parsed([ENV, ACTOR])
    slices = {(e["name"], e["ts"], e["dur"]) for e in of(data["traceEvents"], "X")}
    assert ("collect", 0.0, 2e6) in slices
    assert ("learn", 1e6, 1.5e6) in slices
    (wait,) = [e for e in of(data["traceEvents"], "X") if e["cat"] == "wait"]
    assert wait["name"] == "waits in get_batch('trajectories')"
    assert (wait["cname"], wait["args"]) == ("grey", {"by": "env:0", "of": "trajectories"})


def test_an_item_is_an_arrow_from_its_put_by_its_get_to_its_ack():
    _, data, _ = parsed([ENV, ACTOR])
    flows = [e for e in data["traceEvents"] if e.get("cat") == "flow" and e["name"] == "trajectories"]
    assert [(e["ph"], e["bp"]) for e in sorted(flows, key=lambda e: e["ts"])] == [
        ("s", "e"),
        ("t", "e"),
        ("f", "e"),
    ]
    assert len({e["id"] for e in flows}) == 1
    # Each lies within the slice that it belongs to, which is how that is found.
    for flow in flows:
        assert any(
            e["pid"] == flow["pid"]
            and e["tid"] == flow["tid"]
            and e["ts"] <= flow["ts"] <= e["ts"] + e["dur"]
            for e in of(data["traceEvents"], "X")
            if e["cat"] in ("put", "get", "ack")
        )


def test_a_get_says_at_which_step_it_was_and_of_which_versions_its_items_were():
    got = Span(
        GET, 1, 2, "get_batch", 5, "", "trajectories", ITEM * 3, versions=((811, 2), (None, 1)), step=812
    )
    _, data, _ = parsed([ProcessSpans("actor:0", 12, "node2", [got])])
    (told,) = [e["args"] for e in of(data["traceEvents"], "X")]
    assert told == {"of": "trajectories", "items": 3, "versions": {"811": 2, "unknown": 1}, "step": 812}


def test_weights_are_arrows_from_their_publication():
    _, data, _ = parsed([ENV, ACTOR])
    flows = [e for e in data["traceEvents"] if e.get("cat") == "flow" and e["name"] == "policy"]
    assert sorted(e["ph"] for e in flows) == ["s", "t"]
    assert len({e["id"] for e in flows}) == 1


def test_events_are_instants():
    _, data, _ = parsed([DRIVER, ENV])
    (event,) = of(data["traceEvents"], "i")
    assert (event["name"], event["ts"], event["s"], event["args"]) == (
        "WorkerLost",
        0.2e6,
        "g",
        {"text": "rank=1"},
    )


def test_what_is_missing_is_told():
    # Why may have any text in it, as of a path.
    missing = {"env:1": "its machine is gone", "env:2": "no file caf\u00e9", "env:3": "no file caf\udce9"}
    timeline, data, _ = parsed([ENV, ACTOR], missing)
    assert data["otherData"]["missing"] == missing
    assert data["otherData"]["dropped_spans"] == {"actor:0": 4}
    assert timeline.num_written == len(ENV.spans) + len(ACTOR.spans)


def test_what_is_dropped_is_told_of_all_processes_that_had_a_name_and_of_each():
    later = ProcessSpans("actor:0", 13, "node2", ENV.spans, num_dropped=3)
    left_out = ProcessSpans("env:1", 14, "node1", [Span(CALL, 1.0, 1.1, "f", 1)] * 5)
    timeline = Timeline([ACTOR, later, left_out], {}, {"actor:0": 20, "env:2": 30})
    room = sum(size_of(span) for each in (ACTOR, later) for span in each.spans) + 4 * 400
    data = json.loads(b"".join(timeline.lines(room)))
    assert data["otherData"]["dropped_spans"] == {"actor:0": 27, "env:1": 5, "env:2": 30}
    labels = [e["args"]["labels"] for e in data["traceEvents"] if e["name"] == "process_labels"]
    assert labels == [
        "4 older spans dropped, clock \u00b1 20 \u00b5s",
        "3 older spans dropped",
        "5 older spans dropped",
    ]


def test_times_are_the_homes_by_what_the_clock_differed_then():
    head = SpanFileHead("env:0", 1, "node2", 0, 0)
    clocks = [ClockNote(100.0, 50.0, 0.002), ClockNote(200.0, 50.5, 0.001)]
    spans = [Span(CALL, at, at + 1, "f", 1) for at in (90.0, 150.0, 250.0)]
    content = SpanFileContent(head, {}, clocks, spans, num_dropped=9)
    found = on_home_clock(content)
    assert [span.began for span in found.spans] == [40.0, 100.0, 199.5]
    assert (found.error_s, found.num_dropped) == (0.002, 9)


TIMES = st.integers(0, 60)
SPANS = st.builds(
    lambda began, took, kind, name, items, versions, step: Span(
        kind, began / 7, (began + took) / 7, name, 1, "a:0", "ch", items, versions=versions, step=step
    ),
    TIMES,
    TIMES,
    st.sampled_from([CALL, PHASE, WAIT, PUT, GET, ACK]),
    st.sampled_from(["f", "learn", 'a "quoted" \u00e4 name']),
    st.lists(st.tuples(st.sampled_from(["a:0", "b:1"]), st.integers(0, 9)), max_size=3).map(tuple),
    st.dictionaries(st.none() | st.integers(0, 2**62), st.integers(1, 2**30), max_size=3).map(
        lambda each: (*each.items(),)
    ),
    st.none() | st.integers(0, 2**62),
)


@settings(max_examples=tries(30))
@given(st.lists(SPANS, max_size=30))
def test_in_a_lane_spans_nest_or_follow_each_other(spans):
    found = lanes(spans)
    assert Counter(span for lane in found for span in lane) == Counter(spans)
    for lane in found:
        for one in lane:
            for other in lane:
                apart = one.ended <= other.began or other.ended <= one.began
                nested = one.began <= other.began and other.ended <= one.ended
                assert apart or nested or (other.began <= one.began and one.ended <= other.ended)


def test_what_nests_needs_one_lane():
    assert len(lanes(ACTOR.spans)) == 1


@settings(max_examples=tries(30))
@given(st.lists(st.lists(SPANS, max_size=20), min_size=1, max_size=3), st.integers(2000, 20_000))
def test_the_file_is_within_its_bound_and_has_the_last_spans(processes, max_bytes):
    given_spans = [ProcessSpans(f"p:{place}", 1, "n", each) for place, each in enumerate(processes)]
    timeline, data, text = parsed(given_spans, max_bytes=max_bytes)
    assert len(text) <= max_bytes
    num_spans = sum(len(each) for each in processes)
    assert timeline.num_written + sum(timeline.num_dropped.values()) == num_spans
    slices = of(data["traceEvents"], "X")
    assert len(slices) == timeline.num_written
    if slices and timeline.num_written < num_spans:
        begins = min(e["ts"] for e in slices)
        assert begins == 0
