"""What is made of the sums of ranks: shares, waits by who ended them, and the words of the report."""

import json
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from effort import tries
from rlinf.testing import LocalRuntime
from rlinf_scheduler.comm.waits import CHANNEL, Wait
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.observe.process_stats import RunningCall
from rlinf_scheduler.observe.report import group_times, report_of
from rlinf_scheduler.observe.time_service import MAX_LEFT_SPANS, JobTimes, TimeService, ask_times
from rlinf_scheduler.observe.time_sheets import LEFT_SPANS, CallSum, PhaseSum, TimeSheet, WaitSum, sheet_of
from rlinf_scheduler.observe.timekeeping import CALL, WAIT, Span, Timekeeper
from rlinf_scheduler.session import current_session


def waited(seconds, by, method="update", phase="", count=10):
    what = "channel", "get_batch('trajectories')", "trajectories"
    return WaitSum(method, phase, *what, by, count, seconds)


ACTOR = TimeSheet(
    "actor:0",
    10.0,
    calls=(CallSum("update", 10, 9.0), CallSum("publish", 1, 0.5)),
    phases=(PhaseSum("update", "learn", 10, 2.0), PhaseSum("update", "collect", 10, 6.4)),
    waits=(waited(5.4, "rollout:1", phase="collect"), waited(0.9, "rollout:0", phase="collect")),
)
ROLLOUTS = tuple(
    TimeSheet(f"rollout:{rank}", 10.0, calls=(CallSum("serve", 1, 8.0 + rank),)) for rank in range(2)
)
TIMES = JobTimes((TimeSheet("driver", 12.0, waits=(waited(9, "actor:0", ""),)), ACTOR, *ROLLOUTS))


def test_times_are_shares_of_what_ranks_lived():
    actor, rollout, driver = report_of(TIMES).groups
    assert [group.name for group in (actor, rollout, driver)] == ["actor", "rollout", "driver"]
    assert actor.running == pytest.approx(0.95)
    assert actor.waiting == pytest.approx(0.63)
    assert actor.busy == pytest.approx(0.32)
    assert actor.idle == pytest.approx(0.05)
    update = actor.methods[0]
    assert (update.method, update.spent.count, update.spent.share) == ("update", 10, 0.9)
    assert [(p.phase, p.spent.share, p.waiting) for p in update.phases] == [
        ("collect", pytest.approx(0.64), pytest.approx(0.63)),
        ("learn", pytest.approx(0.2), 0),
    ]
    assert update.waits[0].ended_by == {"rollout:1": pytest.approx(0.54), "rollout:0": pytest.approx(0.09)}
    serve = rollout.methods[0]
    assert (serve.spent.mean_s, serve.spent.max_s, serve.spent.share) == (8.5, 9.0, 0.85)


def test_what_steers_a_terminal_is_not_printed():
    steering = PhaseSum("update", "\x1b[2J", 1, 2.0)
    sheet = TimeSheet("actor:0", 10.0, calls=(CallSum("update", 1, 9.0),), phases=(steering,))
    text = str(report_of(JobTimes((sheet,), missing={"a\nb:0": "\x07"})))
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.count("\n") == 3


def test_a_step_says_what_it_waited_for():
    step = report_of(TIMES, "actor.update").step
    assert (step.count, step.mean_s) == (10, pytest.approx(1.0))
    assert step.headline == "63% of the step actor waits for trajectories of rollout"
    alone = JobTimes(
        (TimeSheet("actor:0", 10, (CallSum("update", 5, 10),), waits=(waited(6.3, "rollout:1"),)),)
    )
    assert report_of(alone).step.headline == "63% of the step actor waits for trajectories of rollout:1"


def test_the_step_is_the_method_that_is_called_again_and_again():
    assert report_of(TIMES).step.method == "update"
    assert report_of(JobTimes(ROLLOUTS)).step is None


def test_a_step_that_nobody_called_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)called were 'actor.update'.*did you mean 'actor.update'"):
        report_of(TIMES, "actor.updte")


