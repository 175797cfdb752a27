"""Batches between groups of different sizes: real processes, by messages and by channels."""

import re
from contextlib import contextmanager

import numpy as np
import pytest
from routed_workers import WAIT_S, Env, Rollout, observations

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
from waits import wait_until


def ranks(number, first=0):
    return PackedPlacementStrategy(first, first + number - 1)


@contextmanager
def groups(job, envs, rollouts):
    with launched(job, env=(Env, ranks(envs)), rollout=(Rollout, ranks(rollouts))) as both:
        yield both


def outcome(result):
    """What a call of one rank failed with, in the rank."""
    with pytest.raises(WorkerError) as caught:
        result.wait(WAIT_S)
    return caught.value.cause


@pytest.mark.parametrize("channel", ["", "requests"])
@pytest.mark.parametrize("async_op", [False, True])
def test_rows_go_to_a_group_of_another_size_and_come_back_to_their_places(forked_job, channel, async_op):
    with groups(forked_job, 4, 2) as (env, rollout):
        if channel:
            Channel.create(channel)
        answered = rollout.answer("env", steps=3, channel=channel)
        assert (
            env.round_trips("rollout", 4, steps=3, channel=channel, async_op=async_op).wait(WAIT_S) == [3] * 4
        )
        first, second = answered.wait(WAIT_S)
        assert first == [[f"{rank}/{row}" for rank in (0, 1) for row in range(4)]] * 3
        assert second == [[f"{rank}/{row}" for rank in (2, 3) for row in range(4)]] * 3


@pytest.mark.parametrize("channel", ["", "requests"])
def test_uneven_rows_are_shared_as_evenly_as_it_goes(forked_job, channel):
    with groups(forked_job, 3, 2) as (env, rollout):
        if channel:
            Channel.create(channel)
        answered = rollout.answer("env", 11, steps=2, channel=channel)
        calls = [
            env.execute_on(rank).round_trips("rollout", rows, 11, steps=2, channel=channel)
            for rank, rows in enumerate((4, 4, 3))
        ]
        assert [call.wait(WAIT_S) for call in calls] == [[2]] * 3
        assert [list(map(len, seen)) for seen in answered.wait(WAIT_S)] == [[6, 6], [5, 5]]


def test_each_side_may_have_any_rows_by_a_route(forked_job):
    route = plan_route("env", [5, 0, 2], "rollout", [1, 6])
    with groups(forked_job, 3, 2) as (env, rollout):
        answered = rollout.answer("env", route)
        calls = [
            env.execute_on(rank).send_rows("rollout", rows, route, tag="obs")
            for rank, rows in enumerate(route.sent)
        ]
        back = env.recv_rows("rollout", route.back(), tag="actions")
        for call in calls:
            call.wait(WAIT_S)
        assert answered.wait(WAIT_S) == [[["0/0"]], [["0/1", "0/2", "0/3", "0/4", "2/0", "2/1"]]]
        first, none, last = back.wait(WAIT_S)
        assert none is None
        assert first["names"] == [f"0/{row}" for row in range(5)]
        assert last["names"] == ["2/0", "2/1"]


def test_more_receivers_than_senders_and_than_rows(forked_job):
    with groups(forked_job, 1, 4) as (env, rollout):
        received = rollout.recv_rows("env", 2)
        env.send_rows("rollout", 2, 2).wait(WAIT_S)
        names = [batch and batch["names"] for batch in received.wait(WAIT_S)]
        assert names == [["0/0"], ["0/1"], None, None]


def test_streams_of_different_tags_and_plain_messages_do_not_mix(forked_job):
    with groups(forked_job, 1, 1) as (env, rollout):
        env.send_rows("rollout", 1, tag="a").wait(WAIT_S)
        env.send_rows("rollout", 2, tag="b").wait(WAIT_S)
        env.send_rows("rollout", 3).wait(WAIT_S)
        assert len(rollout.recv_rows("env").wait(WAIT_S)[0]["names"]) == 3
        assert len(rollout.recv_rows("env", tag="b").wait(WAIT_S)[0]["names"]) == 2
        assert len(rollout.recv_rows("env", tag="a").wait(WAIT_S)[0]["names"]) == 1


