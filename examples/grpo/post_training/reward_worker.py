"""The component `reward`: has prompts answered, and scores the answers; it holds no model and no device."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from post_training import channels
from post_training.grpo import group_advantages
from post_training.records import Answer, Group, Prompt
from post_training.settings import Settings
from post_training.task import SortingTask
from rlinf.scheduler import Worker
from rlinf.scheduler.errors import ChannelClosed
from rlinf_scheduler.engines import RolloutClient, Sampling


class RewardWorker(Worker):
    """Asks the ranks of the rollout for all answers to a prompt, for many prompts at a time.

    Args:
        settings: of the training.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        self._task = SortingTask(settings.task, settings.seed)
        self._prompts = self.connect_channel(channels.PROMPTS, timeout_s=settings.timeout_s)
        self._rollout = RolloutClient(self.connect_channel(channels.REQUESTS, timeout_s=settings.timeout_s))
        self._scored = self.connect_channel(channels.SCORED, timeout_s=settings.timeout_s)

    async def serve(self) -> None:
        """Have prompts answered, and score, until no more come."""
        with self._scored.producer():
            await asyncio.gather(*(self._serve() for _ in range(self._settings.grpo.prompts_per_step)))

    async def _serve(self) -> None:
        while True:
            try:
                prompt = await self._prompts.get(async_op=True, timeout_s=self._settings.timeout_s)
            except ChannelClosed:
                return
            group = self._score(prompt, await self._answers(prompt))
            await self._scored.put(
                group, weight=group.num_tokens, async_op=True, timeout_s=self._settings.timeout_s
            )

    async def _answers(self, prompt: Prompt) -> Sequence[Answer]:
        """All answers to a prompt, begun by weights as new as its slot asks for."""
        answers = self._rollout.generate_async(
            (*self._task.prompt(prompt.number), self._task.start),
            Sampling(max_tokens=self._task.max_answer, stop_token_ids=(self._task.end,)),
            n=self._settings.grpo.group_size,
            min_version=prompt.slot.version,
        )
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                return [Answer.of(answer.generation) for answer in await answers]
        except TimeoutError:
            problem = (
                f"prompt {prompt.number} has not all of its answers after {self._settings.timeout_s:g} s"
            )
            raise TimeoutError(problem) from None

    @Worker.timer("score")
    def _score(self, prompt: Prompt, answers: Sequence[Answer]) -> Group:
        symbols = self._task.prompt(prompt.number)
        rewards = [self._task.reward(symbols, answer.tokens.tolist()) for answer in answers]
        return Group(
            prompt=prompt.number,
            slot=prompt.slot,
            symbols=np.array(symbols, np.int64),
            answers=tuple(answers),
            rewards=np.array(rewards, np.float32),
            advantages=group_advantages(rewards),
        )
