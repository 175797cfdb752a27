"""The component `rollout`: writes answers with the newest weights, as many at a time as it has slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from post_training import channels
from post_training.component import ModelReader
from post_training.leased import Taken
from post_training.records import Answer, Request
from post_training.settings import Settings
from post_training.writer import Writer
from rlinf.scheduler.errors import BatchTimeout, ChannelClosed
from rlinf_scheduler.comm import AsyncHandle


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
        # By prompt and sample.
        self._taken: dict[tuple[int, int], Taken] = {}
        self._sent: list[tuple[Taken, AsyncHandle[None]]] = []

    def catch_up(self) -> None:
        """Get the newest weights: what a rank does that takes the place of one that died."""
        self.read_weights(min_version=0)

    def serve(self) -> None:
        """Write until no more requests come and the last answer is handed over.

        It may be begun again by another process: what this one had not handed over comes to others.
        """
        with self._answers.producer():
            while requests := self._take_requests(wait=True):
                with self.device_lock(self.settings.timeout_s):
                    self._begin(requests)
                    while self._writer.is_busy:
                        self._write()
                self._confirm_handed_over(wait=True)

    def _write(self) -> None:
        self._begin(self._take_requests(wait=False))
        # What is under way goes on with newer weights as soon as there are some.
        self.read_weights(min_version=0)
        with self.timer("write"):
            answers = self._writer.write()
        for answer in answers:
            taken = self._taken.pop((answer.prompt, answer.sample))
            self._sent.append((taken, self._hand_over(answer, taken)))
        self._confirm_handed_over(wait=False)

    def _take_requests(self, *, wait: bool) -> Sequence[Request]:
        """As many as there are, and slots for them; none at the end, or if it would have to wait and is not to."""
        if not self._writer.num_free:
            return ()
        timeout_s = self.settings.timeout_s if wait else 0.0
        leasing = self._requests.lease(max_items=self._writer.num_free, timeout_s=timeout_s)
        with self.timer("wait for requests"):
            try:
                # No `with` block: its requests are done with one by one, in any order.
                lease = leasing.__enter__()
            except BatchTimeout:
                if wait:
                    raise
                return ()
            except ChannelClosed:
                return ()
        requests: Sequence[Request] = lease.items
        for place, request in enumerate(requests):
            self._taken[request.prompt, request.sample] = Taken(leasing, lease, place, request)
        return requests

    def _begin(self, requests: Sequence[Request]) -> None:
        if requests:
            self.read_weights(max(request.slot.version for request in requests))
        for request in requests:
            self._writer.begin(request, self.version)

    def _hand_over(self, answer: Answer, taken: Taken) -> AsyncHandle[None]:
        return self._answers.put(
            answer,
            weight=len(answer.tokens),
            group=answer.prompt,
            version=answer.version,
            sources=taken.sources,
            async_op=True,
            timeout_s=self.settings.timeout_s,
        )

    def _confirm_handed_over(self, *, wait: bool) -> None:
        with self.timer("hand over"):
            while self._sent and (wait or self._sent[0][1].done()):
                taken, put = self._sent.pop(0)
                put.wait()
                taken.acknowledge()
