"""Batches between groups of different sizes: real processes, by messages and by channels."""

import re

import numpy as np
import pytest
from routed_workers import WAIT_S, Env, Rollout, observations

from forked_job import ForkedJob
from launched import launched
from rlinf_scheduler import Channel, PackedPlacementStrategy
from rlinf_scheduler.errors import (
    ChannelTimeout,
    CommTimeout,
    PeerDied,
    PeerNotFound,
    RouteError,
    WorkerDied,
    WorkerError,
)
from rlinf_scheduler.observe.why import why
from rlinf_scheduler.routing import plan_route
from rlinf_scheduler.session import set_current
from waits import wait_until


def ranks(number, first=0):
    return PackedPlacementStrategy(first, first + number - 1)


@pytest.fixture(scope="module")
def shared_job():
    """A job of all tests here, and four ranks that send and two that answer; most tests have a tag of their own."""
    job = ForkedJob()
    with launched(job, env=(Env, ranks(4)), rollout=(Rollout, ranks(2))) as both:
        yield job, both
    job.close()


@pytest.fixture
def job(shared_job):
    set_current(shared_job[0].session)
    return shared_job[0]


@pytest.fixture
def groups(shared_job, job):
    return shared_job[1]


def outcome(result):
    """What a call of one rank failed with, in the rank."""
    with pytest.raises(WorkerError) as caught:
        result.wait(WAIT_S)
    return caught.value.cause


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("channel", ["", "even requests"])
def test_rows_go_to_a_group_of_another_size_and_come_back_to_their_places(groups, job, channel, async_op):
    env, rollout = groups
    channel = channel and Channel.create(f"{channel} {async_op}").name
    answered = rollout.answer("env", steps=3, channel=channel)
    assert env.round_trips("rollout", 4, steps=3, channel=channel, async_op=async_op).wait(WAIT_S) == [3] * 4
    first, second = answered.wait(WAIT_S)
    assert first == [[f"{rank}/{row}" for rank in (0, 1) for row in range(4)]] * 3
    assert second == [[f"{rank}/{row}" for rank in (2, 3) for row in range(4)]] * 3


@pytest.mark.parametrize("channel", ["", "uneven requests"])
def test_uneven_rows_are_shared_as_evenly_as_it_goes(groups, channel):
    env, rollout = groups
    if channel:
        Channel.create(channel)
    answered = rollout.answer("env", 11, steps=2, channel=channel)
    calls = [
        env.execute_on(rank).round_trips("rollout", rows, 11, steps=2, channel=channel)
        for rank, rows in enumerate((3, 3, 3, 2))
    ]
    assert [call.wait(WAIT_S) for call in calls] == [[2]] * 4
    assert [list(map(len, seen)) for seen in answered.wait(WAIT_S)] == [[6, 6], [5, 5]]


def test_each_side_may_have_any_rows_by_a_route(groups):
    env, rollout = groups
    route = plan_route("env", [5, 0, 2, 0], "rollout", [1, 6])
    answered = rollout.answer("env", route)
    calls = [
        env.execute_on(rank).send_rows("rollout", rows, route, tag="obs")
        for rank, rows in enumerate(route.sent)
    ]
    back = env.recv_rows("rollout", route.back(), tag="actions")
    for call in calls:
        call.wait(WAIT_S)
    assert answered.wait(WAIT_S) == [[["0/0"]], [["0/1", "0/2", "0/3", "0/4", "2/0", "2/1"]]]
    first, none, third, _ = back.wait(WAIT_S)
    assert none is None
    assert first["names"] == [f"0/{row}" for row in range(5)]
    assert third["names"] == ["2/0", "2/1"]


def test_more_receivers_than_senders_and_than_rows(groups):
    env, rollout = groups
    received = env.recv_rows("rollout", 3)
    sent = [rollout.execute_on(rank).send_rows("env", rows, 3) for rank, rows in enumerate((2, 1))]
    names = [batch and batch["names"] for batch in received.wait(WAIT_S)]
    assert names == [["0/0"], ["0/1"], ["1/0"], None]
    for call in sent:
        call.wait(WAIT_S)


