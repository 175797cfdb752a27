"""What vLLM loads in each of its processes, by the entry point `vllm.general_plugins`: it only names a class."""

from __future__ import annotations

from contextlib import suppress

BACKEND = "rlinf"


def register() -> None:
    """Offer the job's weights as a backend of `--weight-transfer-config`; nothing is loaded before it is chosen."""
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory  # noqa: PLC0415 - only if it is there
    except ImportError:
        return  # a vLLM without weight transfer
    with suppress(ValueError):  # it is loaded for the second time
        WeightTransferEngineFactory.register_engine(
            BACKEND, "rlinf_scheduler.engines.vllm_weights", "JobWeights"
        )
