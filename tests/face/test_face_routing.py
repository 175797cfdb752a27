"""Routing by RLinf's names: the plans, and environments, rollout and actor that exchange uneven batches."""

from functools import partial

import numpy as np
import pytest
import torch

from face_routing_workers import WAIT_S, Actor, Env, Rollout, Served
from forked_job import ForkedJob
from launched import launched
from rlinf.scheduler import (
    Channel,
    CommMapper,
    PackedPlacementStrategy,
    build_recv_plan,
    build_route_channel_key,
    build_send_key,
    build_send_plan,
    decoupled_build_recv_plan,
    get_batch_size,
    get_group_world_size,
    infer_batch_size,
    merge_batches,
    split_batch,
    split_channel_message,
)
from rlinf.scheduler.worker import (
    RouteEntry,
    decoupled_build_send_plan,
)
from rlinf_scheduler.errors import RouteError
from rlinf_scheduler.session import set_current

GROUPS = {"src_group_name": "env", "dst_group_name": "rollout"}


@pytest.fixture(scope="module")
def shared_job():
    """A job of all tests here."""
    job = ForkedJob()
    with launched(
        job, env=(Env, ranks(0, 2)), rollout=(Rollout, ranks(3, 4)), actor=(Actor, ranks(5, 6))
    ) as groups:
        yield job, groups
    job.close()


@pytest.fixture
def job(shared_job):
    set_current(shared_job[0].session)
    return shared_job[0]


@pytest.fixture
def roles(shared_job, job):
    return shared_job[1]


def ranks(first, last):
    return PackedPlacementStrategy(first, last)


# -- plans -------------------------------------------------------------------------------------------


def test_a_sender_and_a_receiver_have_the_same_entries():
    sizes = {
        **GROUPS,
        "src_world_size": 3,
        "dst_world_size": 2,
        "tag": "obs",
        "route_key": 1,
        "batch_size": 64,
    }
    sent = [build_send_plan(**sizes, src_rank=rank) for rank in range(3)]
    received = [build_recv_plan(**sizes, dst_rank=rank) for rank in range(2)]
    assert [[(e.peer_rank, e.batch_size) for e in plan.entries] for plan in sent] == [
        [(0, 22)],
        [(0, 10), (1, 11)],
        [(1, 21)],
    ]
    assert {e.key for plan in sent for e in plan.entries} == {
        e.key for plan in received for e in plan.entries
    }
    assert sent[1].entries[0] == RouteEntry(0, 10, ("scheduler_route", "env", "rollout", "obs", "1", 1, 0))
    with pytest.raises(TypeError, match="a route has no 'route_kee'"):
        build_send_plan(**sizes, src_rank=0, route_kee=1)
    del sizes["src_group_name"]
    for plan in (
        partial(build_send_plan, src_rank=0),
        partial(build_recv_plan, dst_rank=0),
        partial(decoupled_build_send_plan, src_rank=0),
        partial(decoupled_build_recv_plan, recv_rank=0),
    ):
        with pytest.raises(TypeError, match="a route needs 'src_group_name'"):
            plan(**sizes)


def test_keys_have_a_default_tag_and_keys_of_any_kind():
    assert build_route_channel_key("a", "b", 0, 1, None) == ("scheduler_route", "a", "b", "default", "", 0, 1)
    assert build_send_key(
        src_group_name="a", dst_group_name="b", src_rank=None, dst_rank=1, tag="t", route_key=(1, "x")
    ) == ("scheduler_route", "a", "b", "t", "(1, 'x')", None, 1)
    assert CommMapper.build_channel_key(3, 1, "extra") == "3_1_extra"


@pytest.mark.parametrize(
    ("sizes", "queue_size", "expected"),
    [
        ((32, 4, 2), 0, [8]),
        ((32, 2, 8), 0, [4, 4, 4, 4]),
        ((32, 2, 4), 1, [8]),
        ((32, 2, 2), 1, [16]),
        ((36, 2, 3), 0, [12]),
    ],
)
def test_messages_of_the_decoupled_form(sizes, queue_size, expected):
    assert CommMapper.decoupled_get_batch_size(*sizes, queue_size) == expected


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (lambda: CommMapper.decoupled_get_batch_size(10, 4, 2), "10 rows cannot be shared evenly by 4 ranks"),
        (
            lambda: CommMapper.decoupled_get_batch_size(8, 2, 4, 3),
            "a queue size of 3 is more than the 2 messages",
        ),
        (lambda: CommMapper.get_dst_ranks(8, 2, 4, 2), "there is no source rank 2 of 2"),
        (lambda: CommMapper.get_src_ranks(8, 2, 4, -1), "there is no destination rank -1 of 4"),
    ],
)
def test_sizes_that_do_not_fit_are_value_errors(plan, problem):
    with pytest.raises(ValueError, match=problem):
        plan()


