"""An engine that counts: a whole implementation of `RolloutEngine` in a hundred lines, on torch alone.

Its model is one weight, `step`. After token `t` it says `(t + step) % VOCABULARY`, so whoever publishes `step` equal to
the version sees in the tokens themselves which weights made each.
"""

import asyncio
import math

import torch

from rlinf.scheduler import Worker
from rlinf_scheduler.engines import EngineLoad, Tokens
from rlinf_scheduler.errors import EngineDead, EngineError, SchedulerError, UpdateFailed

VOCABULARY = 1 << 20
KILLER = VOCABULARY - 1


class TinyEngine:
    """Says a token of each of its requests every `token_s`; the prompt KILLER kills it.

    Args:
        hold_at: after so many tokens for each version that it has had a request stands still, until `lets_go`.

    Attributes:
        lets_go: of all engines of this process, whether no request stands still any more.
    """

    lets_go = False

    def __init__(self, token_s=0.0, step=0, hold_at=math.inf):
        self.version = 0
        self.hold_at = hold_at
        self.weights = {"step": torch.tensor([step])}
        self.token_s = token_s
        self.paused_s = 0.0
        self.most_running = 0
        self._running = {}
        self._going = asyncio.Event()
        self._aborted = set()
        self._dead = None
        self._pauses = 0

    async def start(self):
        self._going.set()

    async def close(self):
        await self.abort()

    async def health(self):
        if self._dead is not None:
            raise self._dead

    async def load(self):
        tokens = sum(self._running.values())
        return EngineLoad(
            running=len(self._running), waiting=0, cache_use=0.0, tokens=tokens, paused_s=self.paused_s
        )

    async def generate(self, request):
        name = request.request_id
        if name in self._running:
            raise EngineError(f"request '{name}' runs already")
        request.check_vocabulary(VOCABULARY)
        last, left = (request.prompt_ids + request.output_ids)[-1], request.remaining
        made = len(request.output_ids)
        self._running[name] = len(request.prompt_ids + request.output_ids)
        self.most_running = max(self.most_running, len(self._running))
        try:
            while left:
                await asyncio.sleep(self.token_s)
                while self._stands(made) and name not in self._aborted and self._dead is None:
                    await self._next_change()
                if self._dead is not None or request.prompt_ids == (KILLER,):
                    self._dead = self._dead or EngineDead("the counter", reason="it was told to die")
                    raise self._dead
                if name in self._aborted:
                    yield Tokens((), (), self.version, "abort")
                    return
                last = (last + int(self.weights["step"])) % VOCABULARY
                left -= 1
                made += 1
                self._running[name] += 1
                stops = last in request.sampling.stop_token_ids
                reason = "stop" if stops else "length" if not left else None
                yield Tokens((last,), (0.0,), self.version, reason)
                if stops:
                    return
        finally:
            del self._running[name]
            self._aborted.discard(name)

    def _stands(self, made):
        is_held = made >= self.hold_at * max(1, self.version) and not TinyEngine.lets_go
        return is_held or not self._going.is_set()

    async def _next_change(self):
        await asyncio.sleep(0.001)  # what a real engine has a scheduler for

    async def abort(self, request_ids=None):
        wanted = self._running if request_ids is None else set(request_ids) & set(self._running)
        self._aborted.update(wanted)

    async def pause(self, mode="keep"):
        if mode == "finish":
            while self._running:
                await self._next_change()
        self._going.clear()
        self._paused_at = asyncio.get_running_loop().time()
        if mode == "abort":
            await self.abort()
            while self._aborted:
                await self._next_change()

    async def resume(self):
        if not self._going.is_set():
            self.paused_s += asyncio.get_running_loop().time() - self._paused_at
            self._going.set()

    async def sleep(self):
        await self.pause("abort")

    async def wake(self):
        await self.resume()

    async def update_weights(self, name, *, min_version=None, timeout_s=None):
        was_going = self._going.is_set()
        options = {} if timeout_s is None else {"timeout_s": timeout_s}
        newer = Worker().fetch_weights(name, self.weights, min_version, async_op=True, **options)
        try:
            while not newer.done():
                await self._next_change()
            await self.pause()
            self.version = newer.wait()
        except SchedulerError as error:
            raise UpdateFailed(name, self.version, str(error)) from error
        finally:
            if was_going:
                await self.resume()
        return self.version
