"""Two groups whose models are in shards take turns on the same devices, with collectives inside. Real processes."""

import itertools
import os
import signal

import pytest
from sharded_turns_workers import Trainer

from rlinf.scheduler import PackedPlacementStrategy
from rlinf_scheduler.errors import WorkerDied, WorkerError

TWO = PackedPlacementStrategy(0, 1)


def test_two_groups_in_shards_take_turns_in_whatever_order_their_ranks_come(forked_job):
    with forked_job.starting():
        actor, critic = (
            Trainer.create_group().launch(forked_job, TWO, name=name) for name in ("actor", "critic")
        )
    turns = []
    for number in range(4):
        first, second = (actor, critic) if number % 2 else (critic, actor)
        calls = [first.execute_on(0).step(), second.execute_on(1).step()]
        calls += [first.execute_on(1).step(), second.execute_on(0).step()]
        ended = [call.wait(60)[0] for call in calls]
        assert [problems for *_, problems in ended] == [[]] * 4
        for places in ((0, 2), (1, 3)):
            turns.append((min(ended[place][0] for place in places), max(ended[place][1] for place in places)))
    turns.sort()
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(turns))


def test_a_rank_that_dies_before_its_turn_is_named_to_the_other_and_others_have_the_devices(forked_job):
    with forked_job.starting():
        actor, critic = (
            Trainer.create_group().launch(forked_job, TWO, name=name, on_failure="ignore")
            for name in ("actor", "critic")
        )
    waiting = actor.execute_on(0).step()
    os.kill(actor.health()[1].pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="'actor:1' is gone"):
        waiting.wait(60)
    assert [problems for *_, problems in critic.step().wait(60)] == [[], []]
    with pytest.raises(WorkerDied):
        actor.execute_on(1).step()
