"""Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347) on finished trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from policy import ActorCritic
from rlinf_scheduler.engines import Trajectory
from settings import PPOSettings

_COLUMNS = ("log_probs", "values")


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """Means over the minibatches of one update.

    Args:
        policy_loss: the clipped surrogate, negated.
        value_loss: squared error of the values against the returns.
        entropy: of the policy, in nats.
        clip_fraction: share of the steps whose probability ratio was clipped.
        kl: divergence of the new policy from the one that acted, in nats (Schulman's estimator (r - 1) - log r).
    """

    policy_loss: float
    value_loss: float
    entropy: float
    clip_fraction: float
    kl: float


def advantages(trajectory: Trajectory, *, gamma: float, gae_lambda: float) -> NDArray[np.float32]:
    """Generalised advantage estimates, (steps,) (Schulman et al., 2016, arXiv:1506.02438, equation 16).

    What follows the last step is worth `trajectory.bootstrap`: nothing after a fall, but after a time-out the
    cart would have gone on, and cutting its future off would teach that long balancing is worthless.
    """
    values = trajectory.columns["values"]
    following = np.append(values[1:], np.float32(trajectory.bootstrap("values")))
    deltas = trajectory.rewards + gamma * following - values
    estimates = np.empty_like(values)
    running = 0.0
    for step in range(len(trajectory) - 1, -1, -1):
        running = float(deltas[step]) + gamma * gae_lambda * running
        estimates[step] = running
    return estimates


class Learner:
    """Improves a policy in place, one batch of trajectories at a time.

    Args:
        policy: whose parameters are updated.
        settings: of the objective and the optimiser.
        seed: of the order in which minibatches are drawn.
    """

    def __init__(self, policy: ActorCritic, settings: PPOSettings, *, seed: int) -> None:
        self._policy = policy
        self._settings = settings
        self._optimizer = torch.optim.Adam(policy.parameters(), lr=settings.learning_rate, eps=1e-5)
        self._random = torch.Generator().manual_seed(seed)

    def update(self, trajectories: Sequence[Trajectory], *, progress: float = 0.0) -> UpdateStats:
        """Run the epochs of one update on `trajectories`.

        Args:
            trajectories: at least two steps in all, by these weights or older ones.
            progress: share of the training that is over, 0 to 1; the learning rate falls linearly with it.
        """
        settings = self._settings
        rate = settings.learning_rate * (1 - progress) + settings.final_learning_rate * progress
        self._optimizer.param_groups[0]["lr"] = rate
        batch = _Batch.of(
            trajectories, gamma=settings.gamma, gae_lambda=settings.gae_lambda, device=self._policy.device
        )
        stats = [
            self._step(batch, rows)
            for _ in range(settings.num_epochs)
            for rows in torch.randperm(len(batch.actions), generator=self._random).split(
                settings.minibatch_size
            )
        ]
        return UpdateStats(*torch.stack(stats).mean(dim=0).tolist())

    def _step(self, batch: _Batch, rows: Tensor) -> Tensor:
        """One minibatch; returns the fields of `UpdateStats`, (5,)."""
        settings = self._settings
        log_probs, entropies, values = self._policy.evaluate(batch.observations[rows], batch.actions[rows])
        log_ratio = log_probs - batch.log_probs[rows]
        policy_loss, clip_fraction = clipped_objective(log_ratio, batch.advantages[rows], clip=settings.clip)
        value_loss = nn.functional.mse_loss(values, batch.returns[rows])
        entropy = entropies.mean()
        loss = policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._policy.parameters(), settings.max_gradient_norm)
        self._optimizer.step()
        kl = (log_ratio.exp() - 1 - log_ratio).mean()
        return torch.stack([policy_loss, value_loss, entropy, clip_fraction, kl]).detach()


def clipped_objective(log_ratio: Tensor, advantage: Tensor, *, clip: float) -> tuple[Tensor, Tensor]:
    """The negated clipped surrogate (equation 7 of the paper) and the share of ratios outside 1 ± clip."""
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    return -surrogate.mean(), ((ratio - 1).abs() > clip).float().mean()


@dataclass(frozen=True, slots=True)
class _Batch:
    """The steps of many trajectories in one row each, advantages normalised over the whole batch."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor

    @classmethod
    def of(
        cls, trajectories: Sequence[Trajectory], *, gamma: float, gae_lambda: float, device: torch.device
    ) -> _Batch:
        estimates = np.concatenate([advantages(t, gamma=gamma, gae_lambda=gae_lambda) for t in trajectories])
        columns = {name: np.concatenate([t.columns[name] for t in trajectories]) for name in _COLUMNS}
        return cls(
            observations=torch.from_numpy(np.concatenate([t.observations for t in trajectories])).to(device),
            actions=torch.from_numpy(np.concatenate([t.actions for t in trajectories])).to(device),
            log_probs=torch.from_numpy(columns["log_probs"]).to(device),
            advantages=torch.from_numpy((estimates - estimates.mean()) / (estimates.std() + 1e-8)).to(device),
            returns=torch.from_numpy(estimates + columns["values"]).to(device),
        )
