"""Brings up what a training needs: four channels and four worker groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from post_training import channels
from post_training.actor_worker import ActorWorker
from post_training.inference_worker import InferenceWorker
from post_training.reward_worker import RewardWorker
from post_training.rollout_worker import RolloutWorker
from post_training.settings import Settings
from rlinf.scheduler import Channel, Cluster, ComponentPlacement, WorkerGroup

COMPONENTS = ("rollout", "reward", "inference", "actor")
RETURN_S = 120.0


@dataclass(frozen=True, slots=True)
class Parts:
    """The groups, the channel that the driver puts into, and the one whose items it admits."""

    rollout: WorkerGroup[Any]
    reward: WorkerGroup[RewardWorker]
    inference: WorkerGroup[InferenceWorker]
    actor: WorkerGroup[ActorWorker]
    requests: Channel
    groups: Channel


def open_channels(
    num_rollouts: int, num_rewards: int, num_inferences: int, record: str | None = None
) -> tuple[Channel, Channel]:
    """Create the channels, each of which ends when all who put into it are done; return the first and the last."""
    requests = Channel.create(channels.REQUESTS)
    # A rank of the rollout that died has time to come back.
    answers = Channel.create(channels.ANSWERS, producers=num_rollouts, successor_s=RETURN_S)
    scored = Channel.create(channels.SCORED, producers=num_rewards)
    groups = Channel.create(channels.GROUPS, producers=num_inferences)
    if record is not None:
        for channel in (requests, answers, scored, groups):
            # Of requests it is to be seen which prompt they are of.
            channel.record(Path(record) / f"{channel.name}.rec", payload=channel is requests)
    return requests, groups


def end_recordings() -> None:
    """Record no more; what was recorded is on disk then."""
    for name in channels.ALL:
        Channel.connect(name).record(None)


def _rollout(settings: Settings, *, sleeps: bool) -> tuple[Any, Any]:
    """The group of the rollout, not launched yet, and what a rank does that comes back, before it serves."""
    if settings.engine == "own":
        return RolloutWorker.create_group(settings), RolloutWorker.catch_up
    # Loads transformers.
    from post_training.engine_rollout_worker import EngineRolloutWorker  # noqa: PLC0415

    return EngineRolloutWorker.create_group(settings, sleeps=sleeps), None


def launch(cluster: Cluster, placement: ComponentPlacement, settings: Settings) -> Parts:
    """Start all groups and channels side by side, because each takes seconds to import what it needs.

    Raises:
        rlinf.scheduler.errors.LaunchError: some process did not start; nothing goes on without it.
    """
    sizes = {name: placement.get_world_size(name) for name in COMPONENTS}
    strategies = {name: placement.get_strategy(name) for name in COMPONENTS}
    rollout, catch_up = _rollout(settings, sleeps=placement.shares("rollout", "actor"))
    reward = RewardWorker.create_group(settings)
    inference = InferenceWorker.create_group(settings)
    actor = ActorWorker.create_group(settings)
    with cluster.starting():
        requests, groups = open_channels(
            sizes["rollout"], sizes["reward"], sizes["inference"], settings.record
        )
        return Parts(
            rollout=rollout.launch(
                cluster,
                strategies["rollout"],
                name="rollout",
                on_failure="restart",
                max_restarts=settings.max_restarts,
                ready_when=catch_up,
            ),
            reward=reward.launch(cluster, strategies["reward"], name="reward"),
            inference=inference.launch(cluster, strategies["inference"], name="inference"),
            actor=actor.launch(
                cluster,
                strategies["actor"],
                name="actor",
                on_failure="restart_group",
                max_restarts=settings.max_restarts,
            ),
            requests=requests,
            groups=groups,
        )
