"""What the end of a rank means for its group: every order of events, without a process."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.scheduler.events import WorkerLost
from rlinf.scheduler.worker.deaths import NOTHING, Consequences, Deaths

MODES = ("fail", "ignore", "end")
LOST = WorkerLost("rollout", 1, "killed")


@pytest.mark.parametrize(
    ("on_failure", "consequences"),
    [
        ("fail", Consequences(report=LOST, ends_calls=True)),
        ("ignore", Consequences(report=LOST)),
        ("end", Consequences(ends_calls=True, stop=True)),
    ],
)
def test_a_death_is_reported_and_ends_what_the_group_was_launched_to_end(on_failure, consequences):
    deaths = Deaths("rollout", on_failure)
    assert deaths.on_exit(1, "killed") == consequences
    assert deaths.dead == {1: "killed"}


@pytest.mark.parametrize("on_failure", MODES)
def test_ends_of_a_group_that_is_being_stopped_are_no_deaths(on_failure):
    deaths = Deaths("rollout", on_failure)
    deaths.stopping = True
    assert deaths.on_exit(0, "stopped") is NOTHING
    assert deaths.on_lost(1, "its connection broke") is NOTHING
    assert deaths.end_of_call("act") is None
    assert "it was ended" in str(deaths.refusal([0, 1], "it was ended"))


@pytest.mark.parametrize("on_failure", MODES)
def test_a_connection_that_is_gone_is_a_death_too_and_its_process_is_killed(on_failure):
    deaths = Deaths("rollout", on_failure)
    by_ray = Deaths("rollout", on_failure).on_exit(1, "cut")
    consequences = deaths.on_lost(1, "cut")
    assert consequences.kill
    assert (consequences.report, consequences.ends_calls, consequences.stop) == (
        by_ray.report,
        by_ray.ends_calls,
        by_ray.stop,
    )


@pytest.mark.parametrize("on_failure", MODES)
@pytest.mark.parametrize("first", ["on_exit", "on_lost"])
@pytest.mark.parametrize("second", ["on_exit", "on_lost"])
def test_what_is_told_twice_is_obeyed_once_and_the_first_reason_stays(on_failure, first, second):
    deaths = Deaths("rollout", on_failure)
    assert getattr(deaths, first)(1, "first") is not NOTHING
    assert getattr(deaths, second)(1, "second") is NOTHING
    assert deaths.dead == {1: "first"}


def test_a_call_ends_with_the_first_death_and_names_itself():
    deaths = Deaths("rollout", "fail")
    assert deaths.end_of_call("act") is None
    deaths.on_exit(2, "killed")
    deaths.on_exit(0, "out of memory")
    error = deaths.end_of_call("act")
    assert str(error) == "rank 2 of 'rollout' died during act(): killed"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_with_ignore_only_calls_to_the_dead_are_refused():
    deaths = Deaths("rollout", "ignore")
    deaths.on_exit(2, "killed")
    assert deaths.end_of_call("act") is None
    assert deaths.refusal([0, 1], "") is None
    assert str(deaths.refusal([0, 2], "")) == "rank 2 of 'rollout' died: killed"


def test_with_fail_a_call_to_the_living_is_refused_and_told_why():
    deaths = Deaths("rollout", "fail")
    deaths.on_exit(2, "killed")
    whole = "; launched with on_failure='fail', the whole group ends with it"
    assert str(deaths.refusal([0, 1], "")) == f"rank 2 of 'rollout' died: killed{whole}"
    assert str(deaths.refusal([2], "")) == "rank 2 of 'rollout' died: killed"


EVENTS = st.one_of(
    st.tuples(st.sampled_from(["exit", "lost"]), st.integers(0, 3)),
    st.just(("stop", 0)),
)


@given(on_failure=st.sampled_from(MODES), events=st.lists(EVENTS, max_size=12))
def test_whatever_the_order_each_death_is_obeyed_once_and_none_after_the_stop(on_failure, events):
    deaths = Deaths("g", on_failure)
    gone, stopped = set(), False
    for kind, rank in events:
        if kind == "stop":
            deaths.stopping = stopped = True
            continue
        tell = deaths.on_lost if kind == "lost" else deaths.on_exit
        consequences = tell(rank, kind)
        news = not stopped and rank not in gone
        assert (consequences is not NOTHING) == news
        if news:
            gone.add(rank)
            assert consequences.ends_calls == (on_failure != "ignore")
            assert consequences.stop == (on_failure == "end")
            assert consequences.kill == (kind == "lost")
            assert (consequences.report is None) == (on_failure == "end")
    assert set(deaths.dead) == gone
    for wanted in range(4):
        refused = deaths.refusal([wanted], "stopped") is not None
        assert refused == (stopped or wanted in gone or (bool(gone) and on_failure != "ignore"))
