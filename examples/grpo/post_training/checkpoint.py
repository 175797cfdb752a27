"""What a training goes on from: saved as a whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import torch

from post_training.model import Transformer
from post_training.progress import Progress
from rlinf.scheduler import Cluster
from rlinf.scheduler.errors import ConfigError


def save_checkpoint(
    path: Path, model: Transformer, optimizer: torch.optim.Optimizer, progress: Progress, identity: str
) -> None:
    """Save model, optimiser and progress; whoever is killed meanwhile leaves the checkpoint before.

    Args:
        path: the folder.
        model: its parameters are saved.
        optimizer: its state is saved.
        progress: after the last step of both.
        identity: what a training must have in common with the one that goes on from here.
    """
    state = {
        "identity": identity,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "progress": progress,
    }
    # No channels: what they hold is written anew from the prompts that the progress has not.
    Cluster().save(path, extra=state)


def load_checkpoint(
    path: Path, model: Transformer, optimizer: torch.optim.Optimizer, identity: str
) -> Progress:
    """Read a checkpoint into a model and its optimiser.

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
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    progress: Progress = state["progress"]
    return progress