def test_streams_of_different_tags_do_not_mix(groups):
    env, rollout = groups
    for tag, rows in (("a", 1), ("b", 2), ("", 3)):
        env.send_rows("rollout", rows, tag=tag).wait(WAIT_S)
    for tag, rows in (("", 6), ("b", 4), ("a", 2)):
        assert [len(batch["names"]) for batch in rollout.recv_rows("env", tag=tag).wait(WAIT_S)] == [rows] * 2


def test_a_task_awaits_its_rows_and_chains_on_them(groups):
    env, rollout = groups
    received = rollout.recv_in_a_task("env")
    env.send_rows("rollout", 3).wait(WAIT_S)
    assert received.wait(WAIT_S) == [(6, True)] * 2


def test_rows_that_do_not_fit_are_an_error_before_anything_is_sent(groups):
    env, rollout = groups
    error = outcome(rollout.execute_on(1).send_rows("env", 5))
    assert isinstance(error, RouteError)
    assert str(error).startswith(
        "route from 'rollout' to 'env': rollout:1 has 5 rows, so 2 ranks have 10, which 4 ranks of 'env' cannot"
    )
    first = env.execute_on(0)
    error = outcome(env.execute_on(1).send_rows("rollout", 3, 9, tag="unfit"))
    assert "env:1 has 3 rows, and is to send 2 of the 9 of all 4 ranks (env:0 3, env:1 2" in str(error)
    error = outcome(first.send_object("rollout", {"a": np.ones(3), "b": np.ones(4)}, tag="unfit"))
    assert "the batch of env:0: batch['a'] has 3 rows, and batch['b'] has 4" in str(error)
    error = outcome(first.send_rows("rollout", 3, [3, 3, 3], tag="unfit"))
    assert "rows= has 3 numbers, and 'env' has 4 ranks" in str(error)
    error = outcome(first.send_rows("rollout", 3, plan_route("env", 3, "rollout", 2, rows=9), tag="unfit"))
    assert "the route has 3 ranks of 'env', which has 4" in str(error)
    error = outcome(first.send_rows("rollout", 3, plan_route("env", 4, "actor", 2, rows=12), tag="unfit"))
    assert "the route that was given is from 'env' to 'actor'" in str(error)
    assert isinstance(
        outcome(rollout.execute_on(0).recv_rows("env", 9, timeout_s=0.1, tag="unfit")), CommTimeout
    )


def test_senders_and_receivers_that_say_different_rows_are_told_of_it(groups):
    env, rollout = groups
    env.send_rows("rollout", 3, tag="different").wait(WAIT_S)
    error = outcome(rollout.execute_on(0).recv_rows("env", 16, tag="different"))
    assert "env:0 sent 3 rows to rollout:0, where 4 belong (rows 0-3 of 16)" in str(error)
    # Nobody says how many: then all senders have as many.
    for rank in (0, 1):
        env.execute_on(rank).send_rows("rollout", 3 - rank, tag="unlike").wait(WAIT_S)
    error = outcome(rollout.execute_on(0).recv_rows("env", tag="unlike"))
    assert "env:1 sent 2 rows to rollout:0, where 3 belong" in str(error)


def test_a_group_that_nobody_launched_is_an_error_that_names_those_that_are_there(groups, job):
    first = groups[0].execute_on(0)
    error = outcome(first.send_rows("rolout", 1, timeout_s=0.1))
    assert isinstance(error, PeerNotFound)
    assert "nobody named 'rolout'" in str(error)
    assert "rollout" in error.known
    Channel.create("no group")
    assert "'no group' is a channel, and no group" in str(outcome(first.send_rows("no group", 1)))


@pytest.mark.parametrize(("channel", "kind"), [("", CommTimeout), ("late", ChannelTimeout)])
def test_rows_that_a_failed_wait_had_got_already_are_there_for_the_next(groups, channel, kind):
    env, rollout = groups
    by = {"channel": Channel.create(channel), "tag": "late"} if channel else {"tag": "late"}
    first = rollout.execute_on(0)
    env.execute_on(0).send_rows("rollout", 2, **by).wait(WAIT_S)
    error = outcome(first.recv_rows("env", timeout_s=2.0, **by))
    assert isinstance(error, kind)
    assert channel or "recv from 'env:1' not done" in str(error)
    env.execute_on(1).send_rows("rollout", 2, **by).wait(WAIT_S)
    assert first.recv_rows("env", **by).wait(WAIT_S)[0]["names"] == ["0/0", "0/1", "1/0", "1/1"]


