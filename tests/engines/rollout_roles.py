"""Workers of the tests of rollout services; in a module of their own, so that ranks import them by name."""

import asyncio
import gc
import os

import torch

from rlinf.scheduler import Worker
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.engines import RolloutWorker
from rlinf_scheduler.errors import EngineDead, EngineError, UpdateFailed
from tiny_engine import TinyEngine
from waits import wait_until


class ClosesOnce(TinyEngine):
    """Counts those that have started and are not closed; gets no weights."""

    num_open = 0

    async def start(self):
        ClosesOnce.num_open += 1

    async def close(self):
        ClosesOnce.num_open -= 1

    async def update_weights(self, name, **_):
        raise UpdateFailed(name, 0, "they never come")


class FailsAt(TinyEngine):
    """Cannot go on with a request after some tokens of its output."""

    async def generate(self, request):
        number = 0
        async for tokens in super().generate(request):
            yield tokens
            number += 1
            if number == 9:
                raise EngineError("it cannot go on")


class DiesAmongMany(TinyEngine):
    """Dies once, of its first request, when 16 others have come to its rank and none of them was looked at."""

    has_died = False

    async def generate(self, request):
        if not DiesAmongMany.has_died:
            DiesAmongMany.has_died = True
            Worker().connect_channel("dying").put("waits for 16 others")
            requests = Worker().connect_channel("requests")
            wait_until(lambda: requests.stats().num_leased == 17)
            wait_until(lambda: all(each.done() for each in gc.get_objects() if isinstance(each, AsyncHandle)))
            raise EngineDead("the counter", reason="it was told to die")
        async for tokens in super().generate(request):
            yield tokens


class AbortsLate(TinyEngine):
    """Aborts what runs when it is let."""

    async def abort(self, request_ids=None):
        while not TinyEngine.lets_go:
            await self._next_change()
        await super().abort(request_ids)


class StartsLate(TinyEngine):
    """Starts when it is let."""

    started, begun = asyncio.Event(), asyncio.Event()

    async def start(self):
        StartsLate.begun.set()
        await StartsLate.started.wait()
        await super().start()


class Rank(RolloutWorker):
    """A rank that says what it is at."""

    async def is_starting(self):
        await StartsLate.begun.wait()

    async def let_start(self):
        StartsLate.started.set()

    def num_open_engines(self):
        return ClosesOnce.num_open

    def pid(self):
        return os.getpid()

    def leave_garbage(self):
        """Collect no cycles of references any more."""
        gc.disable()

    async def tokens(self):
        return (await self.load()).tokens

    async def let_go(self):
        """Let requests of an engine with `hold_at` go on, and those of engines that come."""
        TinyEngine.lets_go = True


class Hurried(Rank):
    """Takes the time that it has to leave for a thousandth of it: no machine stands still for as long as the rest."""

    @property
    def draining_left_s(self):
        left_s = super().draining_left_s
        return None if left_s is None else left_s / 1000


class Actor(Worker):
    """Publishes steps: version 3 counts by 3."""

    def publish(self, *versions):
        for version in versions:
            self.publish_weights("policy", {"step": torch.tensor([version])}, version)

    async def hold_devices(self):
        self.let_go = asyncio.Event()
        lock = self.device_lock()
        await asyncio.to_thread(lock.__enter__)
        self.has_devices = True
        await self.let_go.wait()
        lock.__exit__(None, None, None)

    async def holds_devices(self):
        return getattr(self, "has_devices", False)

    async def let_devices_go(self):
        self.let_go.set()

    def publish_other(self, version):
        self.publish_weights("other", {"stride": torch.tensor([version])}, version)
