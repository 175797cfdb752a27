"""What the components say to each other: plain arrays in frozen records, no torch, so that any of them can read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Question:
    """Env to rollout: what to do in these states?

    Args:
        observations: (rows, observation size), float32. The first rows are states to act in, one an environment;
            the rest are the last states of episodes that were cut off, of which only the value is wanted.
        min_version: the oldest weights that may answer.
    """

    observations: NDArray[np.float32]
    min_version: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Rollout to env: one action, its log-probability and the state's value for each row of a question.

    Args:
        actions: (rows,), int64.
        log_probs: (rows,), float32, under the policy that chose.
        values: (rows,), float32.
        version: of the weights that answered.
    """

    actions: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    values: NDArray[np.float32]
    version: int


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Env to actor: consecutive steps of one environment, at most one episode, never empty.

    Args:
        observations: (steps, observation size), float32: the states acted in.
        actions: (steps,), int64.
        log_probs: (steps,), float32, under the policy that acted.
        values: (steps,), float32, as that policy judged the states.
        rewards: (steps,), float32.
        terminated: the pole fell at the last step, so that nothing follows it.
        truncated: the episode's time ran out at the last step: it ended, but not because of the state.
        last_value: the value of the state after the last step; 0 where terminated. A trajectory that is neither
            terminated nor truncated was cut at the end of a collection and its episode goes on.
        episode_return: the whole episode's return where one ended here, else None.
        version: of the oldest weights that acted in it.
    """

    observations: NDArray[np.float32]
    actions: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    values: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminated: bool
    truncated: bool
    last_value: float
    episode_return: float | None
    version: int

    def __len__(self) -> int:
        """Steps: the weight of the trajectory in its channel."""
        return len(self.actions)
