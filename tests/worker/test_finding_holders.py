"""A node's holder is one of its processes that hold channels; one is started where there is none; without Ray."""

from test_channel_starter import a_worker, events, starter, works

from rlinf.scheduler import Channel
from rlinf_scheduler.channel import Starter
from rlinf_scheduler.comm.promise import Promise
from waits import DEADLINE_S, wait_until

__all__ = ["events", "starter"]


def found(starter):
    promise = Promise()
    starter.find_holder(promise)
    return promise.result(DEADLINE_S)


def test_channels_of_a_node_and_its_items_are_held_by_one_process(starter):
    channel = Channel.create("items")
    assert found(starter) == channel._ref.endpoint
    assert len(starter.ranks) == 1


def test_one_is_started_where_there_is_none_and_stays_the_one(starter):
    starter.may_start.clear()
    promises = [Promise() for _ in range(3)]
    for promise in promises:
        starter.find_holder(promise)
    starter.may_start.set()
    assert len({promise.result(DEADLINE_S) for promise in promises}) == 1
    channel = Channel.create("items")
    assert works(channel)
    channel.delete()
    assert found(starter) == promises[0].result()
    assert len(starter.ranks) == 1


def test_a_worker_finds_that_of_its_own_node(starter):
    with a_worker(starter, "rollout") as worker:
        theirs = found(worker.service(Starter))
        assert found(starter) != theirs
    assert [placement.node_rank for placement in starter.placements] == [1, 0]


def test_when_it_has_died_another_one_is_started(starter):
    first = found(starter)
    starter.ranks[0].kill()
    wait_until(lambda: not starter._processes)
    assert found(starter) != first
    assert len(starter.ranks) == 2
