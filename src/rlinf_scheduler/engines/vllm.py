"""vLLM behind the protocol of engines: its asynchronous engine, whose workers take weights from the job themselves."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Any

import vllm
from vllm import SamplingParams, TokensPrompt
from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.loggers import StatLoggerBase

from rlinf.scheduler import Worker
from rlinf_scheduler.engines.processes import EngineProcesses
from rlinf_scheduler.engines.protocol import EngineLoad, GenerationRequest, PauseMode, Tokens
from rlinf_scheduler.engines.vllm_plugin import BACKEND, FOLDER_VARIABLE
from rlinf_scheduler.errors import EngineDead, EngineError, SchedulerError, UpdateFailed

OLDEST = "0.32"
# What vLLM calls weights that nobody has given a version.
_FIRST_VERSION = "default"
_MODES = {"keep": "keep", "finish": "wait", "abort": "abort"}
_JOIN_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 10.0
_SAYS_WITHIN_S = 1.0
_HOLDING_WORKER = "rlinf_scheduler.engines.vllm_weights.HoldingWorker"


class VllmEngine:
    """vLLM in this process's job: `VllmEngine("path/of/model", tensor_parallel_size=2, dtype="bfloat16")`.

    It is a `RolloutEngine`. In a rank each of vLLM's workers joins the job below it, as `rollout:3/0`, and takes
    weights itself. Outside of a job it generates, and its weights stay what they were.

    Attributes:
        version: of the weights in use; 0 before the first update.
    """

    def __init__(self, model: str, **engine_args: Any) -> None:
        """Note what vLLM is started with.

        Args:
            model: a folder or a name, as of vLLM.
            **engine_args: those of vLLM's `AsyncEngineArgs`.

        Raises:
            EngineError: vLLM is too old; or one of the arguments is this class's own.
        """
        _check_vllm()
        if own := {"weight_transfer_config", "worker_extension_cls"} & engine_args.keys():
            raise EngineError(
                f"{', '.join(sorted(own))}: VllmEngine sets this itself, to take weights from the job"
            )
        self.version = 0
        self._args = {
            "model": model,
            "disable_log_stats": True,
            **engine_args,
            "weight_transfer_config": {"backend": BACKEND},
            "worker_extension_cls": _HOLDING_WORKER,
        }
        self._llm: AsyncLLM | None = None
        self._processes: EngineProcesses | None = None
        self._dead: EngineDead | None = None
        self._is_asleep = False
        self._paused_at: float | None = None
        self._paused_s = 0.0
        self._updating = asyncio.Lock()
        # How many tokens each request has.
        self._requests: dict[str, int] = {}
        self._latest: list[Any] = [None]

    async def start(self) -> None:
        """Start vLLM's processes, and let its workers join the job."""
        if self._llm is not None:
            raise EngineError("vLLM is started already")
        self._processes = EngineProcesses("EngineCore")
        try:
            self._llm = await asyncio.to_thread(self._made, self._processes.folder)
            self._processes.note()
            if "RLINF_PARENT" in os.environ:
                await self._call_workers("rlinf_join", _JOIN_TIMEOUT_S)
        except BaseException as error:
            if self._llm is None:
                self._processes.note()
            is_its_own = isinstance(error, Exception) and not isinstance(error, SchedulerError)
            said = await self._processes.said(_SAYS_WITHIN_S) if is_its_own else ""
            await self.close()
            if is_its_own:
                why = f"{type(error).__name__}: {error}" + (f" ({said})" if said else "")
                raise EngineError(f"vLLM did not start: {why}") from error
            raise

    def _made(self, folder: str) -> AsyncLLM:
        latest = self._latest

        def stats(_config: Any, _index: int = 0) -> StatLoggerBase:
            return _LatestStats(latest)

        # A fork would have this process's threads and sockets, without the threads.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        before = os.environ.get(FOLDER_VARIABLE)
        os.environ[FOLDER_VARIABLE] = folder
        try:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**self._args), stat_loggers=[stats])
        finally:
            del os.environ[FOLDER_VARIABLE]
            if before is not None:
                os.environ[FOLDER_VARIABLE] = before

    async def close(self) -> None:
        """End vLLM and its processes."""
        llm, self._llm = self._llm, None
        processes, self._processes = self._processes, None
        if processes is None:
            return
        timeout_s = 0.0
        if llm is not None:
            if not llm.errored:
                await llm.abort(list(self._requests))
                timeout_s = _END_TIMEOUT_S
            if llm.output_handler is not None:
                llm.output_handler.cancel()  # which would take this end for a death
            await asyncio.to_thread(llm.shutdown)
        await processes.end(timeout_s)

    async def health(self) -> None:
        """Return if vLLM can generate; raise `EngineDead` if it cannot."""
        llm = self._running()
        if llm.errored or (self._processes and self._processes.first_ended):
            raise await self._death()

    async def load(self) -> EngineLoad:
        """Return how much vLLM has to do, as of its last step."""
        self._running()
        stats, present = self._latest[0], len(self._requests)
        waiting = min(stats.num_waiting_reqs, present) if stats else 0
        return EngineLoad(
            running=present - waiting,
            waiting=waiting,
            cache_use=stats.kv_cache_usage if stats and present else 0.0,
            tokens=sum(self._requests.values()),
            paused_s=self._paused_s + (time.monotonic() - self._paused_at if self._paused_at else 0.0),
        )

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Tokens]:
        """Yield the tokens of a request as they are made."""
        llm, name = self._running(), request.request_id
        if name in self._requests:
            raise EngineError(f"request '{name}' runs already")
        request.check_vocabulary(llm.model_config.get_vocab_size())
        prompt = TokensPrompt(prompt_token_ids=[*request.prompt_ids, *request.output_ids])
        begun = self._requests[name] = len(prompt["prompt_token_ids"])
        outputs = llm.generate(prompt, _sampling_params(request), name)
        try:
            made = 0
            async for output in outputs:
                completion = output.outputs[0]
                if completion.finish_reason == "error":
                    raise EngineError(f"vLLM failed at request '{name}'")
                if completion.finish_reason == "abort" and self._dead is not None:
                    raise self._dead  # it is ended because it cannot go on
                for tokens in _cut(completion, _version_starts(llm, output), made):
                    yield tokens
                made += len(completion.token_ids)
                self._requests[name] = begun + made
        except EngineDeadError as error:
            raise await self._death() from error
        except (VLLMClientError, EngineGenerateError, ValueError) as error:
            raise EngineError(f"vLLM does not take request '{name}': {error}") from error
        finally:
            del self._requests[name]
            await outputs.aclose()

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """End requests, None for all: their streams end with "abort"."""
        ids = list(self._requests) if request_ids is None else list(request_ids)
        await self._alive(self._running().abort(ids))

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Generate no token until `resume`."""
        await self._alive(self._running().sleep(0, _MODES[mode]))
        self._paused_at = self._paused_at or time.monotonic()

    async def resume(self) -> None:
        """Generate again after a pause."""
        await self._alive(self._running().wake_up(["scheduling"]))
        self._end_pause()

    async def sleep(self) -> None:
        """Give memory back, as vLLM's first level does; what runs ends with "abort".

        vLLM gives back what it was started with `enable_sleep_mode=True` for, on accelerators; elsewhere it pauses.
        """
        await self._alive(self._running().sleep(1, "abort"))
        self._is_asleep = True
        self._end_pause()

    async def wake(self) -> None:
        """Take memory again, and generate."""
        await self._alive(self._running().wake_up())
        self._is_asleep = False

    def _end_pause(self) -> None:
        if self._paused_at is not None:
            self._paused_s += time.monotonic() - self._paused_at
        self._paused_at = None

    async def update_weights(
        self, name: str, *, min_version: int | None = None, timeout_s: float | None = None
    ) -> int:
        """Take the newest version of published weights; each of vLLM's workers does so itself.

        All of it is on this machine, and is known to fit, before requests wait. Those that run go on with caches that
        are computed anew.
        """
        async with self._updating:
            began = time.monotonic()
            stream = await self._arrived(name, min_version, timeout_s)
            left_s = None if timeout_s is None else max(began + timeout_s - time.monotonic(), 0.0)
            try:
                await self._hold(name, stream.version, left_s)
                await _uncancelled(self._replace(name, stream.version))
            finally:
                stream.close()
        return self.version

    async def _arrived(self, name: str, min_version: int | None, timeout_s: float | None) -> Any:
        """Return a stream of a version that has come to this machine; nothing of it is read here."""
        self._running()
        if self._is_asleep:
            raise UpdateFailed(
                name, self.version, "vLLM sleeps, and its weights have no memory: wake it first"
            )
        try:
            return await asyncio.to_thread(
                Worker().stream_weights, name, min_version=min_version, timeout_s=timeout_s
            )
        except SchedulerError as error:
            raise UpdateFailed(name, self.version, str(error)) from error

    async def _hold(self, name: str, version: int, timeout_s: float | None) -> None:
        """Let every worker hold a version, or none."""
        try:
            await self._call_workers("rlinf_hold", name, version, timeout_s)
        except EngineDead:
            raise
        except EngineError as error:
            await self._call_workers("rlinf_drop")
            raise UpdateFailed(name, self.version, str(error)) from error

    async def _replace(self, name: str, version: int) -> None:
        """Let workers load what they hold, while no request runs."""
        llm = self._running()
        is_paused = await self._alive(llm.is_paused())
        if not is_paused:
            await self.pause()
        try:
            await llm.start_weight_update()
            await llm.update_weights(WeightTransferUpdateRequest({"name": name, "version": version}))
            await llm.reset_prefix_cache(reset_running_requests=True)
            await llm.finish_weight_update(str(version))
        except EngineDeadError as error:
            raise await self._death() from error
        except Exception as error:
            # It may have some weights of each version, and is not to generate.
            self._dead = EngineDead(
                "vLLM", reason=f"weights '{name}' of version {version} are loaded in part: {error}"
            )
            await self.close()
            raise self._dead from error
        self.version = version
        if not is_paused:
            await self.resume()

    async def _call_workers(self, method: str, *args: Any) -> None:
        """Call a method of `HoldingWorker` in all workers; raise what went wrong in one of them."""
        wrong = await self._alive(self._running().collective_rpc(method, args=args))
        if any(wrong):
            raise EngineError("; ".join(f"worker {n}: {each}" for n, each in enumerate(wrong) if each))

    async def _alive(self, call: Awaitable[Any]) -> Any:
        """Await what vLLM answers, and say what has died if it does not."""
        try:
            return await call
        except EngineDeadError as error:
            raise await self._death() from error
        except Exception as error:
            raise EngineError(f"vLLM: {error}") from error

    def _running(self) -> AsyncLLM:
        if self._dead is not None:
            raise self._dead
        if self._llm is None:
            raise EngineError("vLLM is not started, or was closed")
        return self._llm

    async def _death(self) -> EngineDead:
        """Return the error that says which process ended first, and how."""
        if self._dead is None:
            processes = self._processes
            process = await processes.first(_END_TIMEOUT_S) if processes else None
            if processes and process:
                code = process.exit_code
                said = await processes.said(_SAYS_WITHIN_S) if code is None or code >= 0 else ""
                self._dead = EngineDead(f"{process.name} of vLLM", process.pid, code, said)
            else:
                self._dead = EngineDead("vLLM", reason="it says so itself; its log may say why")
        return self._dead


class _LatestStats(StatLoggerBase):
    """What vLLM's scheduler said of itself last."""

    def __init__(self, latest: list[Any]) -> None:
        self._latest = latest

    def record(self, scheduler_stats: Any = None, *_args: Any, **_kwargs: Any) -> None:
        """Keep it."""
        if scheduler_stats is not None:
            self._latest[0] = scheduler_stats

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


