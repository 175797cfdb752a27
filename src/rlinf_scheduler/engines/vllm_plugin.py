"""What vLLM loads in each of its processes, by the entry point `vllm.general_plugins`: it names a class.

In processes of a `VllmEngine` it also keeps what vLLM logs of errors, for the rank to say why one of them has died.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

BACKEND = "rlinf"
FOLDER_VARIABLE = "VLLM_RPC_BASE_PATH"  # where vLLM's sockets are


class _Errors(logging.FileHandler):
    """A line for each error: when, and what."""

    def format(self, record: logging.LogRecord) -> str:
        raised = record.exc_info[1] if record.exc_info else None
        said = [record.getMessage()] + ([f"{type(raised).__name__}: {raised}"] if raised else [])
        return " ".join([str(record.created), *(each.partition("\n")[0][:200] for each in said)])


def register() -> None:
    """Offer the job's weights as a backend of `--weight-transfer-config`; nothing is loaded before it is chosen."""
    folder, logger = os.environ.get(FOLDER_VARIABLE, ""), logging.getLogger("vllm")
    owner = (
        os.path.basename(folder).removeprefix("rlinf-engine-").partition("-")[0]
    )  # `EngineProcesses` names it so
    is_child = owner.isdecimal() and int(owner) != os.getpid()
    if is_child and not any(isinstance(each, _Errors) for each in logger.handlers):
        errors = _Errors(f"{folder}/errors", delay=True)
        errors.setLevel(logging.ERROR)
        errors.addFilter(
            lambda record: "dump_input" not in record.name
        )  # what was computed then, pages of it
        logger.addHandler(errors)
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory  # noqa: PLC0415 - only if it is there
    except ImportError:
        return  # a vLLM without weight transfer
    with suppress(ValueError):  # it is loaded for the second time
        WeightTransferEngineFactory.register_engine(
            BACKEND, "rlinf_scheduler.engines.vllm_weights", "JobWeights"
        )
