"""Engines of rollouts: one protocol, vLLM and transformers behind it.

The public names below are loaded on first use: importing this package costs none of the libraries that engines need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:
    from rlinf_scheduler.engines.protocol import (
        EngineLoad,
        Generation,
        GenerationRequest,
        RolloutEngine,
        Sampling,
        Tokens,
        collect,
    )
    from rlinf_scheduler.engines.rollout_client import Conversation, PendingRollout, RolloutClient
    from rlinf_scheduler.engines.rollout_worker import (
        RolloutAnswer,
        RolloutOptions,
        RolloutWorker,
        Served,
        WeightsUpdate,
    )
    from rlinf_scheduler.engines.trajectories import Decisions, Observations, Trajectory
    from rlinf_scheduler.engines.transformers import TransformersEngine
    from rlinf_scheduler.engines.vector_env import Collected, Envs, VectorEnvWorker, Video
    from rlinf_scheduler.engines.vllm import VllmEngine

__all__ = [
    "Collected",
    "Conversation",
    "Decisions",
    "EngineLoad",
    "Envs",
    "Generation",
    "GenerationRequest",
    "Observations",
    "PendingRollout",
    "RolloutAnswer",
    "RolloutClient",
    "RolloutEngine",
    "RolloutOptions",
    "RolloutWorker",
    "Sampling",
    "Served",
    "Tokens",
    "Trajectory",
    "TransformersEngine",
    "VectorEnvWorker",
    "Video",
    "VllmEngine",
    "WeightsUpdate",
    "collect",
]

IF_NOT_INSTALLED = "the extras of rlinf-scheduler bring it, [vllm] or [transformers]"

if not TYPE_CHECKING:  # which would believe that every name is there
    __getattr__ = declared(globals())


def __dir__() -> list[str]:
    return sorted(__all__)
