"""What the components say to each other: plain arrays in frozen records, no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlinf.scheduler.channel import Slot


@dataclass(frozen=True, slots=True)
class Request:
    """Driver to rollout: write one answer.

    Args:
        prompt: number of the prompt.
        sample: which of the prompt's answers, from 0.
        slot: the prompt's leave to be written: its version is that of the oldest weights that may begin it.
    """

    prompt: int
    sample: int
    slot: Slot


@dataclass(frozen=True, slots=True)
class Answer:
    """Rollout to reward: what was written.

    Args:
        prompt: number of the prompt.
        sample: which of its answers.
        tokens: (length,), int64: with the end, unless it was cut off.
        log_probs: (length,), float32, under the weights that wrote each token.
        version: of the weights that began it, the oldest in it.
        slot: the prompt's; None where nobody asked for leave.
    """

    prompt: int
    sample: int
    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    version: int
    slot: Slot | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Reward to inference, and on to the actor: all answers to one prompt.

    Args:
        prompt: number of the prompt.
        symbols: of the prompt, (prompt length,), int64.
        answers: by sample.
        rewards: (group size,), float32.
        advantages: (group size,), float32: rewards minus their mean, over their standard deviation.
        proximal: log-probabilities of the answers' tokens under the newest weights that inference had, one after the
            other, (tokens of all answers,), float32; None before inference.
        proximal_version: of these weights.
    """

    prompt: int
    symbols: NDArray[np.int64]
    answers: tuple[Answer, ...]
    rewards: NDArray[np.float32]
    advantages: NDArray[np.float32]
    proximal: NDArray[np.float32] | None = None
    proximal_version: int = -1

    @property
    def num_tokens(self) -> int:
        """Tokens that a pass over the group computes, prompts included: its weight in its channels."""
        return sum(len(self.symbols) + 1 + len(answer.tokens) for answer in self.answers)

    @property
    def num_written(self) -> int:
        """Tokens of the answers alone."""
        return sum(len(answer.tokens) for answer in self.answers)

    @property
    def version(self) -> int:
        """Of the oldest weights in it."""
        return min(answer.version for answer in self.answers)

    @property
    def slot(self) -> Slot | None:
        """The prompt's."""
        return self.answers[0].slot
