"""The side that asks a rollout service: prompts in, outputs with log-probabilities and versions back."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rlinf_scheduler import Channel
from rlinf_scheduler.engines.protocol import GenerationRequest, Sampling
from rlinf_scheduler.engines.rollout_worker import RolloutAnswer

if TYPE_CHECKING:
    from rlinf.scheduler.collective import AsyncWork


class RolloutClient:
    """Asks the engines behind a channel; in any process of the job, from any thread.

        client = RolloutClient(channel)
        for answer in client.generate(prompt_ids, Sampling(max_tokens=64), n=8):
            print(answer.generation.token_ids, answer.answered_by)

    Args:
        channel: the one that the ranks serve, or its name.
        queue_name: likewise.
    """

    def __init__(self, channel: Channel | str, queue_name: str = "default") -> None:
        self._channel = Channel.connect(channel) if isinstance(channel, str) else channel
        self._queue = queue_name

    def begin(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        n: int = 1,
        conversation: str | None = None,
        min_version: int = 0,
    ) -> list[PendingRollout]:
        """Ask for `n` outputs of a prompt; a handle each, of which each is done when its output is.

        With a seed the samples have this one and those that follow it. They go to one engine while it has room, as all
        with the same `conversation` do. `min_version` is of the weights that may begin them.

        Raises:
            TypeError, ValueError: the prompt is not token ids; nothing is asked.
        """
        key = conversation or uuid4().hex
        return [
            PendingRollout(
                self._channel, self._queue, key, _request(prompt_ids, sampling, place, min_version)
            )
            for place in range(n)
        ]

    def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        n: int = 1,
        conversation: str | None = None,
        min_version: int = 0,
        timeout_s: float | None = None,
    ) -> list[RolloutAnswer]:
        """Return `n` outputs of a prompt.

        Args:
            prompt_ids: its tokens.
            sampling: how the tokens of the outputs are drawn.
            n: how many outputs.
            conversation: what it is a turn of; see `begin`.
            min_version: the oldest weights that may begin them; ranks that have older ones get newer ones first.
            timeout_s: how long to wait for all, in seconds.

        Raises:
            EngineError: an engine cannot take it.
            ChannelUnanswerable: it was given out as often as the channel allows, and no rank answered.
            ResultTimeout: they were not done in time. They are given up, as whenever it raises.
        """
        pending = self.begin(prompt_ids, sampling, n=n, conversation=conversation, min_version=min_version)
        until = None if timeout_s is None else monotonic() + timeout_s
        try:
            return [each.wait(None if until is None else max(0.0, until - monotonic())) for each in pending]
        finally:
            _give_up(pending)

    async def generate_async(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        n: int = 1,
        conversation: str | None = None,
        min_version: int = 0,
    ) -> list[RolloutAnswer]:
        """As `generate`, in a coroutine."""
        pending = self.begin(prompt_ids, sampling, n=n, conversation=conversation, min_version=min_version)
        try:
            return await asyncio.gather(*pending)
        finally:
            _give_up(pending)

    def conversation(self, prompt_ids: Sequence[int] = ()) -> Conversation:
        """Begin a conversation of many turns."""
        return Conversation(self, prompt_ids)


class PendingRollout:
    """An output to come: `wait()` or `await` it. One that is dropped is given up.

    What a rank hands back (it is drained) goes on elsewhere, from when it is waited for.

    Attributes:
        request: as it was asked last, with the tokens that it had then.
    """

    def __init__(self, channel: Channel, queue: str, key: str, request: GenerationRequest) -> None:
        self.request = request
        self._channel = channel
        self._queue = queue
        self._key = key
        self._asked = self._ask()

    def done(self) -> bool:
        """Whether a rank has answered."""
        return self._asked.done()

    def cancel(self) -> bool:
        """Give it up."""
        return self._asked.cancel()

    def wait(self, timeout_s: float | None = None) -> RolloutAnswer:
        """Return the answer; raises as `RolloutClient.generate`."""
        until = None if timeout_s is None else monotonic() + timeout_s
        while self._goes_on(answer := self._asked.wait(timeout_s)):
            timeout_s = None if until is None else max(0.0, until - monotonic())
        return answer

    def __await__(self) -> Generator[Any, None, RolloutAnswer]:
        """Wait for the answer in a coroutine."""
        return self._wait().__await__()

    async def _wait(self) -> RolloutAnswer:
        while self._goes_on(answer := await self._asked):
            pass
        return answer

    def _goes_on(self, answer: RolloutAnswer) -> bool:
        """Ask again, after what there is, if it was handed back."""
        if answer.generation.finish_reason != "abort":
            return False
        self.request = self.request.after(answer.generation)
        self._asked = self._ask()
        return True

    def _ask(self) -> AsyncWork[RolloutAnswer]:
        weight = len(self.request.prompt_ids) + self.request.sampling.max_tokens
        return self._channel.ask(self.request, weight, self._queue, async_op=True, group=self._key)


class Conversation:
    """Turns of a model and of what answers it (a user, tools), as one sequence of tokens.

        conversation = client.conversation(prompt_ids)
        while (call := tool_call(conversation.generate(sampling).generation)) is not None:
            conversation.extend(run_tool(call))

    Its turns go to the engine that had the last one, which has its beginning in its cache, while that has room.

    Attributes:
        token_ids: all that was said, prompts and outputs.
        answers: those of the model, turn by turn.
    """

    def __init__(self, client: RolloutClient, prompt_ids: Sequence[int] = ()) -> None:
        self.token_ids = list(prompt_ids)
        self.answers: list[RolloutAnswer] = []
        self._client = client
        self._key = uuid4().hex

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add what a user or a tool says."""
        self.token_ids.extend(token_ids)

    def generate(self, sampling: Sampling, timeout_s: float | None = None) -> RolloutAnswer:
        """Let the model say something after all that was said; raises as `RolloutClient.generate`."""
        return self._add(self._begin(sampling).wait(timeout_s))

    async def generate_async(self, sampling: Sampling) -> RolloutAnswer:
        """As `generate`, in a coroutine."""
        return self._add(await self._begin(sampling))

    def _begin(self, sampling: Sampling) -> PendingRollout:
        return self._client.begin(self.token_ids, sampling, conversation=self._key)[0]

    def _add(self, answer: RolloutAnswer) -> RolloutAnswer:
        self.answers.append(answer)
        self.token_ids.extend(answer.generation.token_ids)
        return answer


def _give_up(pending: list[PendingRollout]) -> None:
    for each in pending:
        each.cancel()


def _request(
    prompt_ids: Sequence[int], sampling: Sampling, place: int, min_version: int
) -> GenerationRequest:
    if sampling.seed is not None and place:
        sampling = replace(sampling, seed=sampling.seed + place)
    return GenerationRequest(uuid4().hex, tuple(prompt_ids), sampling, min_version=min_version)
