"""The protocol of engines of rollouts: requests, answers, and the calls that an engine takes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Literal, Protocol, runtime_checkable

from rlinf_scheduler.errors import EngineError

FinishReason = Literal["stop", "length", "abort"]
PauseMode = Literal["keep", "finish", "abort"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of a request are drawn.

    Attributes:
        max_tokens: how many tokens the output has at most, those that a request brings along included.
        temperature: 0 takes the most likely token.
        top_k: how many of the most likely tokens are drawn from; None: all.
        stop_token_ids: tokens that end the output, as the model's own end does; the last token is then one of these.
        ignore_eos: the model's own end does not end the output.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens}: an output has at least one token")
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} is negative; 0 takes the most likely token")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} is not above 0 and at most 1")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: at least one token is drawn from; None for all")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt, how its output is drawn, and the tokens that the output has already.

    Attributes:
        request_id: its name in the engine; one that runs has it for itself.
        output_ids: the beginning of the output, made before: the engine goes on after it.
        output_logprobs: log-probabilities of these, one a token.
        output_versions: versions of the weights that made these, one a token.
        min_version: of the weights that make the others; a `RolloutWorker` sees to it, an engine takes what it has.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    output_ids: tuple[int, ...] = ()
    output_logprobs: tuple[float, ...] = ()
    output_versions: tuple[int, ...] = ()
    min_version: int = 0

    def __post_init__(self) -> None:
        self._set_ids("prompt_ids", self.prompt_ids)
        self._set_ids("output_ids", self.output_ids)
        if not self.prompt_ids:
            raise ValueError(f"request '{self.request_id}' has no prompt")
        if not len(self.output_ids) == len(self.output_logprobs) == len(self.output_versions):
            raise ValueError(
                f"request '{self.request_id}' brings {len(self.output_ids)} tokens, {len(self.output_logprobs)} "
                f"log-probabilities and {len(self.output_versions)} versions: there is one of each a token"
            )
        if self.remaining < 1:
            raise ValueError(
                f"request '{self.request_id}' brings {len(self.output_ids)} tokens, "
                f"and max_tokens={self.sampling.max_tokens} leaves none to generate"
            )

    def _set_ids(self, field: str, ids: Sequence[int]) -> None:
        """Make integers of any kind, such as numpy's, Python's own; raise if one is no token id."""
        if isinstance(ids, tuple) and set(map(type, ids)) <= {int} and min(ids, default=0) >= 0:
            return
        where = f"request '{self.request_id}': {field}"
        for place, token in enumerate(ids):
            if isinstance(token, bool) or not hasattr(token, "__index__"):
                raise TypeError(
                    f"{where}[{place}] is {token!r}, and a token id is an integer; text is tokenised before"
                )
            if token < 0:
                raise ValueError(f"{where}[{place}] is {token}, and a token id is 0 or more")
        object.__setattr__(self, field, tuple(map(index, ids)))

    def check_vocabulary(self, size: int) -> None:
        """Raise `EngineError` if a token is not one of a vocabulary of this size."""
        for field in ("prompt_ids", "output_ids"):
            ids: tuple[int, ...] = getattr(self, field)
            if max(ids, default=0) >= size:
                place = next(place for place, token in enumerate(ids) if token >= size)
                what = f"request '{self.request_id}': {field}[{place}] is {ids[place]}"
                raise EngineError(f"{what}, and the model's vocabulary has the ids 0 to {size - 1}")

    @property
    def remaining(self) -> int:
        """How many tokens are to be generated at most."""
        return self.sampling.max_tokens - len(self.output_ids)

    def after(self, partial: Generation) -> GenerationRequest:
        """Return the request that goes on where an aborted generation ended."""
        ids, logprobs, versions = partial.token_ids, partial.logprobs, partial.versions
        return replace(self, output_ids=ids, output_logprobs=logprobs, output_versions=versions)


@dataclass(frozen=True, slots=True)
class Tokens:
    """An item of a stream: the tokens that were made since the one before.

    Attributes:
        logprobs: of the tokens that were drawn, natural logarithms, one a token, before temperature, top_p and top_k.
        version: of the weights that made all of these.
        finish_reason: None: more will come; "stop": a token ended it; "length": it has max_tokens, or the model's
            length; "abort": it was aborted, and can go on (`GenerationRequest.after`).
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: int
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """The output of a request: tokens, with log-probability and version of each."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason

    @classmethod
    def of(cls, request: GenerationRequest, stream: Sequence[Tokens]) -> Generation:
        """Return the output of a request from all that its stream has yielded.

        Raises:
            ValueError: the last of these says that more will come.
        """
        reason = stream[-1].finish_reason if stream else None
        if reason is None:
            raise ValueError(f"the stream of request '{request.request_id}' has not ended")
        return cls(
            token_ids=request.output_ids + tuple(token for each in stream for token in each.token_ids),
            logprobs=request.output_logprobs + tuple(value for each in stream for value in each.logprobs),
            versions=request.output_versions + tuple(each.version for each in stream for _ in each.token_ids),
            finish_reason=reason,
        )


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How much an engine has to do.

    Attributes:
        running: requests that tokens are generated for.
        waiting: requests for which there is no room yet.
        cache_use: the part of its cache of keys and values that is in use, 0 to 1.
        tokens: prompts and outputs so far of all its requests, together.
        paused_s: how long it has stood still since its start, in seconds, in pauses and updates; sleep does not count.
    """

    running: int
    waiting: int
    cache_use: float
    tokens: int
    paused_s: float = 0.0