def test_a_wait_for_rows_says_whom_it_waits_for(groups, job):
    env, rollout = groups
    env.execute_on(1).send_rows("rollout", 2, tag="why").wait(WAIT_S)
    received = rollout.execute_on(0).recv_rows("env", tag="why")

    def waits():
        blocked = why(job.session).graph.blocked.get("rollout:0", ())
        return [(each.wait.operation, each.wait.peers) for each in blocked]

    wait_until(lambda: waits() == [("recv_from('env', tag='why')", ("env:0",))])
    text = str(why(job.session))
    assert re.search(r"rollout:0 .*recv_from\('env', tag='why'\).*\n? *env:0", text), text
    env.execute_on(0).send_rows("rollout", 2, tag="why").wait(WAIT_S)
    received.wait(WAIT_S)


def test_a_wait_at_a_channel_says_so_too(groups, job):
    rollout = groups[1].execute_on(0)
    by = Channel.create("why rows")
    received = rollout.recv_rows("env", channel=by, timeout_s=WAIT_S)

    def waits():
        blocked = why(job.session).graph.blocked.get("rollout:0", ())
        return [(each.wait.operation, each.wait.subject) for each in blocked]

    wait_until(lambda: waits() == [("recv_from('env', channel='why rows')", "why rows")])
    groups[0].send_rows("rollout", 1, channel=by).wait(WAIT_S)
    assert received.wait(WAIT_S)[0]["names"] == ["0/0", "1/0"]


def test_a_sender_that_dies_is_named_and_its_successor_rejoins(job):
    env = Env.create_group().launch(job, ranks(2), name="mortal", on_failure="restart")
    with launched(job, patient=(Rollout, ranks(1))) as (rollout,):
        env.restarts().wait(WAIT_S)
        env.execute_on(0).send_rows("patient", 2).wait(WAIT_S)
        waiting = rollout.recv_rows("mortal", 4)
        patient = rollout.execute_on(0)
        with pytest.raises(WorkerDied):
            env.execute_on(1).die().wait(WAIT_S)
        error = outcome(waiting)
        assert isinstance(error, PeerDied)
        assert error.peer == "mortal:1"
        # What the living one had sent is still there, and the successor's rows make the batch whole.
        received = patient.recv_rows("mortal", 4, wait_for_return=True)
        assert env.restarts().wait(WAIT_S) == [0, 1]
        env.execute_on(1).send_rows("patient", 2).wait(WAIT_S)
        assert received.wait(WAIT_S)[0]["names"] == ["0/0", "0/1", "1/0", "1/1"]
    env.terminate()


def test_receivers_that_are_gone_are_named_and_the_others_have_their_rows(job):
    with launched(job, lonely=(Env, ranks(1))) as (env,):
        rollout = Rollout.create_group().launch(job, ranks(3), name="gone", on_failure="ignore")
        env.send_rows("gone", 3).wait(WAIT_S)
        for rank in (1, 2):
            with pytest.raises(WorkerDied):
                rollout.execute_on(rank).die().wait(WAIT_S)
        error = outcome(env.send_rows("gone", 6))
        assert isinstance(error, PeerDied)
        assert error.peer == "gone:1, gone:2"
        received = rollout.execute_on(0)
        assert len(received.recv_rows("lonely").wait(WAIT_S)[0]["names"]) == 1
        assert len(received.recv_rows("lonely").wait(WAIT_S)[0]["names"]) == 2
        rollout.terminate()


@pytest.mark.parametrize("channel", ["", "again by"])
def test_rows_of_another_run_of_a_group_with_another_size_are_not_mixed_up(job, channel):
    by = {"channel": Channel.create(channel)} if channel else {}
    with launched(job, steady=(Env, ranks(2))) as (env,):
        for size in (1, 4):
            with launched(job, again=(Rollout, ranks(size))) as (rollout,):
                env.send_rows("again", 2, **by).wait(WAIT_S)
                batches = rollout.recv_rows("steady", timeout_s=WAIT_S, **by).wait(WAIT_S)
                assert sum(len(batch["names"]) for batch in batches) == 4


def test_what_a_directly_constructed_worker_says():
    from rlinf_scheduler.errors import ClusterError

    with pytest.raises(ClusterError, match="launch its group to communicate"):
        Env().send_to("rollout", observations(0, 2))
