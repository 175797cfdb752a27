"""The engine that writes answers, where the rollout does not do that itself; made in its rank."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, assert_never

import torch

from post_training.llama import llama_config
from post_training.settings import Settings

if TYPE_CHECKING:
    from rlinf_scheduler.engines import RolloutEngine


def make_engine(settings: Settings, rank: int, device: torch.device, folder: str) -> RolloutEngine:
    """An engine with a model as the settings have it; its weights are those that it is given first.

    Args:
        settings: of the training.
        rank: of the rollout.
        device: where it computes.
        folder: for the model's config; the engine reads it until it has started.
    """
    config = llama_config(settings.model, settings.task)
    match settings.engine:
        case "vllm":
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
            os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
            os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
            from rlinf_scheduler.engines import VllmEngine  # noqa: PLC0415 - only where it is installed

            config.save_pretrained(folder)
            return VllmEngine(
                folder,
                load_format="dummy",
                skip_tokenizer_init=True,
                enforce_eager=True,
                dtype="float32",
                seed=settings.seed * 1_000_003 + rank,
                max_model_len=2 * settings.task.max_length + 2,
                max_num_seqs=settings.rollout.num_slots,
                enable_sleep_mode=settings.device != "cpu",
            )
        case "transformers":
            from rlinf_scheduler.engines import TransformersEngine  # noqa: PLC0415 - as above

            return TransformersEngine(config, device=device, max_requests=settings.rollout.num_slots)
        case "own":
            raise ValueError("the rollout's own writer is no engine")
        case _:
            assert_never(settings.engine)