def test_a_task_awaits_its_rows_and_chains_on_them(forked_job):
    with groups(forked_job, 2, 1) as (env, rollout):
        received = rollout.recv_in_a_task("env")
        env.send_rows("rollout", 3).wait(WAIT_S)
        assert received.wait(WAIT_S) == [(6, True)]


def test_rows_that_do_not_fit_are_an_error_before_anything_is_sent(forked_job):
    with groups(forked_job, 2, 3) as (env, rollout):
        error = outcome(env.execute_on(1).send_rows("rollout", 4))
        assert isinstance(error, RouteError)
        assert str(error).startswith(
            "route from 'env' to 'rollout': env:1 has 4 rows, so 2 ranks have 8, which 3 ranks of 'rollout' cannot"
        )
        error = outcome(env.execute_on(1).send_rows("rollout", 3, 9))
        assert "env:1 has 3 rows, and is to send 4 of the 9 of all 2 ranks (env:0 5, env:1 4)" in str(error)
        error = outcome(env.execute_on(0).send_object("rollout", {"a": np.ones(3), "b": np.ones(4)}))
        assert "the batch of env:0: batch['a'] has 3 rows, and batch['b'] has 4" in str(error)
        error = outcome(env.execute_on(0).send_rows("rollout", 3, [3, 3, 3]))
        assert "rows= has 3 numbers, and 'env' has 2 ranks" in str(error)
        error = outcome(
            env.execute_on(0).send_rows("rollout", 3, plan_route("env", 4, "rollout", 3, rows=12))
        )
        assert "the route has 4 ranks of 'env', which has 2" in str(error)
        assert isinstance(outcome(rollout.execute_on(0).recv_rows("env", 9, timeout_s=0.1)), CommTimeout)


def test_senders_and_receivers_that_say_different_rows_are_told_of_it(forked_job):
    with groups(forked_job, 2, 1) as (env, rollout):
        env.send_rows("rollout", 3).wait(WAIT_S)
        error = outcome(rollout.recv_rows("env", 8))
        assert "env:0 sent 3 rows to rollout:0, where 4 belong (rows 0-3 of 8)" in str(error)
        # Nobody says how many: then all senders have as many.
        env.execute_on(0).send_rows("rollout", 3).wait(WAIT_S)
        env.execute_on(1).send_rows("rollout", 2).wait(WAIT_S)
        error = outcome(rollout.recv_rows("env"))
        assert "env:1 sent 2 rows to rollout:0, where 3 belong" in str(error)


def test_a_group_that_nobody_launched_is_an_error_that_names_those_that_are_there(forked_job):
    with groups(forked_job, 1, 1) as (env, _):
        error = outcome(env.send_rows("rolout", 1, timeout_s=0.1))
        assert isinstance(error, PeerNotFound)
        assert "nobody named 'rolout'" in str(error)
        assert "rollout" in error.known
        Channel.create("obs")
        assert "'obs' is a channel, and no group" in str(outcome(env.send_rows("obs", 1)))


def test_rows_that_a_failed_wait_had_got_already_are_there_for_the_next(forked_job):
    with groups(forked_job, 2, 1) as (env, rollout):
        env.execute_on(0).send_rows("rollout", 2).wait(WAIT_S)
        error = outcome(rollout.recv_rows("env", timeout_s=0.3))
        assert isinstance(error, CommTimeout)
        assert "recv from 'env:1' not done" in str(error)
        env.execute_on(1).send_rows("rollout", 2).wait(WAIT_S)
        assert rollout.recv_rows("env").wait(WAIT_S)[0]["names"] == ["0/0", "0/1", "1/0", "1/1"]


