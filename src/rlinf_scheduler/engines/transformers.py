"""An engine on a model of `transformers`: for laptops, tests, and models that no faster engine has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf_scheduler import Worker
from rlinf_scheduler.engines.protocol import (
    EngineLoad,
    FinishReason,
    GenerationRequest,
    PauseMode,
    Sampling,
    Tokens,
)
from rlinf_scheduler.errors import EngineDead, EngineError, SchedulerError, UpdateFailed


class TransformersEngine:
    """Generates with a causal language model, in this process: all requests side by side, token by token.

    Requests join and leave between tokens, each with the keys and values of what it has. After an update these are
    computed anew, so each log-probability is what a forward pass under the token's version gives.

    Args:
        model: a `transformers` model, the config of one (which gets random weights), or a path or name that
            `from_pretrained` takes.
        device: where it computes.
        dtype: of its weights, such as "bfloat16"; None: as they are.
        max_requests: how many requests generate at a time; others wait.
        seed: of the random weights of a config.

    Attributes:
        version: as of `RolloutEngine`.
        model: from `start` on.
    """

    def __init__(
        self,
        model: Any,
        *,
        device: str | torch.device = "cpu",
        dtype: str | None = None,
        max_requests: int = 32,
        seed: int = 0,
    ) -> None:
        self.version = 0
        self.model: Any = None
        self._source = model
        self._device = torch.device(device)
        self._dtype = None if dtype is None else getattr(torch, dtype)
        self._max_requests = max_requests
        self._seed = seed
        self._batch: _Batch | None = None
        self._waiting: list[_Row] = []
        self._running: list[_Row] = []
        self._dead: EngineDead | None = None
        self._task: asyncio.Task[None] | None = None
        self._stepping = asyncio.Lock()  # of whoever computes, or changes what is computed with
        self._changed = asyncio.Condition()
        self._is_paused = self._is_asleep = self._is_finishing = self._is_closed = False
        self._paused_since: float | None = None
        self._paused_s = 0.0

    async def start(self) -> None:
        """Load the model."""
        self.model = await asyncio.to_thread(_loaded, self._source, self._dtype, self._seed)
        self.model.to(self._device).eval()
        self._ends = frozenset(_end_ids(self.model))
        self._max_length: int = getattr(self.model.config, "max_position_embeddings", None) or 1 << 30
        self._num_ids: int = self.model.get_input_embeddings().weight.shape[0]
        self._batch = _Batch(self.model, self._device)
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End it; what runs ends with "abort"."""
        self._is_closed = True
        await self.abort()
        await self._tell()
        if self._task is not None:
            await self._task
        self.model = self._batch = None

    async def health(self) -> None:
        """Return if it can generate.

        Raises:
            EngineDead: a step has failed.
            EngineError: it was not started, or was closed.
        """
        if self._dead is not None:
            raise EngineDead(self._dead.process, reason=self._dead.reason)
        if self._task is None or self._is_closed:
            raise EngineError(f"the engine was {'closed' if self._is_closed else 'not started'}")

    async def load(self) -> EngineLoad:
        """Return how much it has to do; its cache is full where `max_requests` run."""
        paused_s = 0.0 if self._paused_since is None else monotonic() - self._paused_since
        return EngineLoad(
            running=len(self._running),
            waiting=len(self._waiting),
            cache_use=len(self._running) / self._max_requests,
            tokens=sum(len(row.token_ids) for row in (*self._running, *self._waiting)),
            paused_s=self._paused_s + paused_s,
        )

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Tokens]:
        """Yield the tokens of a request, one by one; see `RolloutEngine`."""
        await self.health()
        if any(row.request.request_id == request.request_id for row in (*self._running, *self._waiting)):
            raise EngineError(f"request '{request.request_id}' runs already")
        request.check_vocabulary(self._num_ids)
        row = _Row(request)
        if len(row.token_ids) >= self._max_length:
            problem = f"request '{request.request_id}' has {len(row.token_ids)} tokens"
            raise EngineError(
                f"{problem}, and the model takes {self._max_length}, those it generates included"
            )
        self._waiting.append(row)
        await self._tell()
        try:
            while True:
                tokens = await row.stream.get()
                if isinstance(tokens, EngineDead):
                    raise EngineDead(tokens.process, reason=tokens.reason)
                yield tokens
                if tokens.finish_reason is not None:
                    return
        finally:
            self._forget(row)

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """End requests, None for all, with "abort"."""
        for row in (*self._running, *self._waiting):
            if request_ids is None or row.request.request_id in request_ids:
                self._forget(row)
                row.stream.put_nowait(Tokens((), (), self.version, "abort"))
        await self._tell()

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Generate no token until `resume`; requests that come wait."""
        if mode == "finish":
            self._is_finishing = True
            async with self._changed:
                await self._changed.wait_for(lambda: not self._running or self._dead is not None)
        if self._paused_since is None:
            self._paused_since = monotonic()
        self._is_paused = True
        if mode == "abort":
            running = [row.request.request_id for row in self._running]
            await self.abort(running)
        async with self._stepping:  # the step that was under way is over
            self._is_finishing = False

    async def resume(self) -> None:
        """Generate again after a pause."""
        if self._paused_since is not None and not self._is_asleep:
            self._paused_s += monotonic() - self._paused_since
        self._paused_since = None
        self._is_paused = False
        await self._tell()

    async def sleep(self) -> None:
        """Give memory back: of the cache, and on an accelerator of the weights, which wait in host memory."""
        self._is_asleep = True
        await self.abort([row.request.request_id for row in self._running])
        async with self._stepping:
            self._forget_cache()
            await asyncio.to_thread(self.model.to, "cpu")
            if self._device.type != "cpu":
                getattr(torch, self._device.type).empty_cache()

    async def wake(self) -> None:
        """Take the memory again, and generate."""
        async with self._stepping:
            await asyncio.to_thread(self.model.to, self._device)
        self._is_asleep = False
        await self._tell()

    async def update_weights(
        self, name: str, *, min_version: int | None = None, timeout_s: float | None = None
    ) -> int:
        """Take the newest version of published weights into the model, in place; see `RolloutEngine`.

        It generates until they are there, and pauses for the copy.
        """
        await self.health()
        try:
            newer = Worker().fetch_weights(name, self.model, min_version, async_op=True, timeout_s=timeout_s)
            await _done(newer)
            async with self._stepping:
                began = monotonic()
                try:
                    self.version = await asyncio.to_thread(newer.wait)
                finally:
                    if self._paused_since is None:
                        self._paused_s += monotonic() - began
                self._forget_cache()
        except SchedulerError as error:
            raise UpdateFailed(name, self.version, str(error)) from error
        except Exception as error:
            # The copy itself: what is there now is neither the old version nor the new one.
            self._die(f"copying weights '{name}' has failed: {error}")
            raise EngineDead("the engine", reason=f"copying weights '{name}' has failed: {error}") from error
        await self._tell()
        return self.version

    # -- what generates --------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._is_closed and self._dead is None:
            async with self._changed:
                await self._changed.wait_for(lambda: self._is_closed or self._has_work)
            async with self._stepping:
                if self._has_work and not self._is_closed:
                    await self._step()
            await self._tell()

    @property
    def _has_work(self) -> bool:
        if self._is_paused or self._is_asleep:
            return False
        return bool(self._running or (self._waiting and not self._is_finishing))

    async def _step(self) -> None:
        assert self._batch is not None  # noqa: S101 - it has started
        joining: list[_Row] = []
        if not self._is_finishing:
            joining = self._waiting[: self._max_requests - len(self._running)]
            del self._waiting[: len(joining)]
            self._running += joining
        try:
            drawn = await asyncio.to_thread(self._batch.step, list(self._running))
        except Exception as error:  # noqa: BLE001 - of a library, and the end of this engine
            self._die(f"{type(error).__name__}: {error}")
            return
        for row, token, logprob in drawn:
            if row in self._running:  # it may have been aborted meanwhile
                row.token_ids.append(token)
                reason = self._finish_reason(row, token)
                row.stream.put_nowait(Tokens((token,), (logprob,), self.version, reason))
                if reason is not None:
                    self._running.remove(row)

    def _finish_reason(self, row: _Row, token: int) -> FinishReason | None:
        sampling = row.request.sampling
        if token in sampling.stop_token_ids or (token in self._ends and not sampling.ignore_eos):
            return "stop"
        num_output = len(row.token_ids) - len(row.request.prompt_ids)
        is_full = num_output >= sampling.max_tokens or len(row.token_ids) >= self._max_length
        return "length" if is_full else None

    def _forget(self, row: _Row) -> None:
        for rows in (self._running, self._waiting):
            with suppress(ValueError):
                rows.remove(row)

    def _forget_cache(self) -> None:
        assert self._batch is not None  # noqa: S101 - it has started
        self._batch = _Batch(self._batch.model, self._device)

    def _die(self, reason: str) -> None:
        self._dead = EngineDead("the engine", reason=reason)
        for row in (*self._running, *self._waiting):
            row.stream.put_nowait(self._dead)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@dataclass(eq=False, slots=True)
class _Row:
    """A request, with the tokens that it has.

    Attributes:
        dice: of its draws; they depend on its seed and on how many tokens it has, and on no other request.
    """

    request: GenerationRequest
    token_ids: list[int] = field(init=False)
    stream: asyncio.Queue[Tokens | EngineDead] = field(default_factory=asyncio.Queue)
    dice: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.token_ids = [*self.request.prompt_ids, *self.request.output_ids]
        self.dice = np.random.default_rng(self.request.sampling.seed)
        self.dice.random(len(self.request.output_ids))


class _Batch:
    """The rows that are generated together, and their keys and values: padded on the left to one length.

    Args:
        model: the model.
        device: where it computes.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model = model
        self._device = device
        self._rows: list[_Row] = []
        self._mask = torch.zeros(0, 0, dtype=torch.long, device=device)
        self._layers: list[tuple[Tensor, Tensor]] = []

    @torch.inference_mode()
    def step(self, rows: list[_Row]) -> list[tuple[_Row, int, float]]:
        """Draw a token for rows: for those that are new here if there are any, else for all."""
        self._keep([place for place, row in enumerate(self._rows) if row in rows])
        joining = [row for row in rows if row not in self._rows]
        if joining:
            logits = self._join(joining)
            return [(row, *drawn(row, line)) for row, line in zip(joining, logits, strict=True)]
        logits = self._advance()
        return [(row, *drawn(row, line)) for row, line in zip(self._rows, logits, strict=True)]

    def _join(self, rows: list[_Row]) -> Tensor:
        length = max(len(row.token_ids) for row in rows)
        ids = [[0] * (length - len(row.token_ids)) + row.token_ids for row in rows]
        mask = [[0] * (length - len(row.token_ids)) + [1] * len(row.token_ids) for row in rows]
        tokens, mask_of_new = (torch.tensor(each, device=self._device) for each in (ids, mask))
        logits, layers = self._forward(tokens, mask_of_new, [])
        width = max(length, self._mask.shape[1])
        if self._rows:
            pairs = zip(self._layers, layers, strict=True)
            layers = [(_stacked(old[0], new[0]), _stacked(old[1], new[1])) for old, new in pairs]
            mask_of_new = torch.cat([_widened(each, width, 1) for each in (self._mask, mask_of_new)])
        self._layers, self._mask = layers, mask_of_new
        self._rows += rows
        return logits

    def _advance(self) -> Tensor:
        tokens = torch.tensor([[row.token_ids[-1]] for row in self._rows], device=self._device)
        self._mask = torch.cat([self._mask, torch.ones_like(tokens)], dim=1)
        logits, self._layers = self._forward(tokens, self._mask, self._layers)
        return logits

    def _forward(
        self, tokens: Tensor, mask: Tensor, layers: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        from transformers import DynamicCache  # noqa: PLC0415 - an extra

        cache = DynamicCache()
        for place, (keys, values) in enumerate(layers):
            cache.update(keys, values, place)
        places = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        output = self.model(
            input_ids=tokens, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True
        )
        filled = output.past_key_values.layers
        return output.logits[:, -1].float().cpu(), [(layer.keys, layer.values) for layer in filled]

    def _keep(self, places: list[int]) -> None:
        """Let the other rows leave, and the padding that no row needs any more."""
        if len(places) == len(self._rows):
            return
        self._rows = [self._rows[place] for place in places]
        index = torch.tensor(places, dtype=torch.long, device=self._device)
        mask = self._mask[index]
        start = int(mask.sum(0).ne(0).int().argmax()) if places else 0
        self._mask = mask[:, start:]
        self._layers = [(keys[index, :, start:], values[index, :, start:]) for keys, values in self._layers]


def drawn(row: _Row, logits: Tensor) -> tuple[int, float]:
    """Return a token, drawn as a request says, and its log-probability under the model as it is.

    Args:
        row: whose draw it is.
        logits: of the next token, (vocabulary,), float32.
    """
    sampling = row.request.sampling
    token = int(logits.argmax()) if not sampling.temperature else _draw(logits, sampling, row.dice.random())
    return token, float(logits.log_softmax(-1)[token])


def _draw(logits: Tensor, sampling: Sampling, chance: float) -> int:
    """Return the token at which the sum of probabilities, the likeliest first, exceeds `chance`."""
    scaled, order = (logits.double() / sampling.temperature).sort(descending=True, stable=True)
    sums = scaled[: sampling.top_k].softmax(-1).cumsum(-1)
    num_likely = int((sums < sampling.top_p).sum()) + 1
    sums = sums[:num_likely]
    place = int(torch.searchsorted(sums, chance * float(sums[-1]), right=True))
    return int(order[min(place, len(sums) - 1)])


def _widened(tensor: Tensor, width: int, dim: int) -> Tensor:
    """Pad a tensor on the left of a dimension."""
    shape = list(tensor.shape)
    shape[dim] = width - shape[dim]
    return torch.cat([tensor.new_zeros(shape), tensor], dim)


def _stacked(old: Tensor, new: Tensor) -> Tensor:
    """Put rows of keys or values, (rows, heads, length, size), below others, padded to one length."""
    width = max(old.shape[2], new.shape[2])
    return torch.cat([_widened(each, width, 2) for each in (old, new)])


def _loaded(source: Any, dtype: torch.dtype | None, seed: int) -> Any:
    """Return the model of a path or a config, or the model that it is."""
    from transformers import AutoModelForCausalLM, PretrainedConfig  # noqa: PLC0415 - an extra, slow to import

    if isinstance(source, PretrainedConfig):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            source = AutoModelForCausalLM.from_config(source)
    elif not isinstance(source, torch.nn.Module):
        source = AutoModelForCausalLM.from_pretrained(source)
    return source if dtype is None else source.to(dtype)


def _end_ids(model: Any) -> Sequence[int]:
    """Return the tokens with which a model ends its output."""
    ends = getattr(model.generation_config, "eos_token_id", None)
    ends = model.config.eos_token_id if ends is None else ends
    return () if ends is None else (ends,) if isinstance(ends, int) else ends


async def _done(handle: Any) -> None:
    """Wait until a handle is done, and take nothing."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    finish: Callable[[], None] = lambda: None if done.done() else done.set_result(None)  # noqa: E731

    def wake(_: object) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(finish)

    handle.settled.add_done_callback(wake)
    try:
        await done
    except asyncio.CancelledError:
        handle.cancel()
        raise
