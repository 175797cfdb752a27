"""The component `rollout`: writes answers with the newest weights, as many at a time as it has slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from post_training import channels
from post_training.component import ModelReader
from post_training.records import Answer, Request
from post_training.settings import Settings
from post_training.writer import Writer
from rlinf.scheduler.channel import Batch
from rlinf.scheduler.comm import AsyncHandle
from rlinf.scheduler.errors import ChannelClosed


class RolloutWorker(ModelReader):
    """Begins a requested answer whenever a slot is free, and hands each over when it is finished.

    Args:
        settings: of the training.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        torch.manual_seed(settings.seed * 1_000_003 + self.rank)
        self._writer = Writer(self.model, settings.model, self.task, settings.rollout.num_slots, self.device)
        self._requests = self.connect_channel(channels.REQUESTS, timeout_s=settings.timeout_s)
        self._answers = self.connect_channel(channels.ANSWERS, timeout_s=settings.timeout_s)
        self._expected: AsyncHandle[Batch] | None = None
        self._sent: list[AsyncHandle[None]] = []

    def serve(self) -> None:
        """Write until no more requests come and the last answer is handed over."""
        with self._answers.producer():
            while requests := self._take_requests(wait=True):
                with self.device_lock(self.settings.timeout_s):
                    self._begin(requests)
                    while self._writer.is_busy:
                        self._write()
                self._confirm_handed_over()

    def _write(self) -> None:
        self._begin(self._take_requests(wait=False))
        # What is under way goes on with newer weights as soon as there are some.
        self.read_weights(min_version=0)
        with self.timer("write"):
            answers = self._writer.write()
        self._sent += [self._hand_over(answer) for answer in answers]

    def _take_requests(self, *, wait: bool) -> Sequence[Request]:
        """As many as there are, and slots for them; none at the end, or if it would have to wait and is not to."""
        if self._expected is None and self._writer.num_free:
            self._expected = self._requests.get_batch(
                max_items=self._writer.num_free, async_op=True, timeout_s=self.settings.timeout_s
            )
        if self._expected is None or not (wait or self._expected.done()):
            return ()
        with self.timer("wait for requests"):
            try:
                requests = self._expected.wait()
            except ChannelClosed:
                return ()
            self._expected = None
            return requests

    def _begin(self, requests: Sequence[Request]) -> None:
        if requests:
            self.read_weights(max(request.slot.version for request in requests))
        for request in requests:
            self._writer.begin(request, self.version)

    def _hand_over(self, answer: Answer) -> AsyncHandle[None]:
        return self._answers.put(
            answer,
            weight=len(answer.tokens),
            group=answer.prompt,
            async_op=True,
            timeout_s=self.settings.timeout_s,
        )

    def _confirm_handed_over(self) -> None:
        with self.timer("hand over"):
            for put in self._sent:
                put.wait()
            self._sent.clear()
