"""The control flow of a training: who may start what when. The data goes through the channels, not through here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import channels
from launch import Parts
from report import UpdateReport
from rlinf.scheduler.errors import ResultTimeout
from rlinf.scheduler.worker import GroupResult
from schedule import Schedule
from settings import Settings

# A worker that waits too long says so itself, and better; the driver only catches those that say nothing.
_GRACE_S = 10.0

_Call: TypeAlias = asyncio.Task[list[Any]]


class Training:
    """Collect and learn, until the policy is good enough.

    The actor's update number n learns from collection number n. Collection n may start as soon as the weights are
    at most `max_lag` versions behind n: with 0 the two alternate, with 1 a collection goes on beside an update.

    Args:
        parts: the groups and channels.
        schedule: what may go on at the same time.
        settings: when to stop.
        on_update: called with each update's report.
    """

    def __init__(
        self,
        parts: Parts,
        schedule: Schedule,
        settings: Settings,
        on_update: Callable[[UpdateReport], None] = lambda _: None,
    ) -> None:
        self._parts = parts
        self._max_lag = schedule.max_lag
        self._settings = settings
        self._on_update = on_update
        self._batch_weight = parts.env.world_size * settings.env.num_envs * settings.env.steps
        self._num_collections = 0
        self._running: set[_Call] = set()
        self.updates: list[UpdateReport] = []

    async def run(self) -> None:
        """Train; then wait until every worker has come to rest.

        Raises:
            rlinf.scheduler.errors.WorkerError: a worker failed; raised at once, whatever else is going on.
            rlinf.scheduler.errors.ResultTimeout: a worker says nothing any more.
        """
        try:
            # A rank that dies and comes back goes on serving.
            serving = self._start(self._parts.rollout.retrying().serve())
            await self._result("actor.publish()", self._start(self._parts.actor.publish()))
            await self._learn()
            while collections := self._running - {serving}:
                await self._result("env.collect()", collections.pop())
            self._parts.channels[channels.QUESTIONS].close()
            await self._result("rollout.serve()", serving)
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _learn(self) -> None:
        for version in range(self._settings.max_updates):
            while self._num_collections <= version + self._max_lag:
                oldest = max(0, self._num_collections - self._max_lag)
                self._start(self._parts.env.collect(self._settings.env.steps, about=oldest))
                self._num_collections += 1
            update = self._start(self._parts.actor.update(self._batch_weight))
            (report,) = await self._result("actor.update()", update)
            self.updates.append(report)
            self._on_update(report)
            if (
                report.num_judged == self._settings.window
                and report.mean_return >= self._settings.stop_return
            ):
                return

    def _start(self, call: GroupResult[Any]) -> _Call:
        async def finish() -> list[Any]:
            return await call

        task = asyncio.ensure_future(finish())
        self._running.add(task)
        return task

    async def _result(self, what: str, wanted: _Call) -> list[Any]:
        """What `wanted` returns, one result a rank; the failure of any other call that is running is raised too."""
        waits_s = self._settings.timeout_s + _GRACE_S
        while not wanted.done() or wanted in self._running:
            done, _ = await asyncio.wait(self._running, timeout=waits_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise ResultTimeout(what, waits_s)
            for call in done:
                call.result()
            self._running -= done
        return wanted.result()
