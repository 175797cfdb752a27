"""What the components say to each other: plain arrays in frozen records, no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlinf.scheduler.channel import Slot
from rlinf_scheduler.engines import Generation


@dataclass(frozen=True, slots=True)
class Prompt:
    """Driver to reward: have this one answered.

    Args:
        number: of the prompt.
        slot: its leave to be answered: its version is that of the oldest weights that may begin an answer.
    """

    number: int
    slot: Slot


@dataclass(frozen=True, slots=True)
class Answer:
    """What was written.

    Args:
        tokens: (length,), int64: with the end, unless it was cut off.
        log_probs: (length,), float32, under the weights that wrote each token.
        version: of the weights that began it, the oldest in it.
    """

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    version: int

    @classmethod
    def of(cls, generation: Generation) -> Answer:
        """What an engine has written."""
        return cls(
            np.array(generation.token_ids, np.int64),
            np.array(generation.logprobs, np.float32),
            min(generation.versions),
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Reward to inference, and on to the actor: all answers to one prompt.

    Args:
        prompt: number of the prompt.
        symbols: of the prompt, (prompt length,), int64.
        answers: all of them.
        rewards: (group size,), float32.
        advantages: (group size,), float32: rewards minus their mean, over their standard deviation.
        proximal: log-probabilities of the answers' tokens under the newest weights that inference had, one after the
            other, (tokens of all answers,), float32; None before inference.
        proximal_version: of these weights.
        slot: the prompt's; None where nobody asked for leave.
    """

    prompt: int
    symbols: NDArray[np.int64]
    answers: tuple[Answer, ...]
    rewards: NDArray[np.float32]
    advantages: NDArray[np.float32]
    proximal: NDArray[np.float32] | None = None
    proximal_version: int = -1
    slot: Slot | None = None

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
