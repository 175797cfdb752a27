from dataclasses import replace

import numpy as np
import pytest
import torch

from policy import ActorCritic
from ppo import Learner, advantages, clipped_objective
from rlinf_scheduler.engines import Trajectory
from settings import PPOSettings

SETTINGS = PPOSettings(
    learning_rate=3e-3,
    final_learning_rate=0.0,
    gamma=0.98,
    gae_lambda=0.95,
    clip=0.2,
    num_epochs=4,
    minibatch_size=32,
    entropy_weight=0.0,
    value_weight=0.5,
    max_gradient_norm=0.5,
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trajectory(rewards, values, *, last_value=0.0, terminated=False, truncated=False):
    steps = len(rewards)
    return Trajectory(
        observations=np.zeros((steps, 4), np.float32),
        actions=np.zeros(steps, np.int64),
        columns={"log_probs": np.zeros(steps, np.float32), "values": np.asarray(values, np.float32)},
        rewards=np.asarray(rewards, np.float32),
        terminated=terminated,
        truncated=truncated,
        next_observation=np.zeros(4, np.float32),
        next_columns={"values": last_value},
        episode_return=None,
        episode_steps=None,
        version=0,
        env=0,
    )


def slow_advantages(trajectory, gamma, gae_lambda):
    """The definition: the exponentially weighted mean of all n-step advantages, written out."""
    values = [*trajectory.columns["values"].tolist(), trajectory.bootstrap("values")]
    steps = len(trajectory)
    result = []
    for start in range(steps):
        total, weight_left = 0.0, 1.0
        for n in range(1, steps - start + 1):
            rewards = sum(gamma**k * float(trajectory.rewards[start + k]) for k in range(n))
            n_step = rewards + gamma**n * values[start + n] - values[start]
            last = n == steps - start
            weight = weight_left if last else (1 - gae_lambda) * gae_lambda ** (n - 1)
            weight_left -= weight
            total += weight * n_step
        result.append(total)
    return result


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.98, 0.95), (1.0, 1.0), (0.9, 0.0), (0.99, 0.5)])
def test_advantages_agree_with_their_definition(gamma, gae_lambda):
    random = np.random.default_rng(0)
    for steps in (1, 2, 17):
        one = trajectory(
            random.normal(size=steps), random.normal(size=steps), last_value=float(random.normal())
        )
        fast = advantages(one, gamma=gamma, gae_lambda=gae_lambda)
        np.testing.assert_allclose(fast, slow_advantages(one, gamma, gae_lambda), rtol=1e-4, atol=1e-5)
        assert fast.dtype == np.float32


def test_a_cut_off_episode_is_worth_what_would_have_followed_and_a_fallen_one_nothing():
    fallen = trajectory([1, 1], [0, 0], terminated=True)
    cut_off = replace(fallen, terminated=False, truncated=True, next_columns={"values": 10.0})
    after_fall = advantages(fallen, gamma=0.5, gae_lambda=1.0)
    after_time_out = advantages(cut_off, gamma=0.5, gae_lambda=1.0)
    np.testing.assert_allclose(after_fall, [1.5, 1.0])
    np.testing.assert_allclose(after_time_out - after_fall, [0.25 * 10, 0.5 * 10])


def test_a_perfect_critic_leaves_no_advantage_in_a_cut_trajectory():
    gamma = 0.9
    worth = 1 / (1 - gamma)
    endless = trajectory([1] * 5, [worth] * 5, last_value=worth, truncated=True)
    np.testing.assert_allclose(advantages(endless, gamma=gamma, gae_lambda=0.95), np.zeros(5), atol=1e-5)


def test_objective_gives_no_gradient_beyond_the_clip_in_the_wanted_direction():
    log_ratio = torch.tensor([0.5, -0.5, 0.5, -0.5], requires_grad=True)
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss, clip_fraction = clipped_objective(log_ratio, advantage, clip=0.2)
    loss.backward()
    pushed_too_far = log_ratio.grad == 0
    assert pushed_too_far.tolist() == [True, False, False, True]
    assert clip_fraction.item() == 1.0


def bandit_batch(policy, steps):
    """One-step episodes in which the right action is 1 where the first number is positive, else 0."""
    random = np.random.default_rng(steps)
    states = random.uniform(-1, 1, size=(steps, 4)).astype(np.float32)
    decision = policy.decide(states)
    right = decision.actions == (states[:, 0] > 0)
    return right.mean(), [
        Trajectory(
            observations=states[i : i + 1],
            actions=decision.actions[i : i + 1],
            columns={name: column[i : i + 1] for name, column in decision.columns.items()},
            rewards=right[i : i + 1].astype(np.float32),
            terminated=True,
            truncated=False,
            next_observation=states[i],
            next_columns={},
            episode_return=float(right[i]),
            episode_steps=1,
            version=0,
            env=0,
        )
        for i in range(steps)
    ]


def test_updates_solve_a_toy_problem():
    torch.manual_seed(0)
    policy = ActorCritic(observation_size=4, num_actions=2, hidden_sizes=(16,))
    learner = Learner(policy, SETTINGS, seed=0)
    before, _ = bandit_batch(policy, steps=500)
    for update in range(25):
        _, batch = bandit_batch(policy, steps=200 + update)
        stats = learner.update(batch)
    after, _ = bandit_batch(policy, steps=501)
    assert before < 0.6
    assert after > 0.9
    assert 0 <= stats.entropy < 0.6
    assert stats.kl >= 0


def test_learning_rate_falls_to_its_final_value():
    torch.manual_seed(0)
    policy = ActorCritic(observation_size=4, num_actions=2, hidden_sizes=(8,))
    learner = Learner(policy, SETTINGS, seed=0)
    _, batch = bandit_batch(policy, steps=64)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    learner.update(batch, progress=1.0)
    after = policy.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before), "a rate of zero changes nothing"


def test_first_policy_is_nearly_uniform_and_its_log_probabilities_are_its_own():
    torch.manual_seed(1)
    policy = ActorCritic(observation_size=4, num_actions=2, hidden_sizes=(64, 64))
    states = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    decision = policy.decide(states, version=9)
    assert decision.version == 9
    assert decision.actions.mean() == pytest.approx(0.5, abs=0.1)
    np.testing.assert_allclose(decision.columns["log_probs"], np.log(0.5), atol=0.1)
    log_probs, entropies, values = policy.evaluate(
        torch.from_numpy(states), torch.from_numpy(decision.actions)
    )
    np.testing.assert_allclose(log_probs.detach(), decision.columns["log_probs"], atol=1e-5)
    np.testing.assert_allclose(values.detach(), decision.columns["values"], atol=1e-5)
    assert entropies.mean().item() == pytest.approx(np.log(2), abs=0.01)


def test_actions_are_drawn_with_their_probabilities():
    torch.manual_seed(2)
    policy = ActorCritic(observation_size=4, num_actions=2, hidden_sizes=(8,))
    with torch.no_grad():
        policy.actor[-1].bias.copy_(torch.tensor([0.9, 0.1]).log())
        policy.actor[-1].weight.zero_()
    decision = policy.decide(np.zeros((20_000, 4), np.float32))
    assert decision.actions.mean() == pytest.approx(0.1, abs=0.01)
