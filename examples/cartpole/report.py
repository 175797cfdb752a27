"""What a training did, as data; the curve and the summary are made of it."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_scheduler.observe.report import Report


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """One update of the actor.

    Args:
        version: of the weights that it made: how many updates there were.
        num_steps: environment steps learned from, since the start.
        returns: of the episodes that ended in this batch, in order.
        mean_return: over the last `num_judged` episodes.
        num_judged: at most the window of the settings.
        lag: how many versions the oldest weights that acted in this batch were behind.
        entropy: of the policy, in nats.
        kl: divergence of the new policy from the one that acted, in nats.
    """

    version: int
    num_steps: int
    returns: tuple[float, ...]
    mean_return: float
    num_judged: int
    lag: int
    entropy: float
    kl: float


@dataclass(frozen=True, slots=True)
class ChannelTraffic:
    """What went through a channel: items put, and their size in bytes."""

    items: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """A whole training.

    Args:
        mode: what the placement made of it.
        updates: in order.
        startup_s: from the start of the program to the first collection, in seconds.
        training_s: from there to the end of the last update.
        times: where the components' time went.
        traffic: by channel.
        window: episodes whose mean return is judged.
        required_return: what that mean has to reach.
    """

    mode: str
    updates: tuple[UpdateReport, ...]
    startup_s: float
    training_s: float
    times: Report
    traffic: dict[str, ChannelTraffic]
    window: int
    required_return: float

    @property
    def final_return(self) -> float:
        """Mean return of the last `window` episodes; 0 where fewer have ended."""
        last = self.updates[-1] if self.updates else None
        return last.mean_return if last is not None and last.num_judged == self.window else 0.0

    @property
    def success(self) -> bool:
        """Whether the policy is as good as required."""
        return self.final_return >= self.required_return