async def _uncancelled(call: Coroutine[Any, Any, None]) -> None:
    """Await a coroutine to its end, also if the waiter is cancelled meanwhile."""
    task = asyncio.ensure_future(call)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _check_vllm() -> None:
    """Raise unless this vLLM can do what is needed."""
    found = tuple(int(part) for part in vllm.__version__.split(".")[:2])
    if found < tuple(map(int, OLDEST.split("."))):
        raise EngineError(
            f"vLLM {vllm.__version__} is too old: its answers do not say which weights made a token; {OLDEST} does"
        )
    if BACKEND not in {each.name for each in entry_points(group="vllm.general_plugins")}:
        raise EngineError(
            f"vLLM does not find the plug-in '{BACKEND}' (entry point vllm.general_plugins): "
            "rlinf-scheduler has to be installed, not only to lie on PYTHONPATH"
        )


def _sampling_params(request: GenerationRequest) -> SamplingParams:
    sampling = request.sampling
    return SamplingParams(
        max_tokens=request.remaining,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k or 0,
        seed=sampling.seed,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        logprobs=0,  # of the token that was drawn, alone
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def _version_starts(llm: AsyncLLM, output: RequestOutput) -> Sequence[tuple[str, int]]:
    """Return the labels of weights that made a request's tokens, each with the first token that it made.

    vLLM notes them as it takes tokens from its engine, where they cannot be taken for those of another version, and
    says them with the last output. Before that they are read where it notes them: outputs are merged until read.
    """
    if output.finished:
        return [(each.version, each.start) for each in output.outputs[0].weight_versions or ()]
    processor = llm.output_processor
    (number,) = processor.external_req_ids[output.request_id]
    starts: Sequence[tuple[str, int]] = processor.request_states[number].weight_version_starts
    return starts


def _cut(completion: CompletionOutput, starts: Sequence[tuple[str, int]], made: int) -> Iterator[Tokens]:
    """Yield what an output adds to the first tokens, a piece for each version."""
    ids, reason = tuple(completion.token_ids), completion.finish_reason
    logprobs = tuple(each[token].logprob for each, token in zip(completion.logprobs or (), ids, strict=True))
    labels = [label for label, _ in starts] or [_FIRST_VERSION]
    ends = [max(start - made, 0) for _, start in starts[1:]] + [len(ids)]
    begin = 0
    for label, end in zip(labels, ends, strict=True):
        is_last = end == len(ids)
        if begin < end or (is_last and reason):
            version = 0 if label == _FIRST_VERSION else int(label)
            yield Tokens(ids[begin:end], logprobs[begin:end], version, reason if is_last else None)
        begin = end
