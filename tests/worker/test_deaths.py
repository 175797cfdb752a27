"""What the end of a rank means for its group: every order of events, without a process."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.events import WorkerLost
from rlinf_scheduler.worker.deaths import NOTHING, Consequences, Deaths

MODES = ("fail", "ignore", "end", "restart", "restart_group")
LOST = WorkerLost("rollout", 1, "killed")


@pytest.mark.parametrize(
    ("on_failure", "consequences"),
    [
        ("fail", Consequences(report=LOST, ends_calls=True)),
        ("ignore", Consequences(report=LOST)),
        ("end", Consequences(ends_calls=True, stop=True)),
        ("restart", Consequences(report=LOST, restart=True)),
        ("restart_group", Consequences(report=LOST, restart=True, anew=True)),
        (lambda lost: "fail", Consequences(report=LOST, ask=True)),
    ],
)
def test_a_death_is_reported_and_ends_what_the_group_was_launched_to_end(on_failure, consequences):
    deaths = Deaths("rollout", on_failure)
    assert deaths.on_exit(1, "killed") == consequences
    assert {**deaths.dead, **deaths.away} == {1: "killed"}
    assert (1 in deaths.away) == (consequences.restart or consequences.ask)


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
    assert {**deaths.dead, **deaths.away} == {1: "first"}


def test_all_ranks_go_and_come_back_with_one_and_are_told_of_once():
    deaths = Deaths("rollout", "restart_group", range(3))
    consequences = deaths.on_exit(1, "killed\nlast words")
    why = "all of 'rollout' starts anew with rank 1: killed"
    others = tuple(WorkerLost("rollout", rank, why) for rank in (0, 2))
    assert consequences == Consequences(report=LOST, restart=True, anew=True, others=others)
    assert [deaths.state_of(rank) for rank in range(3)] == ["away"] * 3
    assert deaths.on_exit(0, "killed for that") is NOTHING
    assert deaths.on_lost(2, "its connection broke") is NOTHING
    assert deaths.refusal([0, 1, 2], "") is None, "calls wait"
    for rank in range(3):
        deaths.on_return(rank)
    assert deaths.on_exit(2, "killed").anew


def test_a_group_is_restarted_by_hand_as_a_whole_and_by_a_verdict():
    deaths = Deaths("rollout", "restart_group", range(2))
    for rank in range(2):
        deaths.give_up(rank, "died too often")
    consequences = deaths.on_restart(1, "wanted")
    assert (consequences.report, consequences.anew, consequences.others) == (None, True, ())
    assert not deaths.dead
    asked = Deaths("rollout", lambda _lost: "restart_group", range(2))
    assert asked.on_exit(0, "killed").ask
    assert asked.on_exit(1, "killed").ask
    assert asked.on_verdict(1, "restart_group") == Consequences(restart=True, anew=True)
    assert asked.on_verdict(0, "ignore") is NOTHING, "it comes back already"


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


def test_calls_to_a_rank_that_comes_back_are_not_refused_and_others_go_on():
    deaths = Deaths("rollout", "restart")
    deaths.on_exit(1, "killed")
    assert deaths.refusal([0, 1], "") is None
    assert deaths.end_of_call("act") is None
    deaths.on_return(1)
    assert not deaths.away
    assert deaths.on_exit(1, "killed again").restart


def test_a_rank_that_is_given_up_ends_the_whole_group():
    deaths = Deaths("rollout", "restart")
    deaths.on_exit(1, "killed")
    assert deaths.give_up(1, "killed; it died 5 times") == Consequences(ends_calls=True)
    whole = "; launched with on_failure='restart', the whole group ends with it"
    assert str(deaths.refusal([0], "")) == f"rank 1 of 'rollout' died: killed; it died 5 times{whole}"
    assert deaths.end_of_call("act") is not None


@pytest.mark.parametrize("verdict", ["fail", "ignore", "restart"])
def test_who_is_asked_decides_for_this_rank_alone(verdict):
    deaths = Deaths("rollout", lambda lost: verdict)
    deaths.on_exit(1, "killed")
    assert deaths.refusal([0, 1], "") is None
    consequences = deaths.on_verdict(1, verdict)
    assert consequences.restart == (verdict == "restart")
    assert consequences.ends_calls == (verdict == "fail")
    assert (deaths.refusal([0], "") is None) == (verdict != "fail")
    assert (deaths.refusal([1], "") is None) == (verdict == "restart")


def test_a_restart_that_somebody_wants_decides_before_who_is_asked_does():
    deaths = Deaths("rollout", lambda lost: "fail")
    assert deaths.on_exit(1, "killed").ask
    assert deaths.on_restart(1, "wanted") == Consequences(restart=True)
    assert deaths.away == {1: "killed"}
    assert deaths.on_restart(1, "wanted") is NOTHING  # it is under way
    assert deaths.on_verdict(1, "fail") is NOTHING
    deaths.on_return(1)
    assert deaths.refusal([0, 1], "") is None
    assert deaths.on_exit(1, "again").ask
    assert deaths.on_verdict(1, "fail").ends_calls


@pytest.mark.parametrize("on_failure", MODES)
def test_a_restart_that_somebody_wants_ends_a_living_rank_and_revives_a_dead_one(on_failure):
    deaths = Deaths("rollout", on_failure)
    wanted = deaths.on_restart(1, "wanted")
    lost = WorkerLost("rollout", 1, "wanted")
    anew = on_failure == "restart_group"
    assert wanted == Consequences(report=lost, restart=True, anew=anew, kill=True)
    assert deaths.on_restart(1, "wanted") is NOTHING
    deaths.on_return(1)
    deaths.on_exit(0, "killed")
    if 0 in deaths.dead:
        assert deaths.on_restart(0, "wanted") == Consequences(restart=True, anew=anew)
        assert deaths.away == {0: "killed"}
        deaths.on_return(0)
        assert deaths.refusal([0, 1], "") is None


EVENTS = st.one_of(
    st.tuples(st.sampled_from(["exit", "lost", "return", "give up"]), st.integers(0, 3)),
    st.just(("stop", 0)),
)


@given(on_failure=st.sampled_from(MODES), events=st.lists(EVENTS, max_size=12))
def test_whatever_the_order_each_death_is_obeyed_once_and_none_after_the_stop(on_failure, events):
    deaths = Deaths("g", on_failure, range(4))
    away, gone, stopped = set(), set(), False
    for kind, rank in events:
        if kind == "stop":
            deaths.stopping = stopped = True
        elif kind == "return":
            deaths.on_return(rank)
            away.discard(rank)
        elif kind == "give up":
            if rank in away:
                assert deaths.give_up(rank, kind).ends_calls
                away.discard(rank)
                gone.add(rank)
        else:
            tell = deaths.on_lost if kind == "lost" else deaths.on_exit
            consequences = tell(rank, kind)
            news = not stopped and rank not in gone | away
            assert (consequences is not NOTHING) == news
            if news:
                (away if on_failure.startswith("restart") else gone).add(rank)
                if on_failure == "restart_group":
                    assert {lost.rank for lost in consequences.others} == set(range(4)) - away - gone
                    away, gone = set(range(4)), set()
                assert consequences.ends_calls == (on_failure in ("fail", "end"))
                assert consequences.restart == (on_failure in ("restart", "restart_group"))
                assert consequences.stop == (on_failure == "end")
                assert consequences.kill == (kind == "lost")
                assert (consequences.report is None) == (on_failure == "end")
    assert (set(deaths.dead), set(deaths.away)) == (gone, away)
    for wanted in range(4):
        refused = deaths.refusal([wanted], "stopped") is not None
        assert refused == (stopped or wanted in gone or (bool(gone) and on_failure != "ignore"))


@given(
    on_failure=st.sampled_from(["fail", "ignore", "restart"]),
    events=st.lists(st.tuples(st.sampled_from(["exit", "wanted", "return", "give up"]), st.integers(0, 2))),
)
def test_who_is_told_of_each_change_refuses_and_ends_the_same_calls(on_failure, events):
    deaths, told = Deaths("g", on_failure), Deaths("g", on_failure)
    for kind, rank in events:
        ends_calls = False
        if kind == "exit":
            ends_calls = deaths.on_exit(rank, kind).ends_calls
        elif kind == "wanted":
            deaths.on_restart(rank, kind)
        elif rank not in deaths.away:
            continue
        elif kind == "return":
            deaths.on_return(rank)
        else:
            ends_calls = deaths.give_up(rank, kind).ends_calls
        assert told.told(rank, deaths.state_of(rank), deaths.reason_of(rank)) or not ends_calls
        assert (told.dead, told.away) == (deaths.dead, deaths.away)
        assert str(told.end_of_call("act")) == str(deaths.end_of_call("act"))
        for wanted in range(3):
            assert str(told.refusal([wanted], "")) == str(deaths.refusal([wanted], ""))
