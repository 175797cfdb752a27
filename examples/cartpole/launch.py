"""Brings up what a training needs: two channels and three worker groups."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import channels
from actor_worker import ActorWorker
from rlinf.scheduler import Channel, Cluster, ComponentPlacement
from rlinf_scheduler import WorkerGroup
from rlinf_scheduler.engines import Envs, VectorEnvWorker
from rlinf_scheduler.worker.group_builder import GroupBuilder
from rollout_worker import RolloutWorker
from schedule import COMPONENTS, Schedule
from settings import Settings

G = TypeVar("G", bound=WorkerGroup[Any])


@dataclass(frozen=True, slots=True)
class Parts:
    """The groups by component, and the channels by name."""

    env: WorkerGroup[VectorEnvWorker]
    rollout: WorkerGroup[RolloutWorker]
    actor: WorkerGroup[ActorWorker]
    channels: dict[str, Channel]


def launch(cluster: Cluster, placement: ComponentPlacement, schedule: Schedule, settings: Settings) -> Parts:
    """Start all groups and channels at the same time, because each takes seconds to import what it needs.

    Raises:
        rlinf.scheduler.errors.LaunchError: some process did not start; nothing goes on without it.
    """
    num_envs, num_rollouts = (placement.get_world_size(name) for name in ("env", "rollout"))
    questions_each = max_questions(num_envs, num_rollouts, schedule)
    with ThreadPoolExecutor(max_workers=len(COMPONENTS) + len(channels.ALL)) as starters:
        opened = {name: starters.submit(Channel.create, name) for name in channels.ALL}

        def start(name: str, builder: GroupBuilder[Any, G], **options: Any) -> Future[G]:
            strategy = placement.get_strategy(name)
            return starters.submit(builder.launch, cluster, placement_strategy=strategy, name=name, **options)

        env = start(
            "env",
            VectorEnvWorker.create_group(
                Envs(settings.env.id, settings.env.num_envs * num_envs),
                questions=channels.QUESTIONS,
                trajectories=channels.TRAJECTORIES,
                seed=settings.seed,
                stages=schedule.stages,
                timeout_s=settings.timeout_s,
            ),
        )
        # It keeps nothing that its successor would not get: a question goes to another rank meanwhile.
        rollout = start(
            "rollout",
            RolloutWorker.create_group(settings, questions_each),
            on_failure="restart",
            max_restarts=settings.max_restarts,
            ready_when=RolloutWorker.catch_up,
        )
        actor = start("actor", ActorWorker.create_group(settings))
        return Parts(
            channels={name: channel.result() for name, channel in opened.items()},
            env=env.result(),
            rollout=rollout.result(),
            actor=actor.result(),
        )


def max_questions(num_envs: int, num_rollouts: int, schedule: Schedule) -> int:
    """A fair share of the questions that all environments can ask at a time, for one rank of the rollout."""
    return -(-num_envs * schedule.stages // num_rollouts)
