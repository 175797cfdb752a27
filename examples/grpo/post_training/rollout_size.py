"""How many processes write: the rollout grows and shrinks beside the training, as its settings say."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rlinf.scheduler import Channel, WorkerGroup
from rlinf.scheduler.worker import GroupResult
from rlinf_scheduler.engines import RolloutWorker


class RolloutSize:
    """Has the rollout grow and shrink, one after the other, on a thread of its own: nobody waits for it.

    Args:
        rollout: the group.
        requests: the channel whose requests its ranks answer.
        sizes: how many ranks it is to have from which step on.
        timeout_s: how long a resize may take, in seconds.
    """

    def __init__(
        self, rollout: WorkerGroup[RolloutWorker], requests: Channel, sizes: dict[int, int], timeout_s: float
    ) -> None:
        self._rollout, self._requests, self._sizes, self._timeout_s = rollout, requests, sizes, timeout_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollout-size")
        self._resizes: list[Future[GroupResult[Any] | None]] = []
        self._size: int | None = None  # as it was wanted last

    def at_step(self, step: int) -> None:
        """Begin the resize that is due after this step, or was before: a training may begin later.

        Raises:
            rlinf.scheduler.errors.SchedulerError: one before has failed.
        """
        for resize in self._resizes:
            if resize.done():
                resize.result()
        due = [since for since in self._sizes if since <= step]
        if due and self._size != (size := self._sizes[max(due)]):
            self._size = size
            self._resizes.append(self._thread.submit(self._resize, size))

    def serving(self) -> Iterator[GroupResult[Any]]:
        """The calls of ranks that have come, which end when they leave, or the requests do."""
        calls = (resize.result() for resize in self._resizes if resize.done())
        return (call for call in calls if call is not None and not call.done())

    def close(self) -> None:
        """Wait for the resizes that go on, and for the ranks that have come.

        Raises:
            rlinf.scheduler.errors.SchedulerError: one has failed.
        """
        self._thread.shutdown()
        for resize in self._resizes:
            if (call := resize.result()) is not None:
                call.wait(self._timeout_s)

    def _resize(self, size: int) -> GroupResult[Any] | None:
        more = size - self._rollout.world_size
        if more < 0:
            self._rollout.shrink(-more, drain_s=self._timeout_s)
        if more <= 0:
            return None
        ranks = self._rollout.grow(more, timeout_s=self._timeout_s)
        serving: GroupResult[Any] = self._rollout.execute_on(*ranks).retrying().serve(self._requests)
        return serving
