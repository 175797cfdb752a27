"""An engine in one file: a server that speaks HTTP as OpenAI's does, such as vLLM's, SGLang's or TGI's.

The protocol asks for pauses in which requests are kept, and for the version of the weights that made each token. Such
servers offer neither, and need not: a request whose connection is closed is aborted there, and one whose prompt ends
with what was generated already goes on. So a pause closes all connections and its end asks for the rest; what one
connection has brought was made by the version that was in use when it began.
"""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp

from rlinf.scheduler import Worker
from rlinf.scheduler.errors import EngineDead, EngineError, SchedulerError, UpdateFailed
from rlinf_scheduler.engines import EngineLoad, Generation, GenerationRequest, Tokens


class OpenAIEngine:
    """A server at `url`, which `command` starts as a child of this process if it is given.

    `load_weights` is what servers have no common form for; this one is that of `vllm serve` with
    `--weight-transfer-config '{"backend": "rlinf"}'` and `VLLM_SERVER_DEV_MODE=1`, whose workers then join the job.
    """

    def __init__(
        self, url: str, model: str, *, command: Sequence[str] = (), start_timeout_s: float = 600.0
    ) -> None:
        self.version = 0
        self._url, self._model, self._command = url.rstrip("/"), model, list(command)
        self._start_timeout_s = start_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._running: dict[str, _Running] = {}
        self._is_paused = False
        self._paused_s, self._paused_at = 0.0, math.inf

    async def start(self) -> None:
        # Servers may close a connection behind an error that they have answered: none is used twice.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        if self._command:
            self._server = subprocess.Popen(self._command)
        until = time.monotonic() + self._start_timeout_s
        while not await self._answers():
            self._check_server()
            if time.monotonic() > until:
                await self.close()
                raise EngineError(f"{self._url} does not answer after {self._start_timeout_s:.0f} s")
            await asyncio.sleep(0.2)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        self._end("abort")
        await session.close()
        if self._server is not None:
            self._server.terminate()
            try:
                await asyncio.to_thread(self._server.wait, 20)
            except subprocess.TimeoutExpired:
                self._server.kill()

    async def health(self) -> None:
        self._check_server()
        if not await self._answers():
            raise EngineDead(f"the server at {self._url}", reason="it does not answer that it is well")

    async def load(self) -> EngineLoad:
        tokens = sum(each.num_tokens for each in self._running.values())
        paused_s = self._paused_s + max(time.monotonic() - self._paused_at, 0.0)
        return EngineLoad(len(self._running), 0, 0.0, tokens, paused_s)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Tokens]:
        name = request.request_id
        if self._session is None:
            raise EngineError("the engine is not started, or was closed")
        if name in self._running:
            raise EngineError(f"request '{name}' runs already")
        running = self._running[name] = _Running(len(request.prompt_ids) + len(request.output_ids))
        try:
            while True:
                await self._until_resumed(running)
                made: list[Tokens] = []
                async for tokens in self._ask(request, running):
                    made.append(tokens)
                    running.num_tokens += len(tokens.token_ids)
                    is_kept = tokens.finish_reason == "abort" and running.ending == "keep"
                    if not is_kept:
                        yield tokens
                if not is_kept:
                    return
                partial = Generation.of(request, made)
                if len(partial.token_ids) == request.sampling.max_tokens:
                    yield Tokens((), (), self.version, "length")
                    return
                request, running.ending = request.after(partial), ""
        finally:
            del self._running[name]

    async def _until_resumed(self, running: _Running) -> None:
        while self._is_paused and running.ending != "abort":
            running.changed.clear()
            await running.changed.wait()

    async def _ask(self, request: GenerationRequest, running: _Running) -> AsyncIterator[Tokens]:
        """Yield what one connection brings; the last says "abort" if it was closed."""
        session, version, sampling = self._session, self.version, request.sampling
        if session is None or running.ending:
            yield Tokens((), (), version, "abort")
            return
        body = {
            "model": self._model,
            "prompt": [*request.prompt_ids, *request.output_ids],
            "max_tokens": request.remaining,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or 0,
            "seed": sampling.seed,
            "stop_token_ids": sampling.stop_token_ids,
            "ignore_eos": sampling.ignore_eos,
            "logprobs": 0,
            "return_token_ids": True,
            "stream": True,
        }
        try:
            async with session.post(f"{self._url}/v1/completions", json=body) as response:
                if response.status != 200:
                    raise EngineError(f"{self._url} does not take it: {(await response.text())[:300]}")
                running.response = response
                while not running.ending and (line := await response.content.readline()):
                    if line.startswith(b"data: {"):
                        tokens = _tokens(json.loads(line[6:]), version)
                        yield tokens
                        if tokens.finish_reason:
                            return
                if not running.ending:
                    raise EngineDead(f"the server at {self._url}", reason="its answer ended in the middle")
        except aiohttp.ClientError as error:
            if not running.ending:
                self._check_server()
                raise EngineDead(
                    f"the server at {self._url}", reason=f"{type(error).__name__}: {error}"
                ) from error
        finally:
            running.response = None
        yield Tokens((), (), version, "abort")

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        self._end("abort", request_ids)

    def _end(self, ending: str, names: Sequence[str] | None = None) -> None:
        for name in list(self._running) if names is None else names:
            running = self._running.get(name)
            if running is not None:
                running.end(ending)

    async def pause(self, mode: str = "keep") -> None:
        self._is_paused = True
        self._paused_at = min(self._paused_at, time.monotonic())
        if mode != "finish":
            self._end(mode)
        while mode == "finish" and any(each.response for each in self._running.values()):
            await asyncio.sleep(0.002)

    async def resume(self) -> None:
        self._paused_s += max(time.monotonic() - self._paused_at, 0.0)
        self._paused_at, self._is_paused = math.inf, False
        for running in self._running.values():
            running.changed.set()

    async def sleep(self) -> None:
        await self.pause("abort")
        self._paused_at = math.inf
        await self._post("/sleep?level=1")

    async def wake(self) -> None:
        await self._post("/wake_up")
        await self.resume()

    async def update_weights(
        self, name: str, *, min_version: int | None = None, timeout_s: float | None = None
    ) -> int:
        try:
            # Until it is closed all of this version stays on this machine.
            held = await asyncio.to_thread(
                Worker().stream_weights, name, min_version=min_version, timeout_s=timeout_s
            )
        except SchedulerError as error:
            raise UpdateFailed(name, self.version, str(error)) from error
        was_paused = self._is_paused
        try:
            await self.pause()
            await self.load_weights(name, held.version)
            self.version = held.version
        except EngineError as error:
            raise UpdateFailed(name, self.version, str(error)) from error
        finally:
            held.close()
            if not was_paused:
                await self.resume()
        return self.version

    async def load_weights(self, name: str, version: int) -> None:
        """Let the server load a version that is on this machine; what fails must leave the one before."""
        await self._post("/pause?mode=abort")  # which also clears its caches
        try:
            await self._post("/start_weight_update")
            await self._post("/update_weights", {"update_info": {"name": name, "version": version}})
            await self._post("/finish_weight_update", {"weight_version": str(version)})
        finally:
            await self._post("/resume")

    async def _post(self, path: str, body: dict[str, Any] | None = None) -> None:
        if self._session is None:
            raise EngineError("the engine is not started, or was closed")
        try:
            async with self._session.post(self._url + path, json=body) as response:
                said = "" if response.status < 300 else (await response.text())[:500]
        except aiohttp.ClientError as error:
            raise EngineError(f"{path}: {type(error).__name__}: {error}") from error
        if said:
            raise EngineError(f"{path}: {said}")

    async def _answers(self) -> bool:
        if self._session is None:
            return False
        try:
            async with self._session.get(f"{self._url}/health") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    def _check_server(self) -> None:
        code = None if self._server is None else self._server.poll()
        if self._server is not None and code is not None:
            raise EngineDead(f"the server at {self._url}", self._server.pid, code)


class _Running:
    """A request: its connection, if it has one, and why that was closed, "keep" or "abort"."""

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.response: aiohttp.ClientResponse | None = None
        self.ending = ""
        self.changed = asyncio.Event()

    def end(self, ending: str) -> None:
        """Close the connection; an abort stands, whatever pause comes."""
        self.ending = "abort" if self.ending == "abort" else ending
        self.changed.set()
        if self.response is not None:
            self.response.close()


def _tokens(answer: dict[str, Any], version: int) -> Tokens:
    if "error" in answer:
        raise EngineError(str(answer["error"])[:300])
    (choice,) = answer["choices"]
    ids = tuple(choice.get("token_ids") or ())
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or ()
    return Tokens(ids, tuple(logprobs[-len(ids) :] if ids else ()), version, choice["finish_reason"])
