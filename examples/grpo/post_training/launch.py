"""Brings up what a training needs: four channels and four worker groups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from post_training import channels
from post_training.actor_worker import ActorWorker
from post_training.engine import make_engine
from post_training.inference_worker import InferenceWorker
from post_training.model import WEIGHTS
from post_training.reward_worker import RewardWorker
from post_training.settings import Settings
from rlinf.scheduler import Channel, Cluster, ComponentPlacement, WorkerGroup
from rlinf_scheduler.engines import RolloutOptions, RolloutWorker

COMPONENTS = ("rollout", "reward", "inference", "actor")


@dataclass(frozen=True, slots=True)
class Parts:
    """The groups, the channel that the driver puts into, that of requests, and the one whose items it admits."""

    rollout: WorkerGroup[RolloutWorker]
    reward: WorkerGroup[RewardWorker]
    inference: WorkerGroup[InferenceWorker]
    actor: WorkerGroup[ActorWorker]
    prompts: Channel
    requests: Channel
    groups: Channel


def open_channels(num_rewards: int, num_inferences: int) -> tuple[Channel, Channel, Channel]:
    """Create the channels; return those of prompts, requests and groups."""
    prompts, requests = Channel.create(channels.PROMPTS), Channel.create(channels.REQUESTS)
    # These end when all who put into them are done.
    Channel.create(channels.SCORED, producers=num_rewards)
    return prompts, requests, Channel.create(channels.GROUPS, producers=num_inferences)


def rollout_group(settings: Settings, *, takes_turns: bool) -> Any:
    """The group of the rollout, not launched yet."""
    options = RolloutOptions(
        max_requests=settings.rollout.num_slots,
        weights=WEIGHTS,
        takes_turns=takes_turns,
        ready_timeout_s=settings.timeout_s,
    )
    return RolloutWorker.create_group(partial(make_engine, settings), options)


def launch(cluster: Cluster, placement: ComponentPlacement, settings: Settings) -> Parts:
    """Start all groups and channels side by side, because each takes seconds to import what it needs.

    Raises:
        rlinf.scheduler.errors.LaunchError: some process did not start; nothing goes on without it.
    """
    sizes = {name: placement.get_world_size(name) for name in COMPONENTS}
    strategies = {name: placement.get_strategy(name) for name in COMPONENTS}
    rollout = rollout_group(settings, takes_turns=placement.shares("rollout", "actor"))
    reward = RewardWorker.create_group(settings)
    inference = InferenceWorker.create_group(settings)
    actor = ActorWorker.create_group(settings)
    with cluster.starting():
        prompts, requests, groups = open_channels(sizes["reward"], sizes["inference"])
        return Parts(
            rollout=rollout.launch(
                cluster,
                strategies["rollout"],
                name="rollout",
                on_failure="restart",
                max_restarts=settings.max_restarts,
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
            prompts=prompts,
            requests=requests,
            groups=groups,
        )
