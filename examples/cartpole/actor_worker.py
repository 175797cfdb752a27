"""The component `actor`: learns from trajectories and publishes the new weights."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict

import torch

import channels
from policy import WEIGHTS, policy_of
from ppo import Learner, UpdateStats
from report import UpdateReport
from rlinf.scheduler import Worker
from rlinf_scheduler.engines import Trajectory
from settings import Settings


class ActorWorker(Worker):
    """Holds the policy that learns.

    Args:
        settings: of the training.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        torch.set_num_threads(1)
        torch.manual_seed(settings.seed)
        self._settings = settings
        self._policy = policy_of(self, settings)
        self._learner = Learner(self._policy, settings.ppo, seed=settings.seed)
        self._version = 0
        self._num_steps = 0
        self._returns: deque[float] = deque(maxlen=settings.window)
        self._trajectories = self.connect_channel(channels.TRAJECTORIES, timeout_s=settings.timeout_s)

    def publish(self) -> None:
        """Let every rank of the rollout have the present weights; this waits for none of them."""
        with self.timer("publish weights"):
            self.publish_weights(WEIGHTS, self._policy.state_dict(), self._version)

    def update(self, batch_weight: int) -> UpdateReport:
        """Take trajectories of `batch_weight` steps or a little more, learn from them, publish the new weights."""
        with self.at_step(self._version + 1):
            batch: list[Trajectory] = self._trajectories.get_batch(
                batch_weight, timeout_s=self._settings.timeout_s
            )
            with self.timer("learn"):
                progress = self._version / self._settings.max_updates
                stats = self._learner.update(batch, progress=progress)
            lag = self._version - min(trajectory.version for trajectory in batch)
            self._version += 1
            self.publish()
            returns = tuple(t.episode_return for t in batch if t.episode_return is not None)
            self._returns.extend(returns)
            self._num_steps += sum(len(trajectory) for trajectory in batch)
            report = self._report(returns, lag, stats)
            self.log_metrics({**asdict(stats), "mean_return": report.mean_return, "lag": lag})
            return report

    def _report(self, returns: tuple[float, ...], lag: int, stats: UpdateStats) -> UpdateReport:
        return UpdateReport(
            version=self._version,
            num_steps=self._num_steps,
            returns=returns,
            mean_return=sum(self._returns) / max(1, len(self._returns)),
            num_judged=len(self._returns),
            lag=lag,
            entropy=stats.entropy,
            kl=stats.kl,
        )