def test_of_a_channel_too(forked_job):
    with groups(forked_job, 2, 1) as (env, rollout):
        by = Channel.create("by")
        env.execute_on(0).send_rows("rollout", 2, channel=by).wait(WAIT_S)
        assert isinstance(outcome(rollout.recv_rows("env", timeout_s=0.3, channel=by)), ChannelTimeout)
        env.execute_on(1).send_rows("rollout", 2, channel=by).wait(WAIT_S)
        names = rollout.recv_rows("env", channel=by).wait(WAIT_S)[0]["names"]
        assert names == ["0/0", "0/1", "1/0", "1/1"]


def test_a_sender_that_dies_is_named_and_its_successor_rejoins(forked_job):
    env = Env.create_group().launch(forked_job, ranks(2), name="env", on_failure="restart")
    with launched(forked_job, rollout=(Rollout, ranks(1))) as (rollout,):
        env.restarts().wait(WAIT_S)
        env.execute_on(0).send_rows("rollout", 2).wait(WAIT_S)
        waiting = rollout.recv_rows("env", 4)
        patient = rollout.execute_on(0)
        with pytest.raises(WorkerDied):
            env.execute_on(1).die().wait(WAIT_S)
        error = outcome(waiting)
        assert isinstance(error, PeerDied)
        assert error.peer == "env:1"
        # What the living one had sent is still there, and the successor's rows make the batch whole.
        received = patient.recv_rows("env", 4, wait_for_return=True)
        assert env.restarts().wait(WAIT_S) == [0, 1]
        env.execute_on(1).send_rows("rollout", 2).wait(WAIT_S)
        assert received.wait(WAIT_S)[0]["names"] == ["0/0", "0/1", "1/0", "1/1"]
    env.terminate()


def test_receivers_that_are_gone_are_named_and_the_others_have_their_rows(forked_job):
    with launched(forked_job, env=(Env, ranks(1))) as (env,):
        rollout = Rollout.create_group().launch(forked_job, ranks(3), name="rollout", on_failure="ignore")
        env.send_rows("rollout", 3).wait(WAIT_S)
        for rank in (1, 2):
            with pytest.raises(WorkerDied):
                rollout.execute_on(rank).die().wait(WAIT_S)
        error = outcome(env.send_rows("rollout", 6))
        assert isinstance(error, PeerDied)
        assert error.peer == "rollout:1, rollout:2"
        received = rollout.execute_on(0)
        assert len(received.recv_rows("env").wait(WAIT_S)[0]["names"]) == 1
        assert len(received.recv_rows("env").wait(WAIT_S)[0]["names"]) == 2
        rollout.terminate()


def test_a_wait_for_rows_says_whom_it_waits_for(forked_job):
    with groups(forked_job, 3, 1) as (env, rollout):
        env.execute_on(1).send_rows("rollout", 2, tag="obs").wait(WAIT_S)
        received = rollout.recv_rows("env", tag="obs")

        def waits():
            blocked = why(forked_job.session).graph.blocked.get("rollout:0", ())
            return [(each.wait.operation, each.wait.peers) for each in blocked]

        wait_until(lambda: waits() == [("recv_from('env', tag='obs')", ("env:0", "env:2"))])
        text = str(why(forked_job.session))
        assert re.search(r"rollout:0 .*recv_from\('env', tag='obs'\)", text), text
        for rank in (0, 2):
            env.execute_on(rank).send_rows("rollout", 2, tag="obs").wait(WAIT_S)
        received.wait(WAIT_S)


def test_rows_of_another_run_of_a_group_with_another_size_are_not_mixed_up(forked_job):
    with launched(forked_job, env=(Env, ranks(2))) as (env,):
        for size in (1, 4):
            with launched(forked_job, rollout=(Rollout, ranks(size))) as (rollout,):
                env.send_rows("rollout", 2).wait(WAIT_S)
                batches = rollout.recv_rows("env").wait(WAIT_S)
                assert sum(len(batch["names"]) for batch in batches) == 4


def test_what_a_directly_constructed_worker_says():
    from rlinf_scheduler.errors import ClusterError

    with pytest.raises(ClusterError, match="launch its group to communicate"):
        Env().send_to("rollout", observations(0, 2))
