"""The component `reward`: scores the answers to a prompt; it holds no model and no device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from post_training import channels
from post_training.grpo import group_advantages
from post_training.records import Answer, Group
from post_training.settings import Settings
from post_training.task import SortingTask
from rlinf.scheduler import Worker
from rlinf.scheduler.errors import ChannelClosed


class RewardWorker(Worker):
    """Takes all answers to one prompt at a time, whichever prompt has them first.

    Args:
        settings: of the training.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        self._task = SortingTask(settings.task, settings.seed)
        self._answers = self.connect_channel(channels.ANSWERS, timeout_s=settings.timeout_s)
        self._scored = self.connect_channel(channels.SCORED, timeout_s=settings.timeout_s)
        # What is left in the end of prompts of which some answer is missing, by prompt and sample.
        self._left: dict[int, dict[int, Answer]] = {}

    def serve(self) -> None:
        """Score until the last rank of the rollout is done."""
        with self._scored.producer():
            while True:
                with self.timer("wait for answers"):
                    try:
                        answers = self._answers.get_group(
                            self._settings.grpo.group_size, timeout_s=self._settings.timeout_s
                        )
                    except ChannelClosed:
                        return
                complete = self._complete(answers)
                if complete:
                    group = self._score(complete)
                    self._scored.put(group, weight=group.num_tokens, timeout_s=self._settings.timeout_s)

    def _complete(self, taken: Sequence[Answer]) -> Sequence[Answer]:
        """A prompt's answers, each once; none if one is still to come.

        A rank of the rollout that died may have handed over an answer that another one writes again.
        """
        prompt = taken[0].prompt
        answers = {**self._left.pop(prompt, {}), **{answer.sample: answer for answer in taken}}
        if len(answers) < self._settings.grpo.group_size:
            try:
                for answer in answers.values():
                    self._answers.put(
                        answer, weight=len(answer.tokens), group=prompt, timeout_s=self._settings.timeout_s
                    )
            except ChannelClosed:
                self._left[prompt] = answers
            return ()
        return list(answers.values())

    @Worker.timer("score")
    def _score(self, taken: Sequence[Answer]) -> Group:
        answers = sorted(taken, key=lambda answer: answer.sample)
        prompt = answers[0].prompt
        symbols = self._task.prompt(prompt)
        rewards = [self._task.reward(symbols, answer.tokens.tolist()) for answer in answers]
        return Group(
            prompt=prompt,
            symbols=np.array(symbols, np.int64),
            answers=tuple(answers),
            rewards=np.array(rewards, np.float32),
            advantages=group_advantages(rewards),
        )
