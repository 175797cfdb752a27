"""The component `rollout`: answers the environments' questions with the newest weights that it has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

import channels
from policy import WEIGHTS, policy_of
from rlinf.scheduler import Worker
from rlinf.scheduler.errors import ChannelClosed
from rlinf_scheduler.comm import AsyncHandle
from rlinf_scheduler.engines import Decisions, Observations
from settings import Settings


class RolloutWorker(Worker):
    """Batches the questions that are there, decides on all their rows at once, and answers each.

    Args:
        settings: of the training.
        max_questions: how many questions it takes at a time at most.
    """

    def __init__(self, settings: Settings, max_questions: int) -> None:
        super().__init__()
        torch.set_num_threads(1)
        torch.manual_seed(settings.seed * 1_000_003 + self.rank)
        self._timeout_s = settings.timeout_s
        self._max_questions = max_questions
        self._policy = policy_of(self, settings)
        self._version = -1
        self._questions = self.connect_channel(channels.QUESTIONS, timeout_s=self._timeout_s)

    def catch_up(self) -> None:
        """Get the newest weights: what a rank does that takes the place of one that died."""
        self._version = self._expect_weights().wait(self._timeout_s)

    def serve(self) -> None:
        """Answer until the channel of the questions is closed."""
        newer = self._expect_weights()
        while True:
            try:
                requests = self._questions.next_requests(self._max_questions, timeout_s=self._timeout_s)
            except ChannelClosed:
                return
            questions: list[Observations] = [request.item for request in requests]
            wanted = max(question.about for question in questions)
            while self._version < wanted or newer.done():
                self._version = newer.wait(self._timeout_s)
                newer = self._expect_weights()
            with self.timer("infer"):
                decisions = self._decide(questions)
            with self.timer("answer"):
                for request, decision in zip(requests, decisions, strict=True):
                    request.reply(decision)

    def _expect_weights(self) -> AsyncHandle[int]:
        """Done when there are newer weights than the present ones; they are copied when it is waited for."""
        handle: AsyncHandle[int] = self.fetch_weights(
            WEIGHTS, into=self._policy, min_version=self._version + 1, async_op=True
        )
        return handle

    def _decide(self, questions: Sequence[Observations]) -> list[Decisions]:
        rows = np.concatenate([question.rows for question in questions])
        decisions: Decisions = self._policy.decide(rows, version=self._version)
        return decisions.split(map(len, questions))