def test_steps_are_followed_through_processes():
    spans = Span(CALL, 0, 10, "update", 1, "driver"), Span(WAIT, 1, 7, "get('t')", 1, "rollout:1")
    actor = TimeSheet("actor:0", 10, (CallSum("update", 10, 9.0),), spans=spans)
    # By a clock that is a hundred seconds ahead; and in a call that has not ended.
    rollout = TimeSheet(
        "rollout:1",
        10,
        (CallSum("serve", 1, 12.0),),
        running=(RunningCall("serve", 12.0, "driver", 5),),
        spans=(Span(WAIT, 101, 104, "get('q')", 5, "env:0"),),
        now=110.0,
        offset_s=100.0,
    )
    path = report_of(JobTimes((actor, rollout))).step.path
    assert [(part.group, part.what, part.mean_s) for part in path] == [
        ("rollout", "serve", 4),
        ("actor", "update", 3),
        ("rollout", "waits for get('q')", 3),
    ]
    assert sum(part.share for part in path) == pytest.approx(1)


def test_a_step_is_from_the_end_of_one_call_to_the_end_of_the_next():
    spans = (
        Span(CALL, 0, 2, "learn", 1, "driver"),
        Span(CALL, 2, 5, "take", 1, "driver"),
        Span(CALL, 6, 8, "learn", 1, "driver"),
    )
    calls = CallSum("learn", 2, 4.0), CallSum("take", 1, 3.0)
    waits = (WaitSum("take", "", "channel", "get('groups')", "groups", "inference:0", 1, 2.0),)
    step = report_of(
        JobTimes((TimeSheet("actor:0", 8.0, calls, waits=waits, spans=spans),)), "actor.learn"
    ).step
    assert (step.count, step.mean_s) == (2, 4.0)
    assert step.headline == "25% of the step actor waits for groups of inference:0"
    assert {part.what: 2 * part.mean_s for part in step.path} == {"learn": 4, "take": 3, "idle": 1}


def test_the_report_is_words_and_data():
    found = report_of(TIMES)
    assert json.loads(json.dumps(found.to_dict()))["groups"][0]["waiting"] == pytest.approx(0.63)
    assert str(report_of(JobTimes(TIMES.sheets, {"rollout:2": "killed by SIGKILL"}))).splitlines() == [
        "actor (1 rank, 10.0 s): busy 32%, waits 63%, idle 5%",
        "  update()                        90%  10 calls, 900 ms each",
        "    collect                                   64%  6.40 s a rank, 63% waiting",
        "    learn                                     20%  2.00 s a rank",
        "    waits in get_batch('trajectories')        63%  6.30 s a rank, until rollout:1 54%, rollout:0 9%",
        "  publish()                        5%  1 call, 500 ms each",
        "rollout (2 ranks, 10.0 s): busy 85%, waits 0%, idle 15%",
        "  serve()                         85%  2 calls, 8.50 s each",
        "a step, from one actor.update() to the next, takes 1.00 s; there were 10",
        "  63% of the step actor waits for trajectories of rollout",
        "missing: rollout:2: killed by SIGKILL",
    ]


def test_the_report_says_whose_the_longest_phase_and_wait_are():
    sheets = [
        replace(ACTOR, process=f"actor:{rank}", phases=(PhaseSum("update", "learn", 1, 1.0 + rank),))
        for rank in range(2)
    ]
    text = str(report_of(JobTimes(tuple(sheets))))
    assert "1.50 s a rank, the longest 2.00 s of actor:1" in text
    assert "6.30 s a rank, the longest 6.30 s of actor:0, until" in text


def test_a_process_of_channels_is_in_the_report_with_what_it_has_carried():
    busy = TimeSheet("Channels:0", 10.0, cpu_s=3.0, carried={"trajectories": 280_000})
    idle = TimeSheet("Channels:1", 10.0, cpu_s=0.1)
    found = report_of(JobTimes((busy, idle, ACTOR)))
    assert [group.name for group in found.groups] == ["actor", "Channels"]
    assert (
        "Channels (1 process, 10.0 s): 30% of a core, 28,000 items/s delivered: 280,000 of 'trajectories'"
        in str(found)
    )
    assert found.to_dict()["groups"][1]["carried"] == {"trajectories": 280_000}


