"""How steps of environments become trajectories, in both ways in which gymnasium begins episodes anew."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from counting_env import Counting, decide
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlinf_scheduler.engines.trajectories import Decisions, SteppedEnvs, seeds_of
from rlinf_scheduler.errors import ConfigError

SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP
both_modes = pytest.mark.parametrize("mode", [SAME, NEXT])


def stepped(mode=SAME, num_envs=2, lengths=(3, 4), first_env=0, **options):
    makers = [partial(Counting, lengths[number % len(lengths)], **options) for number in range(num_envs)]
    return SteppedEnvs(
        SyncVectorEnv(makers, autoreset_mode=mode),
        first_env,
        seeds_of(7, range(first_env, first_env + num_envs)),
    )


def collected(envs, *collections):
    whole = []
    for steps in collections:
        for _ in range(steps):
            whole += envs.advance(envs.check(decide(envs.observations()), len(envs.observations())))
        whole += envs.finish(decide(envs.observations()))
    return whole


def states(trajectory):
    rows = trajectory.observations
    return [(int(row[0]), int(row[1])) for row in (rows["state"] if isinstance(rows, dict) else rows)]


@both_modes
def test_episodes_are_whole_and_their_ends_are_told_apart(mode):
    first = [each for each in collected(stepped(mode, 1, (3,)), 20) if each.episode_return is not None]
    assert [states(each) for each in first[:3]] == [[(n, 0), (n, 1), (n, 2)] for n in range(3)]
    assert [(each.terminated, each.truncated) for each in first[:3]] == [
        (False, True),
        (True, False),
        (False, True),
    ]
    assert [(each.episode_return, each.episode_steps) for each in first[:3]] == [(6.0, 3)] * 3
    assert [list(each.rewards) for each in first[:2]] == [[1.0, 2.0, 3.0]] * 2


@both_modes
def test_what_follows_is_worth_what_is_decided_about_the_last_state_and_nothing_where_terminated(mode):
    by_time, by_state, *_ = [each for each in collected(stepped(mode, 1, (3,)), 20) if each.episode_return]
    assert list(by_time.next_observation[:2]) == [0, 3]
    assert by_time.bootstrap("values") == 3.0
    assert list(by_state.next_observation[:2]) == [1, 3]
    assert (by_state.bootstrap("values"), dict(by_state.next_columns)) == (0.0, {})


@both_modes
def test_decisions_stand_beside_the_states_that_they_are_of(mode):
    for each in collected(stepped(mode), 9, 5):
        assert [10 * episode + step for episode, step in states(each)] == list(each.columns["values"])
        episode, step, _ = each.next_observation
        assert each.bootstrap("values") == (0 if each.terminated else 10 * episode + step)


@both_modes
def test_an_episode_goes_on_through_collections(mode):
    parts = collected(stepped(mode, 1, (10,)), 4, 4, 4)
    assert [len(each) for each in parts[:3]] == [4, 4, 2]
    assert [each.episode_return for each in parts[:3]] == [None, None, 55.0]
    assert [each.bootstrap("values") for each in parts[:2]] == [4.0, 8.0]


def test_every_step_in_the_same_step_is_in_one_trajectory():
    assert sum(map(len, collected(stepped(SAME, 4), 7, 8, 9))) == 4 * 24


def test_a_step_that_only_begins_anew_is_in_none():
    whole = collected(stepped(NEXT, 1, (3,)), 20)
    assert sum(map(len, whole)) == 15
    assert {len(each) for each in whole} == {3}


@both_modes
def test_beginnings_of_episodes_are_marked(mode):
    envs, begun = stepped(mode, 1, (3,)), []
    for _ in range(9):
        question = envs.observations()
        begun.append((bool(question.begins[0]), int(question.rows[0][1]) == 0))
        envs.advance(decide(question))
    assert [marked for marked, _ in begun] == [is_first for _, is_first in begun]


@both_modes
def test_observations_may_be_dicts(mode):
    plain, nested = (collected(stepped(mode, 3, nested=nested), 11, 3) for nested in (False, True))
    assert list(map(states, plain)) == list(map(states, nested))
    assert [each.next_observation["again"][1] for each in nested] == [
        each.next_observation[1] for each in plain
    ]


def test_only_the_last_states_of_episodes_that_ran_out_of_time_are_asked_for():
    envs = stepped(SAME, 2, (3,))
    sizes = []
    for _ in range(8):
        question = envs.observations("about")
        sizes.append(len(question))
        assert (list(question.envs), question.about) == ([0, 1], "about")
        envs.advance(decide(question))
    assert sizes == [2, 2, 2, 4, 2, 2, 2, 2]


def test_the_oldest_version_that_acted_is_the_trajectorys():
    envs = stepped(SAME, 1)
    for version in (3, 4):
        envs.advance(decide(envs.observations(), version))
    (trajectory,) = envs.finish(decide(envs.observations(), 5))
    assert (trajectory.version, trajectory.env) == (3, 0)


def test_seeds_are_the_same_however_environments_are_divided():
    def draws(*parts):
        return [
            int(row[2])
            for first, count in parts
            for row in stepped(SAME, count, first_env=first).observations().rows
        ]

    assert draws((0, 6)) == draws((0, 2), (2, 4)) == draws((0, 3), (3, 1), (4, 2))
    assert len(set(draws((0, 6)))) == 6
    assert seeds_of(1, range(3)) != seeds_of(2, range(3)) != seeds_of(2, range(3), num_restarts=1)


def test_both_ways_of_an_environment_of_gymnasiums_give_the_same_first_episodes():
    def returns(mode):
        vector = SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 2, autoreset_mode=mode)
        envs, whole = SteppedEnvs(vector, 0, seeds_of(3, range(2))), []
        for _ in range(60):
            rows = envs.observations().rows
            whole += envs.advance(Decisions((rows[:, 2] + rows[:, 3] > 0).astype(int)))
        return [(each.env, each.episode_return) for each in whole if each.episode_return][:2]

    assert returns(SAME) == returns(NEXT)


def test_an_answer_with_too_few_rows_or_other_columns_is_refused():
    envs = stepped(SAME, 2)
    with pytest.raises(ConfigError, match="has 1 rows of 'actions', and the question has 2"):
        envs.check(Decisions(np.zeros(1)), 2)
    with pytest.raises(ConfigError, match="has 2 rows of 'values', and the question has 4"):
        envs.check(Decisions(np.zeros(4), {"values": np.zeros(2)}), 4)
    envs.check(Decisions(np.zeros(2), {"values": np.zeros(2)}), 2)
    with pytest.raises(ConfigError, match=r"has the columns \['value'\], and others \['values'\]"):
        envs.check(Decisions(np.zeros(2), {"value": np.zeros(2)}), 2)
    with pytest.raises(ConfigError, match="answered by Decisions, not a list"):
        envs.check([1, 2], 2)


def test_environments_that_do_not_begin_anew_are_refused():
    with pytest.raises(ConfigError, match="must reset themselves"):
        stepped(AutoresetMode.DISABLED)
