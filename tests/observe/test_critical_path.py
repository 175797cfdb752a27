"""The critical path of a step, found in made-up spans."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from effort import tries
from rlinf_scheduler.observe.timekeeping import CALL, PHASE, PUBLISH, PUT, REPLY, SEND, VALUE, WAIT, Span
from rlinf_scheduler.observe.tracks import Track, critical_path

MAIN = 1


def call(began, ended, method="train", by="driver"):
    return Span(CALL, began, ended, method, MAIN, by)


def wait(began, ended, what="get('tasks')", by=""):
    return Span(WAIT, began, ended, what, MAIN, by)


def phase(began, ended, name):
    return Span(PHASE, began, ended, name, MAIN)


def seconds(pieces):
    found = {}
    for piece in pieces:
        key = piece.process, piece.what
        found[key] = found.get(key, 0) + piece.ended - piece.began
    return found


def test_a_rank_that_waits_for_nobody_is_all_of_its_step():
    tracks = {"actor:0": Track([call(0, 10), phase(2, 6, "learn")])}
    assert seconds(critical_path(tracks, "actor:0", 0, 10)) == {
        ("actor:0", "train"): 6,
        ("actor:0", "train: learn"): 4,
    }


def test_a_wait_is_what_the_process_did_that_ended_it():
    tracks = {
        "actor:0": Track([call(0, 10), wait(1, 7, by="env:0")]),
        "env:0": Track([call(-5, 20, "collect"), phase(4, 6.5, "simulate")]),
    }
    assert seconds(critical_path(tracks, "actor:0", 0, 10)) == {
        ("actor:0", "train"): 3,
        ("env:0", "collect: simulate"): 2.5,
        ("env:0", "collect"): 4.5,
    }


def test_a_chain_of_waits_is_followed_to_who_was_at_work():
    tracks = {
        "actor:0": Track([call(0, 10), wait(1, 9, by="env:0")]),
        "env:0": Track([call(0, 20, "collect"), wait(2, 8, "ask('questions')", by="rollout:0")]),
        "rollout:0": Track([call(-1, 20, "serve")]),
    }
    assert seconds(critical_path(tracks, "actor:0", 0, 10)) == {
        ("actor:0", "train"): 1,
        ("env:0", "collect"): 1,
        ("rollout:0", "serve"): 8,
    }


def test_who_was_not_called_waited_for_its_caller():
    tracks = {
        "actor:0": Track([call(0, 10), wait(0, 9, by="env:0")]),
        "env:0": Track([call(-5, -1, "collect"), call(4, 9, "collect")]),
        "driver": Track([wait(-5, 3, "env.collect()", by="env:0")]),
    }
    found = seconds(critical_path(tracks, "actor:0", 0, 10))
    assert found["env:0", "collect"] == 5
    assert found["driver", "its own program"] == 1
    assert sum(found.values()) == 10


def test_a_wait_that_goes_on_ended_nobody_elses():
    # What env:0 gave away it gave before it began to wait: the rest was on its way.
    tracks = {
        "actor:0": Track([call(0, 10), wait(1, 8, by="env:0")]),
        "env:0": Track([call(0, 20, "collect"), wait(7.5, 19, by="actor:0")]),
    }
    assert seconds(critical_path(tracks, "actor:0", 0, 10)) == {
        ("actor:0", "train"): 2,
        ("env:0", "waits for get('tasks')"): 0.5,
        ("env:0", "collect"): 7.5,
    }


def test_two_that_say_they_have_ended_each_others_waits_do_not_go_round_for_ever():
    tracks = {
        "a:0": Track([call(0, 10), wait(1, 8, by="b:0")]),
        "b:0": Track([call(0, 10), wait(2, 8, by="a:0")]),
    }
    assert sum(seconds(critical_path(tracks, "a:0", 0, 10)).values()) == 10


def test_what_was_not_recorded_any_more_is_called_so():
    tracks = {
        "actor:0": Track([call(0, 10), wait(1, 7, by="env:0")]),
        "env:0": Track([phase(6, 8, "simulate")], is_cut=True),
    }
    assert seconds(critical_path(tracks, "actor:0", 0, 10))["env:0", "not recorded any more"] == 6


def test_a_process_whose_spans_overlap_is_left_at_the_end_of_its_last_wait():
    # Tasks of an event loop.
    tracks = {
        "actor:0": Track([call(0, 10), wait(0, 9, by="driver")]),
        "driver": Track(
            [wait(0, 5, "a.f()", "a:0"), wait(1, 8, "b.f()", "b:0"), wait(3, 20, "c.f()", "c:0")]
        ),
        "b:0": Track([call(0, 8, "f")]),
    }
    found = seconds(critical_path(tracks, "actor:0", 0, 10))
    assert found["b:0", "f"] == 8
    assert sum(found.values()) == 10


OTHER = 2


def of_channel(span, channel="tasks"):
    return replace(span, subject=channel)


def of_thread(span, thread=OTHER):
    return replace(span, thread=thread)


GIVEN = {
    "an item": (of_channel(wait(1, 9, by="env:0")), Span(PUT, 8.9, 9.1, "put", OTHER, "", "tasks")),
    "an answer": (
        of_channel(wait(1, 9, "ask('tasks')", by="env:0")),
        Span(REPLY, 8.9, 8.95, "reply", OTHER, "", "tasks"),
    ),
    "weights": (
        of_channel(wait(1, 9, "fetch_weights('policy')", by="env:0"), "policy"),
        Span(PUBLISH, 8.5, 8.9, "publish version 3", OTHER, "", "policy"),
    ),
    "a message": (
        wait(1, 9, "recv('env:0')", by="env:0"),
        Span(SEND, 8.9, 8.95, "send", OTHER, "", "actor:0"),
    ),
    "the end of a call": (wait(1, 9, "env.step()", by="env:0"), of_thread(call(6, 9, "step", "actor:0"))),
    "one of several calls": (
        wait(1, 9, "reward.score() and env.step()", by="env:0"),
        of_thread(call(6, 9, "step", "actor:0")),
    ),
    "a value": (
        wait(1, 9, "iteration over env.play()", by="env:0"),
        Span(VALUE, 6, 9, "play", OTHER, "actor:0"),
    ),
}


@pytest.mark.parametrize("given", GIVEN)
def test_the_path_goes_to_the_thread_that_ended_the_wait(given):
    # The other one has more calls, and the same items were given by it before.
    waited, gift = GIVEN[given]
    main = [call(-50, 20, "serve"), replace(gift, thread=MAIN, began=gift.began - 5, ended=gift.ended - 5)]
    tracks = {
        "actor:0": Track([call(0, 10), waited]),
        "env:0": Track([*main, of_thread(call(-1, 9.5, "play")), of_thread(phase(2, 9.2, "simulate")), gift]),
    }
    found = seconds(critical_path(tracks, "actor:0", 0, 10))
    assert not [what for process, what in found if process == "env:0" and "serve" in what]
    assert sum(found.values()) == 10


def test_a_wait_may_be_ended_by_another_thread_of_the_same_process():
    spans = call(0, 10), of_channel(wait(1, 9, by="actor:0")), of_thread(call(2, 9.5, "collect"))
    put = Span(PUT, 8.9, 9.1, "put", OTHER, "", "tasks")
    found = seconds(critical_path({"actor:0": Track([*spans, put])}, "actor:0", 0, 10, MAIN))
    assert found == {("actor:0", "train"): 1, ("actor:0", "collect"): 7, ("actor:0", "idle"): 2}


def test_a_step_is_followed_in_the_thread_that_ended_it():
    track = Track([call(-50, 20, "serve"), of_thread(call(0, 10, "train"))])
    assert seconds(critical_path({"actor:0": track}, "actor:0", 0, 10, OTHER)) == {("actor:0", "train"): 10}


def test_where_nobody_knows_which_thread_ended_a_wait_it_was_one_at_work():
    main = [call(-50, 20, "serve"), wait(3, 15)]
    tracks = {
        "actor:0": Track([call(0, 10), wait(1, 9, by="env:0")]),
        "env:0": Track([*main, of_thread(call(0, 12, "step"))]),
    }
    assert seconds(critical_path(tracks, "actor:0", 0, 10))["env:0", "step"] == 9


NAMES = ("a:0", "a:1", "b:0", "driver")


@st.composite
def spans_of_a_process(draw):
    """A call, and in it phases and waits that follow each other; or anything that overlaps."""
    cuts = sorted(draw(st.lists(st.integers(0, 50), min_size=2, max_size=12)))
    parts = []
    for began, ended in itertools.pairwise(cuts):
        if draw(st.booleans()):
            parts.append(wait(began, ended, by=draw(st.sampled_from([*NAMES, "", "gone:0"]))))
        else:
            parts.append(phase(began, ended, draw(st.sampled_from(["learn", "infer"]))))
    if draw(st.booleans()):
        parts.append(call(cuts[0], cuts[-1], by=draw(st.sampled_from(NAMES))))
    if draw(st.booleans()):
        began, took = draw(st.integers(0, 40)), draw(st.integers(1, 20))
        parts.append(wait(began, began + took, by=draw(st.sampled_from(NAMES))))
    if draw(st.booleans()):
        parts = (
            [*parts, *(of_thread(part) for part in draw(st.lists(st.sampled_from(parts))))] if parts else []
        )
    return parts


@settings(max_examples=tries(30))
@given(
    st.fixed_dictionaries({name: spans_of_a_process() for name in NAMES}),
    st.integers(0, 30),
    st.integers(1, 40),
    st.booleans(),
)
def test_each_moment_of_a_step_is_of_one_process(spans, began, took, is_cut):
    tracks = {name: Track(each, is_cut=is_cut) for name, each in spans.items()}
    pieces = critical_path(tracks, "a:0", began, began + took)
    assert pieces[0].ended == began + took
    assert pieces[-1].began == began
    for later, earlier in itertools.pairwise(pieces):
        assert later.began == earlier.ended
    assert all(piece.began < piece.ended for piece in pieces)
    assert {piece.process for piece in pieces} <= {*NAMES}


@settings(max_examples=tries(30))
@given(spans_of_a_process(), st.floats(0, 60))
def test_a_track_knows_what_its_process_was_at_at_any_moment(spans, moment):
    activity = Track(spans).before(moment)
    assert activity.began < moment or math.isclose(activity.began, moment)
    assert moment <= activity.ended


@pytest.mark.parametrize("kind", ["put", "event"])
def test_other_spans_are_nothing_that_a_process_is_at(kind):
    assert Track([Span(kind, 0, 1, "put", MAIN)]).before(0.5).what == "its own program"
