"""The rules of leases, each told once: on the state machine, in the simulator, and on processes (`lease_stages`)."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
from lease_stages import OnProcesses, OnSimulator, OnStateMachine


@pytest.fixture(params=["state machine", "simulator", "processes"])
def new_stage(request):
    if request.param == "state machine":
        yield OnStateMachine
        return
    kind = OnSimulator
    if request.param == "processes":
        kind = partial(OnProcesses, request.getfixturevalue("sockets"))
    with contextlib.ExitStack() as made:

        def new(**options):
            stage = kind(**options)
            made.callback(stage.close)
            return stage

        yield new


def test_what_is_acknowledged_is_gone(new_stage):
    stage = new_stage()
    stage.put("a", "b")
    held = stage.lease("one")
    assert (held.items, held.attempts, stage.counts()) == (["a"], [1], (1, 1, 0))
    assert stage.ack(held)
    assert stage.counts() == (1, 0, 0)
    assert stage.lease("one").items == ["b"]


def test_what_is_given_back_stands_before_what_never_left(new_stage):
    stage = new_stage()
    stage.put("a", "b", "c")
    first, second = stage.lease("one"), stage.lease("one")
    assert stage.nack(second)
    assert stage.nack(first)
    assert [stage.lease("other")[2:] for _ in range(3)] == [(["a"], [2]), (["b"], [2]), (["c"], [1])]


def test_items_of_a_batch_are_settled_one_by_one(new_stage):
    stage = new_stage()
    stage.put(*range(5))
    held = stage.lease("one", 5)
    assert held.items == list(range(5))
    assert stage.ack(held, [1, 3])
    assert stage.nack(held, [2])
    assert stage.counts() == (1, 2, 0)
    assert stage.ack(held)
    assert (stage.lease("other").items, stage.counts()) == ([2], (0, 1, 0))


def test_the_death_of_a_consumer_ends_its_leases_at_once_and_no_others(new_stage):
    stage = new_stage()
    stage.put("a", "b")
    mine = stage.lease("one")
    stage.ack(mine)
    stage.put("c")
    stage.lease("one", 2)
    stage.die("one")
    assert stage.counts() == (2, 0, 0)
    held = stage.lease("other", 2)
    assert (held.items, held.attempts) == (["b", "c"], [2, 2])


def test_who_hangs_loses_its_lease_and_is_refused_when_it_goes_on(new_stage):
    stage = new_stage()
    stage.put("a")
    late = stage.lease("slow", hangs=True)
    stage.hang("slow")
    new = stage.lease("fast")
    assert (new.items, new.attempts) == (["a"], [2])
    stage.go_on("slow")
    assert not stage.ack(late)
    assert stage.counts() == (0, 1, 0)
    assert stage.ack(new)
    assert stage.counts() == (0, 0, 0)


@pytest.mark.parametrize("how", ["nack", "die", "hang"])
def test_an_item_that_was_given_out_too_often_is_a_dead_letter(new_stage, how):
    stage = new_stage(max_attempts=2)
    stage.put("poison", "good")
    stage.nack(stage.lease("first"))
    held = stage.lease("second", hangs=how == "hang")
    assert (held.items, held.attempts) == (["poison"], [2])
    stage.nack(held) if how == "nack" else getattr(stage, how)("second")
    ((item, attempts, reason),) = stage.dead()
    assert (item, attempts, stage.counts()) == ("poison", 2, (1, 0, 1))
    assert how != "die" or reason == "its consumer was lost"
    assert stage.lease("first").items == ["good"]


def test_what_comes_back_is_taken_after_the_end(new_stage):
    stage = new_stage()
    stage.put("a")
    held = stage.lease("one")
    stage.end()
    assert stage.nack(held)
    assert stage.lease("other")[2:] == (["a"], [2])
