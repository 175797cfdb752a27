"""The component `rollout` on an engine (vLLM or transformers): as many answers at a time as it has slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

import numpy as np
import torch

from post_training import channels
from post_training.component import AWAY_S
from post_training.engine import make_engine
from post_training.leased import Taken
from post_training.model import WEIGHTS
from post_training.records import Answer, Request
from post_training.report import READING
from post_training.settings import Settings
from post_training.task import SortingTask
from rlinf.scheduler import Worker
from rlinf.scheduler.errors import (
    BatchTimeout,
    ChannelClosed,
    EngineDead,
    PeerDied,
    UpdateFailed,
    WeightsReplaced,
)
from rlinf_scheduler.engines import Generation, GenerationRequest, RolloutEngine, Sampling, collect

# So often it is looked for requests while answers are under way and slots are free.
_LOOK_S = 0.02


class EngineRolloutWorker(Worker):
    """Begins a requested answer whenever a slot is free, and hands each over when it is finished.

    Args:
        settings: of the training.
        sleeps: whether its devices are others' between two turns, and the engine gives its memory back for them.
    """

    def __init__(self, settings: Settings, *, sleeps: bool) -> None:
        super().__init__()
        self.settings = settings
        self._sleeps = sleeps
        self._task = SortingTask(settings.task, settings.seed)
        self._requests = self.connect_channel(channels.REQUESTS, timeout_s=settings.timeout_s)
        self._answers = self.connect_channel(channels.ANSWERS, timeout_s=settings.timeout_s)
        self._engine: RolloutEngine | None = None

    async def serve(self) -> None:
        """Write until no more requests come and the last answer is handed over.

        It may be begun again by another process: what this one had not handed over comes to others.
        """
        try:
            with self._answers.producer():
                while taken := await self._take(self.settings.rollout.num_slots, wait=True):
                    try:
                        async with self._turn() as engine:
                            await self._write(engine, taken)
                    except (
                        EngineDead
                    ) as error:  # what it had in hand goes back, and comes to whoever is free first
                        self.log_warning(f"the engine is started anew: {error}")
                        await self._close()
        finally:
            await self._close()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[RolloutEngine]:
        """Have the devices, and the engine awake on them."""
        lock = self.device_lock(self.settings.timeout_s)
        await asyncio.to_thread(lock.__enter__)
        try:
            if self._engine is None:
                with self.timer("start engine"), TemporaryDirectory(prefix="grpo-model-") as folder:
                    device = torch.device("cpu") if self.settings.device == "cpu" else self.torch_device
                    self._engine = engine = make_engine(self.settings, self.rank, device, folder)
                    await engine.start()
            elif self._sleeps:
                with self.timer("wake"):
                    await self._engine.wake()
            yield self._engine
            if self._sleeps:
                with self.timer("sleep"):
                    await self._engine.sleep()
        finally:
            lock.__exit__(None, None, None)

    async def _write(self, engine: RolloutEngine, taken: Sequence[Taken]) -> None:
        """Write answers until none is under way and no request is there."""
        writing: set[asyncio.Task[None]] = set()
        try:
            while taken or writing:
                await self._update(engine, taken)
                writing |= {asyncio.create_task(self._answer(engine, each)) for each in taken}
                done, writing = await asyncio.wait(
                    writing, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
                taken = await self._take(self.settings.rollout.num_slots - len(writing), wait=False)
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)

    async def _update(self, engine: RolloutEngine, taken: Sequence[Taken]) -> None:
        """Have weights as new as the requests may ask for; what is under way waits, and goes on with them."""
        wanted = max((each.request.slot.version for each in taken), default=0)
        if not taken or engine.version >= max(wanted, 1):
            return
        least: int | None = wanted
        with self.timer(READING):
            while True:
                try:
                    await engine.update_weights(WEIGHTS, min_version=least, timeout_s=self.settings.timeout_s)
                except UpdateFailed as error:  # while the actor comes back from its checkpoint
                    if isinstance(error.__cause__, WeightsReplaced):
                        least = None  # whatever it has now
                    elif isinstance(error.__cause__, PeerDied):
                        await asyncio.sleep(AWAY_S)
                    else:
                        raise
                else:
                    if engine.version >= wanted:
                        return
                    least = wanted

    async def _take(self, num_free: int, *, wait: bool) -> Sequence[Taken]:
        """As many requests as there are, and slots for them; none at the end, or if it is not to wait for one."""
        if not num_free:
            return ()
        timeout_s = self.settings.timeout_s if wait else 0.0
        leasing = self._requests.lease(max_items=num_free, timeout_s=timeout_s)
        try:
            # No `async with` block: its requests are done with one by one, in any order.
            lease = await leasing.__aenter__()
        except BatchTimeout:
            if wait:
                raise
            return ()
        except ChannelClosed:
            return ()
        return [Taken(leasing, lease, place, request) for place, request in enumerate(lease.items)]

    async def _answer(self, engine: RolloutEngine, taken: Taken) -> None:
        answer = _answer(taken.request, await collect(engine, self._asked(taken.request)))
        await self._answers.put(
            answer,
            weight=len(answer.tokens),
            group=answer.prompt,
            version=answer.version,
            sources=taken.sources,
            async_op=True,
            timeout_s=self.settings.timeout_s,
        )
        await taken.acknowledge_async()

    def _asked(self, request: Request) -> GenerationRequest:
        return GenerationRequest(
            f"{request.prompt}/{request.sample}",
            (*self._task.prompt(request.prompt), self._task.start),
            Sampling(max_tokens=self._task.max_answer, stop_token_ids=(self._task.end,)),
        )

    async def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()


def _answer(request: Request, generation: Generation) -> Answer:
    return Answer(
        request.prompt,
        request.sample,
        np.array(generation.token_ids, np.int64),
        np.array(generation.logprobs, np.float32),
        min(generation.versions),
        request.slot,
    )
