"""Seeds of ranks: derived from the job's, given to the process, and the same in whoever takes its place."""

import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seeded_workers import Drawing

from rlinf.scheduler import PackedPlacementStrategy, Worker
from rlinf_scheduler.errors import ConfigError, WorkerDied
from rlinf_scheduler.events import GroupLaunched, WorkerStarted
from rlinf_scheduler.host.info import DrawnSeed, checked_seed, rank_seed, seed_generators
from waits import wait_until

TWO = PackedPlacementStrategy(0, 1)


@given(st.integers(0, 2**63 - 1), st.integers(0, 99))
def test_a_ranks_seed_fits_every_generator_and_is_its_own(seed, rank):
    own = rank_seed(seed, "actor", rank)
    assert 0 <= own < 2**32
    assert own == rank_seed(seed, "actor", rank)
    assert len({own, rank_seed(seed, "actor", rank + 1), rank_seed(seed, "rollout", rank)}) == 3


def test_what_is_derived_stays_what_it_was():
    # Of a run that somebody wants to have again with a newer version.
    assert rank_seed(7, "actor", 0) == 2692093569


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, True, "7"])
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(ConfigError, match="whole number"):
        checked_seed(seed)


def test_a_group_that_is_given_none_has_its_own_from_the_variable_or_draws_one(monkeypatch):
    monkeypatch.setenv("RLINF_SEED", "41")
    assert DrawnSeed(None).value == 41
    monkeypatch.setenv("RLINF_SEED", "x")
    with pytest.raises(ConfigError, match="RLINF_SEED='x'"):
        _ = DrawnSeed(None)
    monkeypatch.delenv("RLINF_SEED")
    assert DrawnSeed(None).value != DrawnSeed(None).value


def test_the_generators_that_are_loaded_are_seeded(monkeypatch):
    seeds = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(manual_seed=seeds.append))
    before = random.getstate(), np.random.get_state()
    try:
        drawn = []
        for _ in range(2):
            seed_generators(5)
            drawn.append((random.random(), np.random.random()))
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
    assert drawn[0] == drawn[1]
    assert seeds == [5, 5]


def test_a_worker_may_have_a_seed_of_its_own():
    class Own(Worker):
        def __init__(self, seed):
            self.seed = seed

    assert Own(3).seed == 3
    assert Worker().seed == 0


def test_ranks_have_the_seeds_of_their_launch_also_those_that_come_back(forked_job):
    told = []
    forked_job.session.bus.subscribe(told.append)
    group = Drawing.create_group().launch(forked_job, TWO, name="seeded", seed=7, on_failure="restart")
    drawn = group.what().wait(60)
    wanted = [rank_seed(7, "seeded", rank) for rank in (0, 1)]
    assert [each[0] for each in drawn] == wanted
    assert [int(each[1]) for each in drawn] == wanted
    for seed, _, first, second in drawn:
        assert first == random.Random(seed).random()
        assert second == np.random.RandomState(seed).random_sample()
    with pytest.raises(WorkerDied):
        group.execute_on(1).die_once().wait(60)
    assert group.what().wait(60) == drawn

    def heard():
        started = {event.rank: event.seed for event in told if isinstance(event, WorkerStarted)}
        launched = [event.seed for event in told if isinstance(event, GroupLaunched)]
        return launched == [7] and started == dict(enumerate(wanted))

    wait_until(heard)