def test_messages_of_the_decoupled_form_are_answered_to_whom_they_came_from():
    sizes = {"src_world_size": 2, "dst_world_size": 4, "batch_size": 16, "route_key": None}
    asked = ["3_0_train_rollout_results", "1_0_train_rollout_results"]
    assert split_channel_message(asked[0]) == (3, 0, "train", "rollout_results")
    plan = decoupled_build_send_plan(
        src_group_name="rollout",
        dst_group_name="env",
        src_rank=None,
        tag="x",
        tag_batch_router=asked,
        **sizes,
    )
    assert [(e.batch_size, e.key[-2:], e.key[3], e.batch_index) for e in plan.entries] == [
        (4, (None, 3), "rollout_results", asked[0]),
        (4, (None, 1), "rollout_results", asked[1]),
    ]
    received = decoupled_build_recv_plan(**GROUPS, recv_rank=None, tag="x", **sizes)
    key = build_route_channel_key("env", "rollout", None, None, "x")
    assert received.entries == [RouteEntry(None, 4, key)] * 2
    with pytest.raises(RouteError, match="1 messages wait for an answer of 2 parts"):
        decoupled_build_send_plan(**GROUPS, src_rank=None, tag="x", tag_batch_router=asked[:1], **sizes)


def test_rows_of_batches():
    batch = {"states": torch.arange(6.0), "images": None, "texts": list("abcdef"), "mode": "eval"}
    assert infer_batch_size(batch) == get_batch_size(batch) == 6
    assert get_batch_size(batch, lambda _: 9) == 9
    parts = split_batch(batch, [4, 2])
    assert parts[1]["texts"] == ["e", "f"]
    assert torch.equal(merge_batches(parts)["states"], batch["states"])
    assert split_batch("text", [1, 2]) == ["text", "text"]
    assert merge_batches([None, None]) is None


def test_a_group_is_asked_of_a_programs_own_manager_where_there_is_no_job():
    class Manager:
        def get_worker_info(self, address):
            return type("Info", (), {"group_world_size": 5}) if address.group == "env" else None

    assert get_group_world_size(Manager(), "env") == 5
    with pytest.raises(ValueError, match="there is no group 'rollout'"):
        get_group_world_size(Manager(), "rollout")


# -- programs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("p2p", [False, True])
def test_uneven_environments_rollout_and_actor(roles, p2p):
    env, rollout, actor = roles
    channels = [None] * 3 if p2p else [Channel.create(name) for name in ("obs", "actions", "trajectories")]
    interacted = env.interact(*channels, steps=3, total=64)
    generated = rollout.generate(*channels[:2], steps=3, total=64)
    trained = actor.train(channels[2], total=64)
    # Every action came back to the environment, and the row, that asked; each row was trained on once.
    assert interacted.wait(WAIT_S) == [22, 21, 21]
    assert generated.wait(WAIT_S) == [32 * 3, 32 * 3]
    keys = np.concatenate(trained.wait(WAIT_S))
    assert sorted(map(tuple, keys)) == [
        (rank, row) for rank, rows in enumerate((22, 21, 21)) for row in range(rows)
    ]


def test_environments_that_are_answered_by_whoever_is_free(job):
    with launched(job, envs=(Env, ranks(0, 3)), served=(Served, ranks(4, 5))) as (env, rollout):
        requests, answers = Channel.create("requests"), Channel.create("answers")
        interacted = env.interact_decoupled("served", requests, answers, steps=4, total=16)
        served = rollout.serve("envs", requests, answers, total=16, num_messages=8)
        assert interacted.wait(WAIT_S) == [16, 16, 16, 16]
        assert sum(served.wait(WAIT_S)) == 4 * 16


def test_what_cannot_be_routed_is_an_error_at_once(roles):
    env, _, _ = roles
    told = env.execute_on(0).complaints().wait(WAIT_S)[0]
    assert told == [
        "ValueError: a channel by which the rows go is missing; or say enable_p2p=True",
        "ValueError: decoupled_mode needs a channel: enable_p2p=True goes from rank to rank",
        "ValueError: decoupled_mode needs self.batch_router: {} of a rank that asks, {tag: []} of one that answers",
        "RouteError: route from 'env' to 'rollout': env:0 has 3 rows, so 3 ranks have 9, which 2 ranks of 'rollout' "
        "cannot share evenly: say rows= on both sides, of the whole batch or of each sender; nothing was sent",
    ]
