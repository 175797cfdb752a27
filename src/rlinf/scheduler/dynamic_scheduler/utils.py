"""Names and numbers that RLinf's workers ask for, also where no group changes its size."""

from __future__ import annotations

from typing import Any

from rlinf_scheduler.errors import ConfigError


def get_valid_dp_sizes(cfg: Any, total_gpus: int, model_parallel_size_with_cp: int) -> list[int]:
    """Return the numbers of data-parallel ranks that share each minibatch evenly, by whole groups of samples.

    Args:
        cfg: has `algorithm.group_size`, `algorithm.n_minibatches` and `data.rollout_batch_size`.
        total_gpus: how many accelerators there are at most.
        model_parallel_size_with_cp: how many each data-parallel rank takes.

    Raises:
        ConfigError: the samples of a step do not make that many minibatches.
    """
    num_minibatches = cfg.algorithm.n_minibatches
    num_samples = cfg.data.rollout_batch_size * cfg.algorithm.group_size
    if num_samples % num_minibatches:
        problem = f"{num_samples} samples a step do not make {num_minibatches} minibatches of one size"
        raise ConfigError(problem, path="algorithm.n_minibatches")
    # Of a minibatch each rank has whole groups.
    num_groups, rest = divmod(num_samples // num_minibatches, cfg.algorithm.group_size)
    sizes = range(1, total_gpus // model_parallel_size_with_cp + 1)
    return [] if rest else [size for size in sizes if num_groups % size == 0]


def get_scheduler_channel(component: str, instance_id: int = 0) -> str:
    """Return the name of the channel by which an instance of a component is told to change."""
    return f"dynamic_scheduler/{component}/{instance_id}"


def get_scheduler_request_queue() -> str:
    """Return the queue of requests in such a channel."""
    return "requests"


def get_scheduler_response_queue() -> str:
    """Return the queue of responses in such a channel."""
    return "responses"
