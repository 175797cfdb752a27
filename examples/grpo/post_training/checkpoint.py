"""What a training goes on from: saved as a whole, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from post_training.model import Transformer
from post_training.progress import Progress
from rlinf.scheduler import Cluster
from rlinf.scheduler.errors import ConfigError

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def state_of(model: Transformer, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return all of model and optimiser, gathered for the first rank; all ranks together."""
    of_model, of_optimizer = get_state_dict(model, optimizer, options=_WHOLE)
    return {"model": of_model, "optimizer": of_optimizer}


def save_checkpoint(path: Path, state: dict[str, Any], progress: Progress, identity: str) -> None:
    """Save model, optimiser and progress; whoever is killed meanwhile leaves the checkpoint before.

    Args:
        path: the folder.
        state: of model and optimiser.
        progress: after the last step of both.
        identity: what a training must have in common with the one that goes on from here.
    """
    # No channels: what they hold is written anew from the prompts that the progress has not.
    Cluster().save(path, extra={**state, "identity": identity, "progress": progress})


def load_checkpoint(
    path: Path, model: Transformer, optimizer: torch.optim.Optimizer, identity: str
) -> Progress:
    """Read a checkpoint into a model and its optimiser, or this rank's shards of them; all ranks together.

    Raises:
        rlinf.scheduler.errors.ConfigError: there is none, or it is of a training with other prompts or another model.
        rlinf.scheduler.errors.CheckpointError: it is not whole.
    """
    saved = Cluster.load(path, missing_ok=True)
    if not saved:
        raise ConfigError(f"there is no checkpoint {path} to go on from", path="training")
    state = saved.extra
    if state["identity"] != identity:
        raise ConfigError(
            f"the checkpoint {path} is of another training: {state['identity']}, not {identity}",
            path="training",
        )
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=_WHOLE,
    )
    progress: Progress = state["progress"]
    return progress
