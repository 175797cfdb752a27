"""The policy: two small perceptrons, one that chooses actions and one that judges states."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Categorical

from rlinf.scheduler import Worker
from rlinf.scheduler.errors import ConfigError
from rlinf_scheduler.engines import Decisions
from settings import Settings

# What the actor publishes its weights as, and the rollout fetches.
WEIGHTS = "policy"


class ActorCritic(nn.Module):
    """Separate actor and critic over vector observations and discrete actions.

    Weights are orthogonal (Saxe et al., 2014), as PPO implementations have them: gain sqrt(2) inside, 0.01 before the
    logits so that the first policy is nearly uniform, 1 before the value.
    """

    def __init__(self, *, observation_size: int, num_actions: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.actor = _perceptron([observation_size, *hidden_sizes, num_actions], last_gain=0.01)
        self.critic = _perceptron([observation_size, *hidden_sizes, 1], last_gain=1.0)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.actor[0].weight.device

    @torch.no_grad()
    def decide(self, observations: NDArray[np.float32], *, version: int = 0) -> Decisions:
        """Sample an action and judge the state for each row of `observations`, (rows, observation size)."""
        rows = torch.from_numpy(observations).to(self.device)
        log_probs = self.actor(rows).log_softmax(dim=-1)
        # The Gumbel-max trick samples a row without building a distribution object at every step.
        noise = -torch.empty_like(log_probs).exponential_().log()
        actions = (log_probs + noise).argmax(dim=-1)
        columns = {
            "log_probs": log_probs.gather(1, actions[:, None])[:, 0].cpu().numpy(),
            "values": self.critic(rows)[:, 0].cpu().numpy(),
        }
        return Decisions(actions.cpu().numpy(), columns, version)

    def evaluate(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of `actions`, entropies of the policy and values, (rows,) each, with gradients."""
        distribution = Categorical(logits=self.actor(observations), validate_args=False)
        return distribution.log_prob(actions), distribution.entropy(), self.critic(observations)[:, 0]


def policy_of(worker: Worker, settings: Settings) -> ActorCritic:
    """A new policy for the environments of `settings`, on the device that `settings` wants.

    Raises:
        rlinf.scheduler.errors.ConfigError: the placement gives `worker` no such device.
    """
    if settings.device != "cpu" and worker.torch_device.type != settings.device:
        raise ConfigError(
            f"there is no '{settings.device}' device for {worker.address}", path="training.device"
        )
    observation_size, num_actions = spaces_of(settings.env.id)
    policy = ActorCritic(
        observation_size=observation_size, num_actions=num_actions, hidden_sizes=settings.hidden_sizes
    )
    if settings.device != "cpu":
        policy.to(worker.torch_device)
    return policy


def spaces_of(env_id: str) -> tuple[int, int]:
    """The size of an environment's observations, and its number of actions.

    Raises:
        ValueError: its observations are no vectors, or its actions are not discrete.
    """
    env = gymnasium.make(env_id)
    observations, actions = env.observation_space, env.action_space
    env.close()
    vectors = isinstance(observations, Box) and len(observations.shape) == 1
    if not vectors or not isinstance(actions, Discrete):
        problem = f"observations must be vectors and actions discrete; they are {observations} and {actions}"
        raise ValueError(f"{env_id}: {problem}")
    return observations.shape[0], int(actions.n)


def _perceptron(sizes: Sequence[int], *, last_gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [_orthogonal(nn.Linear(inputs, outputs), gain=math.sqrt(2)), nn.Tanh()]
    del layers[-1]
    _orthogonal(layers[-1], gain=last_gain)
    return nn.Sequential(*layers)


def _orthogonal(layer: nn.Module, *, gain: float) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
