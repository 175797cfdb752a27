"""The engine that writes answers; made in its rank of the rollout."""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, assert_never

import torch

from post_training.component import device_of
from post_training.model import ADAPTERS, make_model
from post_training.settings import Settings
from post_training.task import SortingTask
from post_training.writer import Writer
from rlinf.scheduler import Worker

if TYPE_CHECKING:
    from rlinf_scheduler.engines import RolloutEngine


def make_engine(settings: Settings) -> RolloutEngine:
    """An engine with a model as the settings have it; its weights are those that it is given first."""
    rank = Worker().rank
    match settings.engine:
        case "own":
            torch.set_num_threads(1)
            torch.manual_seed(settings.seed)  # what does not learn is the same in all components
            model = make_model(settings.model, settings.task).to(device_of(settings))
            torch.manual_seed(settings.seed * 1_000_003 + rank)
            keys = ADAPTERS if settings.model.lora_rank else None
            task = SortingTask(settings.task, settings.seed)
            return Writer(model, settings.model, task, settings.rollout.num_slots, keys)
        case "vllm":
            return _vllm(settings, rank)
        case "transformers":
            from post_training.llama import llama_config  # noqa: PLC0415 - loads transformers
            from rlinf_scheduler.engines import TransformersEngine  # noqa: PLC0415 - only where it is installed

            return TransformersEngine(
                llama_config(settings.model, settings.task),
                device=device_of(settings),
                max_requests=settings.rollout.num_slots,
            )
        case _:
            assert_never(settings.engine)


def _vllm(settings: Settings, rank: int) -> RolloutEngine:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from post_training.llama import llama_config  # noqa: PLC0415 - loads transformers
    from rlinf_scheduler.engines import VllmEngine  # noqa: PLC0415 - only where it is installed

    folder = TemporaryDirectory(prefix="grpo-model-")
    llama_config(settings.model, settings.task).save_pretrained(folder.name)

    class FromConfig(VllmEngine):
        """It reads its config until it has started."""

        async def start(self) -> None:
            with folder:
                await super().start()

    return FromConfig(
        folder.name,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        seed=settings.seed * 1_000_003 + rank,
        max_model_len=2 * settings.task.max_length + 2,
        max_num_seqs=settings.rollout.num_slots,
        enable_sleep_mode=settings.device != "cpu",
    )
