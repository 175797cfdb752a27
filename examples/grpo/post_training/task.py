"""What is learned: to write the symbols of a prompt in order. Prompts are few symbols mostly, and sometimes many."""

from __future__ import annotations

import random
from collections.abc import Sequence

from post_training.settings import TaskSettings


class SortingTask:
    """Prompts by number, and the reward of an answer.

    A prompt is a function of the seed and its number: whoever goes on with a training needs no more than the number
    to go on with. Tokens are the symbols 0 to num_symbols - 1, then `end`, which ends an answer, and `start`, which
    stands between a prompt and its answer and is never written.

    Args:
        settings: symbols, and the distribution of lengths.
        seed: of all prompts.
    """

    def __init__(self, settings: TaskSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self.end = settings.num_symbols
        self.start = settings.num_symbols + 1
        self.num_ids = settings.num_symbols + 2
        self.max_answer = settings.max_length + 1

    def prompt(self, number: int) -> list[int]:
        """The symbols of one prompt: their count is lognormal, cut off at `max_length`."""
        settings = self._settings
        dice = random.Random(f"{self._seed}/{number}")
        length = round(settings.median_length * dice.lognormvariate(0, settings.spread))
        length = min(max(length, 1), settings.max_length)
        return [dice.randrange(settings.num_symbols) for _ in range(length)]

    def reward(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """The share of places at which an answer is right, its end included; 1 for the right answer alone.

        >>> task = SortingTask(TaskSettings(num_symbols=4, max_length=24, median_length=5.0, spread=0.8), seed=0)
        >>> task.reward([3, 0, 1], [0, 1, 3, task.end]), task.reward([3, 0, 1], [0, 1, 1, 3, task.end])
        (1.0, 0.4)
        """
        right = [*sorted(prompt), self.end]
        matches = sum(wanted == written for wanted, written in zip(right, answer, strict=False))
        return matches / max(len(right), len(answer))
