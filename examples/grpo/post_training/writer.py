"""The rollout's own engine: a slot that has finished is free for the next answer at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

import torch

from post_training.model import Cache, Transformer
from post_training.settings import ModelSettings
from post_training.task import SortingTask
from rlinf.scheduler import Worker
from rlinf.scheduler.errors import EngineDead, SchedulerError, UpdateFailed
from rlinf_scheduler.engines import EngineLoad, GenerationRequest, Tokens
from rlinf_scheduler.engines.protocol import FinishReason, PauseMode


@dataclass(eq=False, slots=True)
class _Row:
    """A sequence under way: all that is there is fed first, then what is written.

    Attributes:
        tokens: of the prompt, its start included, and of the answer.
        written: token, log-probability and version of each that was written here.
        ended: why, once it has.
    """

    request: GenerationRequest
    tokens: list[int]
    fed: int = 0
    written: list[tuple[int, float, int]] = field(default_factory=list)
    ended: asyncio.Future[FinishReason] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def next_token(self) -> tuple[int, int, int, int]:
        """The token to be fed, its place, its part, and its index in the cache."""
        start = len(self.request.prompt_ids) - 1
        is_answer = self.fed >= start
        return self.tokens[self.fed], self.fed - start * is_answer, int(is_answer), self.fed

    def end(self, reason: FinishReason) -> None:
        """Say why it has ended, unless nobody wants to know any more."""
        if not self.ended.done():
            self.ended.set_result(reason)


class Writer:
    """An engine (`RolloutEngine`) that samples one token of every answer under way at a time.

    The slots in use are always the first rows of the cache, so that a few long answers cost what a few rows cost.
    An answer is handed out as a whole; what is under way goes on with newer weights, and with what is in the cache.

    Args:
        model: whose weights it takes.
        settings: of the model.
        task: whose prompts are answered.
        num_slots: answers at a time.
        keys: which weights it takes; None: all.

    Attributes:
        version: of these.
    """

    def __init__(
        self,
        model: Transformer,
        settings: ModelSettings,
        task: SortingTask,
        num_slots: int,
        keys: str | None = None,
    ) -> None:
        self.version = 0
        self._model = model
        self._device = next(model.parameters()).device
        self._keys = keys
        self._num_slots = num_slots
        self._num_ids = task.num_ids
        self._rows: list[_Row] = []
        self._waiting: list[_Row] = []
        self._cache = Cache(settings, num_slots, 2 * task.max_answer, self._device)
        self._is_paused = self._is_finishing = False
        self._changed = asyncio.Condition()
        self._dead: EngineDead | None = None

    async def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End it."""
        await self.abort()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def health(self) -> None:
        """Raise what has ended it."""
        if self._dead is not None:
            raise self._dead

    async def load(self) -> EngineLoad:
        """Return how much it has to do."""
        rows = (*self._rows, *self._waiting)
        return EngineLoad(
            len(self._rows),
            len(self._waiting),
            len(self._rows) / self._num_slots,
            sum(len(row.tokens) for row in rows),
        )

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Tokens]:
        """Yield the tokens of an answer when it has ended, a piece for each version."""
        await self.health()
        request.check_vocabulary(self._num_ids)
        row = _Row(request, [*request.prompt_ids, *request.output_ids])
        self._waiting.append(row)
        await self._tell()
        try:
            reason = await row.ended
        finally:
            self._leave(row)
            await self._tell()
        for version, pieces in groupby(row.written, itemgetter(2)):
            tokens, log_probs, _ = zip(*pieces, strict=True)
            yield Tokens(tokens, log_probs, version)
        yield Tokens((), (), self.version, reason)

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """End answers, None for all, with what they have."""
        for row in (*self._rows, *self._waiting):
            if request_ids is None or row.request.request_id in request_ids:
                self._leave(row)
                row.end("abort")
        await self._tell()

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Write nothing until `resume`."""
        if mode == "finish":
            self._is_finishing = True
            async with self._changed:
                await self._changed.wait_for(lambda: not self._rows)
        self._is_paused, self._is_finishing = True, False
        if mode == "abort":
            await self.abort([row.request.request_id for row in self._rows])

    async def resume(self) -> None:
        """Write again."""
        self._is_paused = False
        await self._tell()

    async def sleep(self) -> None:
        """Give the device's memory back."""
        await self.pause("abort")
        self._model.to("cpu")

    async def wake(self) -> None:
        """Take it again, and write."""
        self._model.to(self._device)
        await self.resume()

    async def update_weights(
        self, name: str, *, min_version: int | None = None, timeout_s: float | None = None
    ) -> int:
        """Take the newest published weights, between two tokens."""
        try:
            self.version = await Worker().fetch_weights(
                name, self._model, min_version, keys=self._keys, async_op=True, timeout_s=timeout_s
            )
        except SchedulerError as error:
            raise UpdateFailed(name, self.version, str(error)) from error
        return self.version

    async def _run(self) -> None:
        try:
            await self._write_on()
        except Exception as error:  # noqa: BLE001 - it is the end of this engine, and its requests are told
            self._dead = EngineDead("the writer", reason=f"{type(error).__name__}: {error}")
            for row in (*self._rows, *self._waiting):
                if not row.ended.done():
                    row.ended.set_exception(self._dead)

    async def _write_on(self) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._is_paused and self._has_work())
            if not self._is_finishing:
                self._begin()
            self._write()
            await self._tell()
            await asyncio.sleep(0)

    def _has_work(self) -> bool:
        return bool(self._rows or (self._waiting and not self._is_finishing))

    def _begin(self) -> None:
        joining = self._waiting[: self._num_slots - len(self._rows)]
        del self._waiting[: len(joining)]
        self._rows += joining

    def _write(self) -> None:
        """Write one token, or read one of the prompt, in every slot in use."""
        with torch.inference_mode():
            sampled, chosen = self._sample()
        for row, token, log_prob in zip(tuple(self._rows), sampled, chosen, strict=True):
            row.fed += 1
            if row.fed < len(row.tokens):
                continue
            row.tokens.append(token)
            row.written.append((token, log_prob, self.version))
            is_stop = token in row.request.sampling.stop_token_ids
            if is_stop or len(row.written) == row.request.remaining:
                self._leave(row)
                row.end("stop" if is_stop else "length")

    def _sample(self) -> tuple[list[int], list[float]]:
        """A token for every slot in use, and its log-probability."""
        fed = torch.tensor([row.next_token for row in self._rows], device=self._device)
        tokens, places, parts, index = fed.unbind(1)
        log_probs = self._model.advance(tokens, places, parts, index, self._cache).log_softmax(-1)
        # The Gumbel-max trick samples a row without building a distribution object at every step.
        noise = -torch.empty_like(log_probs).exponential_().log()
        sampled = (log_probs + noise).argmax(-1)
        chosen = log_probs.gather(1, sampled[:, None])[:, 0]
        return sampled.tolist(), chosen.tolist()

    def _leave(self, row: _Row) -> None:
        """Give a slot to the last row in use."""
        if row in self._waiting:
            self._waiting.remove(row)
        elif row in self._rows:
            place, last = self._rows.index(row), self._rows.pop()
            if last is not row:
                self._rows[place] = last
                self._cache.move(len(self._rows), place)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