@runtime_checkable
class RolloutEngine(Protocol):
    """An engine that generates. It is driven on one event loop, and runs many requests at once.

    Attributes:
        version: of the weights in use; 0 before the first update.
    """

    version: int

    async def start(self) -> None:
        """Load the model and start its processes; nothing else is called before."""

    async def close(self) -> None:
        """End it: what runs ends with "abort", and no process and no memory of it is left. May be called again."""

    async def health(self) -> None:
        """Return if it can generate.

        Raises:
            EngineDead: one of its processes is gone, or it cannot go on; it says which, and why.
        """

    async def load(self) -> EngineLoad:
        """Return how much it has to do."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[Tokens]:
        """Yield the tokens of a request as they are made; the last of these has a finish reason.

        Who leaves the iteration (`aclose`, or a cancelled task) aborts the request.

        Raises:
            EngineError: the engine cannot take the request, such as one that is too long for the model, or has tokens
                that its vocabulary has not (`GenerationRequest.check_vocabulary`). It goes on with others.
            EngineDead: the engine died; what was yielded until then is right.
        """

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """End requests, None for all: their streams end with "abort". One that is not there is no error."""

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Generate no token until `resume`; requests that come wait.

        Args:
            mode: what becomes of requests that run: "keep": they wait and go on; "finish": they are finished first;
                "abort": their streams end with "abort".
        """

    async def resume(self) -> None:
        """Generate again after a pause."""

    async def sleep(self) -> None:
        """Give memory of weights and caches back; what runs ends with "abort", requests that come wait."""

    async def wake(self) -> None:
        """Take memory again, with the weights of `version`, and generate."""

    async def update_weights(
        self, name: str, *, min_version: int | None = None, timeout_s: float | None = None
    ) -> int:
        """Take the newest version of weights that were published under a name, and return its number.

        Requests that run wait meanwhile, and go on with the new weights, unless the engine was paused before.

        Args:
            name: what `publish_weights` of the trainer calls them.
            min_version: wait until there is this one or a newer one.
            timeout_s: how long the update may take, that wait included.

        Raises:
            UpdateFailed: the version before is in use, whole.
            EngineDead: the engine cannot go on, because the failure left it without whole weights.
        """


async def collect(engine: RolloutEngine, request: GenerationRequest) -> Generation:
    """Return the whole output of a request."""
    return Generation.of(request, [tokens async for tokens in engine.generate(request)])
