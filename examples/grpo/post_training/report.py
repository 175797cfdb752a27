"""What a training did, as data; the pictures and the summary are made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rlinf_scheduler.observe.report import GroupTimes, Report

# What ranks call the phases in which weights are moved; the last is that of engines.
PUBLISHING, READING, UPDATING = "publish weights", "read weights", "update weights"


@dataclass(frozen=True, slots=True)
class PartTaken:
    """What a rank of the actor has taken of a global batch.

    Args:
        step: which one, as the channel counts.
        prompts: of its groups.
        num_written: tokens of their answers.
    """

    step: int
    prompts: tuple[int, ...]
    num_written: int


@dataclass(frozen=True, slots=True)
class RankReport:
    """What a rank of the actor did in one step.

    Args:
        rewards: of all its answers.
        lengths: of these answers, in tokens.
        num_tokens: that it computed, prompts included.
        imbalance: of the whole step: the largest part's tokens over the mean.
        lag: versions between the oldest weights that began one of its groups and those that learned from it.
        kl: its share of the divergence of the new weights from those that wrote, in nats a token.
        computed_s: CPU seconds that its gradient took.
    """

    rewards: tuple[float, ...]
    lengths: tuple[int, ...]
    num_tokens: int
    imbalance: float
    lag: int
    kl: float
    computed_s: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step of all ranks.

    Args:
        version: of the weights that it made.
        reward: mean of its answers'.
        exact: share of the answers that are entirely right.
        lengths: of the answers, in tokens.
        num_tokens: that were computed, prompts included.
        imbalance: the largest part's tokens over the mean.
        lag: the largest of the ranks'.
        kl: mean divergence of the weights from those that wrote, in nats a token.
        computed_s: CPU seconds of the gradient, the slowest rank's.
    """

    version: int
    reward: float
    exact: float
    lengths: tuple[int, ...]
    num_tokens: int
    imbalance: float
    lag: int
    kl: float
    computed_s: float

    @classmethod
    def of(cls, version: int, ranks: Sequence[RankReport]) -> StepReport:
        """The step that the ranks made together."""
        rewards = [reward for rank in ranks for reward in rank.rewards]
        return cls(
            version=version,
            reward=fmean(rewards),
            exact=fmean(reward == 1 for reward in rewards),
            lengths=tuple(length for rank in ranks for length in rank.lengths),
            num_tokens=sum(rank.num_tokens for rank in ranks),
            imbalance=max(rank.imbalance for rank in ranks),
            lag=max(rank.lag for rank in ranks),
            kl=sum(rank.kl for rank in ranks),
            computed_s=max(rank.computed_s for rank in ranks),
        )


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of the time of a component's ranks; the rest was waited for other things, or idle.

    Args:
        moving: weights: published and announced, or copied to their places.
        awaiting: newer weights.
        working: on anything else.
    """

    moving: float
    awaiting: float
    working: float

    @classmethod
    def of(cls, group: GroupTimes) -> Shares:
        """Those of a worker group."""
        phases = [phase for method in group.methods for phase in method.phases]
        moves = [phase for phase in phases if phase.phase.split("/")[-1] in (PUBLISHING, READING, UPDATING)]
        awaiting = sum(phase.waiting for phase in moves if phase.phase.split("/")[-1] == READING)
        moving = sum(phase.spent.share for phase in moves) - awaiting
        # A service has many calls that wait side by side: what it computes is seen by its processor time.
        at_work = max(group.busy, min(1.0, group.cores))
        return cls(moving, awaiting, max(0.0, at_work - moving))


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """A whole training, or the part of it after a resumption.

    Args:
        mode: what the placement is called.
        steps: in order.
        startup_s: from the start of the program to the first request, in seconds.
        training_s: from there to the end.
        times: where the components' time went.
        window: steps whose mean reward is judged.
        required_reward: what that mean has to reach.
    """

    mode: str
    steps: tuple[StepReport, ...]
    startup_s: float
    training_s: float
    times: Report
    window: int
    required_reward: float

    @property
    def shares(self) -> dict[str, Shares]:
        """For what each component spent its time."""
        return {group.name: Shares.of(group) for group in self.times.groups if group.is_called}

    @property
    def final_reward(self) -> float:
        """Mean reward of the last `window` steps."""
        return mean_reward(self.steps, self.window)

    @property
    def success(self) -> bool:
        """Whether the answers are as good as required."""
        return self.final_reward >= self.required_reward


def mean_reward(steps: Sequence[StepReport], window: int) -> float:
    """Over the last `window` steps; 0 where there were none."""
    return fmean(step.reward for step in steps[-window:]) if steps else 0.0
