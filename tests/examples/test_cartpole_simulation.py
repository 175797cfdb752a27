import numpy as np
import pytest

from simulation import Simulation
from trajectory import Decision


def decision(simulation, action, version=0, value=0.5):
    rows = len(simulation.rows())
    return Decision(
        actions=np.full(rows, action, np.int64),
        log_probs=np.full(rows, -0.7, np.float32),
        values=np.arange(rows, dtype=np.float32) + value,
        version=version,
    )


@pytest.fixture
def make_simulation():
    made = []

    def make(**options):
        options = {"num_envs": 3, "capacity": 600, "seed": 7} | options
        made.append(Simulation("CartPole-v1", **options))
        return made[-1]

    yield make
    for simulation in made:
        simulation.close()


def balance(simulation):
    """A hand-written controller that never lets the pole fall: it pushes towards where the pole leans."""
    states = simulation.rows()
    rows = len(states)
    lean = 0.1 * states[:, 0] + 0.3 * states[:, 1] + states[:, 2] + states[:, 3]
    return Decision(
        actions=(lean > 0).astype(np.int64),
        log_probs=np.zeros(rows, np.float32),
        values=np.arange(rows, dtype=np.float32),
        version=0,
    )


def test_a_collection_holds_every_step_exactly_once(make_simulation):
    simulation = make_simulation(num_envs=4)
    complete = []
    for _ in range(50):
        complete += simulation.advance(decision(simulation, action=1))
    complete += simulation.finish(decision(simulation, action=1))
    assert sum(len(trajectory) for trajectory in complete) == 4 * 50
    assert all(len(trajectory) > 0 for trajectory in complete)


def test_weight_of_a_trajectory_is_its_number_of_steps(make_simulation):
    simulation = make_simulation(num_envs=1)
    for _ in range(3):
        simulation.advance(decision(simulation, action=1))
    (trajectory,) = simulation.finish(decision(simulation, action=1))
    assert len(trajectory) == 3
    assert trajectory.observations.shape == (3, 4)
    assert len(trajectory.rewards) == len(trajectory.values) == len(trajectory.log_probs) == 3


def test_a_fall_ends_a_trajectory_that_nothing_follows(make_simulation):
    simulation = make_simulation(num_envs=1)
    fallen = []
    steps = 0
    while not fallen:
        fallen = simulation.advance(decision(simulation, action=1))
        steps += 1
    (trajectory,) = fallen
    assert trajectory.terminated
    assert not trajectory.truncated
    assert trajectory.last_value == 0
    assert trajectory.episode_return == len(trajectory) == steps
    assert len(simulation.rows()) == 1, "a fallen state needs no value"


def test_an_episode_cut_off_at_its_time_limit_is_judged_by_its_own_last_state(make_simulation):
    simulation = make_simulation(num_envs=2)
    for _ in range(499):
        assert simulation.advance(balance(simulation)) == []
    before = simulation.rows()
    assert simulation.advance(balance(simulation)) == [], "its last state is not judged yet"
    rows = simulation.rows()
    assert rows.shape == (4, 4), "two fresh states to act in, two last states to judge"
    moved = np.abs(rows[2:] - before)[:, [0, 2]]
    assert moved.max() < 0.02, "the last positions and angles follow those before them"
    assert np.abs(rows[:2]).max() <= 0.05, "the others are those of a reset"
    first, second = simulation.advance(decision(simulation, action=0, value=10.0))
    assert (first.truncated, first.terminated, first.last_value) == (True, False, 12.0)
    assert (second.last_value, second.episode_return, len(second)) == (13.0, 500.0, 500)


def test_an_episode_goes_on_through_collections_and_its_return_is_whole(make_simulation):
    simulation = make_simulation(num_envs=1, capacity=100)
    parts = []
    for _ in range(5):
        for _ in range(100):
            parts += simulation.advance(balance(simulation))
        parts += simulation.finish(balance(simulation))
    assert [len(part) for part in parts] == [100] * 5
    assert [part.episode_return for part in parts] == [None] * 4 + [500.0]
    assert parts[-1].truncated
    assert not any(part.truncated or part.terminated for part in parts[:-1])


def test_open_trajectories_are_judged_by_the_state_that_comes_next(make_simulation):
    simulation = make_simulation(num_envs=2)
    simulation.advance(decision(simulation, action=0))
    complete = simulation.finish(decision(simulation, action=0, value=5.0))
    assert [trajectory.last_value for trajectory in complete] == [5.0, 6.0]


def test_a_trajectory_knows_the_oldest_weights_that_acted_in_it(make_simulation):
    simulation = make_simulation(num_envs=1)
    simulation.advance(decision(simulation, action=0, version=3))
    simulation.advance(decision(simulation, action=1, version=4))
    (trajectory,) = simulation.finish(decision(simulation, action=0, version=5))
    assert trajectory.version == 3


def test_trajectories_are_not_written_over_by_later_steps(make_simulation):
    simulation = make_simulation(num_envs=1, capacity=5)
    collections = []
    for _ in range(2):
        for _ in range(5):
            simulation.advance(decision(simulation, action=0))
        collections += simulation.finish(decision(simulation, action=0))
        kept = collections[0].observations.copy()
    np.testing.assert_array_equal(collections[0].observations, kept)
    assert not np.array_equal(collections[0].observations, collections[1].observations)


def test_equal_seeds_give_equal_episodes(make_simulation):
    runs = [make_simulation(seed=seed) for seed in (1, 1, 2)]
    for simulation in runs:
        simulation.advance(decision(simulation, action=1))
    first, same, other = (simulation.rows() for simulation in runs)
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)
