"""The component `actor`: ranks with shards of the model, that learn from groups and publish what they have."""

from __future__ import annotations

import fnmatch
import time
from pathlib import Path

from post_training import channels
from post_training.checkpoint import load_checkpoint, save_checkpoint, state_of
from post_training.component import ModelWorker
from post_training.grpo import Learner, micro_batches
from post_training.model import WEIGHTS
from post_training.progress import Progress
from post_training.records import Group
from post_training.report import PUBLISHING, PartTaken, RankReport
from post_training.settings import Settings
from post_training.sharding import gather, reduce, shard
from rlinf.scheduler.channel import ShardBatch


class ActorWorker(ModelWorker):
    """Takes its part of each global batch, adds its gradient to those of the other ranks, and updates its shards.

    Args:
        settings: of the training.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        if self.world_size > 1:
            shard(self.model, self.device)
        self._learner = Learner(self.model, settings.grpo, self.task.start, self.device)
        self._version = 0
        self._part = ShardBatch()
        groups = self.connect_channel(channels.GROUPS, timeout_s=settings.timeout_s)
        self._shard = groups.shard(
            self.rank, self.world_size, policy=settings.policy, batch_items=settings.grpo.prompts_per_step
        )

    def restore(self, path: Path) -> Progress:
        """Go on from a checkpoint; every rank reads it.

        Raises:
            rlinf.scheduler.errors.ConfigError: there is none, or it is of another training.
        """
        progress = load_checkpoint(path, self.model, self._learner.optimizer, self._identity)
        for parameters in self._learner.optimizer.param_groups:
            parameters["lr"] = self.settings.grpo.learning_rate  # which may have been changed
        self._version = progress.num_steps
        return progress

    def go_on(self, path: Path | None, version: int) -> Progress:
        """Take the place of ranks that died: from a checkpoint, or with the first weights if there is none.

        Args:
            path: the checkpoint.
            version: what the weights are published as: the prompts that are under way count on it.
        """
        progress = Progress() if path is None else self.restore(path)
        self._version = version
        self.publish()
        return progress

    def save(self, path: Path, progress: Progress) -> None:
        """Write a checkpoint after the last step; all ranks gather it, and the first one writes it."""
        state = state_of(self.model, self._learner.optimizer)
        if self.rank == 0:
            save_checkpoint(path, state, progress, self._identity)

    def publish(self) -> None:
        """Let rollout and inference have what this rank has of the present weights; this waits for none of them."""
        with self.timer(PUBLISHING):
            state = self.model.state_dict()
            weights = {key: state[key] for key in fnmatch.filter(state, self.learned or "*")}
            self.publish_weights(WEIGHTS, weights, self._version)

    def take(self) -> PartTaken:
        """Wait for this rank's part of the next global batch; it may be empty."""
        with self.timer("wait for groups"), self.at_step(self._version + 1):
            self._part = self._shard.next_batch(self.settings.timeout_s)
        prompts = tuple(group.prompt for group in self._part)
        return PartTaken(self._part.step, prompts, sum(group.num_written for group in self._part))

    def learn(self, num_written: int) -> RankReport:
        """Learn from the part taken, publish the new weights, and say what was learned from.

        Args:
            num_written: tokens that the answers of the global batch have, of all ranks together.
        """
        part = self._part
        with self.device_lock(self.settings.timeout_s, group=True):  # there are collectives inside
            with self.timer("gather shards"):
                gather(self.model)
            began = time.process_time()
            with self.timer("compute gradient"):
                batches = micro_batches(part, self.settings.grpo.token_budget)
                kl = sum(self._learner.add_gradient(each, num_written) for each in batches)
            computed_s = time.process_time() - began
            with self.timer("reduce gradient"):
                reduce(self.model)
            with self.timer("step"):
                self._learner.step()
        report = self._report(part, kl, computed_s)
        self._version += 1
        self.publish()
        # What the ranks log becomes one number of the group, by the last word of its name.
        metrics = {
            "kl_sum": kl,
            "tokens_total": report.num_tokens,
            "lag_max": report.lag,
            "compute_s_max": computed_s,
        }
        self.log_metrics(metrics, step=self._version)
        return report

    def _report(self, groups: list[Group], kl: float, computed_s: float) -> RankReport:
        oldest = min((group.version for group in groups), default=self._version)
        return RankReport(
            rewards=tuple(reward for group in groups for reward in group.rewards.tolist()),
            lengths=tuple(len(answer.tokens) for group in groups for answer in group.answers),
            num_tokens=sum(group.num_tokens for group in groups),
            imbalance=self._part.imbalance,
            lag=max(0, self._version - oldest),  # weights that are lost may have been ahead
            kl=kl,
            computed_s=computed_s,
        )

    @property
    def _identity(self) -> str:
        settings = self.settings
        return f"seed {settings.seed}, {settings.task}, {settings.model}"