def test_a_rank_that_came_back_is_one_rank():
    (group,) = group_times([ROLLOUTS[0], ROLLOUTS[0]])
    assert (group.num_ranks, group.lived_s, group.methods[0].spent.share) == (1, 20.0, 0.8)


NAMES = ("a:0", "a:1", "b:0")
SECONDS = st.floats(0, 100)


@st.composite
def sheets(draw):
    found = []
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6)):
        calls = draw(st.dictionaries(st.sampled_from("fg"), SECONDS, min_size=1))
        waits = [
            waited(draw(SECONDS), draw(st.sampled_from([*NAMES, ""])), method)
            for method in draw(st.lists(st.sampled_from("fg"), max_size=3))
        ]
        sums = tuple(CallSum(method, 2, seconds) for method, seconds in calls.items())
        found.append(TimeSheet(name, draw(st.floats(1, 100)), sums, waits=tuple(waits)))
    return found


@settings(max_examples=tries(30))
@given(sheets())
def test_nothing_that_was_counted_is_lost_or_counted_twice(found):
    groups = group_times(found)
    assert sum(group.num_ranks for group in groups) == len({sheet.process for sheet in found})
    for group in groups:
        of_group = [sheet for sheet in found if sheet.process.startswith(f"{group.name}:")]
        lived_s = sum(sheet.lived_s for sheet in of_group)
        called_s = sum(call.seconds for sheet in of_group for call in sheet.calls)
        waited_s = sum(wait.seconds for sheet in of_group for wait in sheet.waits)
        assert group.running * lived_s == pytest.approx(called_s, abs=1e-6)
        assert group.waiting * lived_s == pytest.approx(waited_s, abs=1e-6)
        ended_s = sum(s for m in group.methods for w in m.waits for s in w.ended_by.values()) * lived_s
        known_s = sum(wait.seconds for sheet in of_group for wait in sheet.waits if wait.by)
        assert ended_s == pytest.approx(known_s, abs=1e-6)
    assert str(report_of(JobTimes(tuple(found))))


def test_of_those_that_have_left_all_sums_are_kept_and_the_last_spans():
    def leave(number):
        head = TimeSheet(
            f"eval-{number}:0",
            1.0,
            (CallSum("run", 1, 0.5),),
            spans=(Span(CALL, 0.0, 0.5, "run", 1),) * LEFT_SPANS,
        )
        service._on_left(SimpleNamespace(peer_name=head.process, peer_id=str(number), head=head))

    with LocalRuntime():
        session = current_session()
        service = session.service(TimeService)
        for number in range(2 * MAX_LEFT_SPANS // LEFT_SPANS):
            leave(number)
        sheets = [sheet for sheet in ask_times(session, 30.0).sheets if sheet.process.startswith("eval-")]
    assert len(sheets) == 2 * MAX_LEFT_SPANS // LEFT_SPANS
    assert all(sheet.calls for sheet in sheets)
    assert sum(len(sheet.spans) for sheet in sheets) == MAX_LEFT_SPANS
    assert sheets[-1].spans


def test_who_is_stuck_waits_and_is_not_busy():
    stuck = Wait(CHANNEL, "get('tasks', 'q7')", 40.0, subject="tasks", detail="get")
    sheet = sheet_of(
        Timekeeper(),
        "actor:0",
        0.0,
        50.0,
        running=lambda: [RunningCall("train", 50.0, "driver", 1, stuck), RunningCall("more", None, "driver")],
    )
    ((method, _, _, operation, *_, count, seconds),) = map(msgspec.structs.astuple, sheet.waits)
    assert (method, operation, count, seconds) == ("train", "get('tasks')", 1, 40.0)
    assert "busy 20%, waits 80%" in str(report_of(JobTimes((sheet,))))
