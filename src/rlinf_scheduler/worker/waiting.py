"""Waiting for several results at once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, Self, TypeVar

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.waits import RESULT, Wait, awaited
from rlinf_scheduler.errors import ResultTimeout
from rlinf_scheduler.keywords import explains_arguments
from rlinf_scheduler.observe.reasons import explaining
from rlinf_scheduler.session import current_or_none
from rlinf_scheduler.wording import counted
from rlinf_scheduler.worker.seconds import checked_deadline


class Waitable(Protocol):
    """What can be waited for beside others: a `GroupResult`, or the handle of `async_op=True`."""

    @property
    def settled(self) -> Promise[Any]:
        """Done when `wait` would not block."""

    def wait(self, timeout_s: float | None = None) -> Any:
        """The result."""

    def done(self) -> bool:
        """Whether `wait` would not block."""

    def cancel(self) -> Any:
        """Give it up."""

    def describe(self) -> str:
        """What is waited for."""

    def awaits(self) -> Wait:
        """The same as data."""


W = TypeVar("W", bound=Waitable)


@explains_arguments
def wait_all(
    results: Iterable[Waitable],
    fail_fast: bool = True,
    timeout_s: float | None = None,
    *,
    cancel: bool = False,
) -> list[Any]:
    """What each of `results` gives, in their order: of a `GroupResult` the list of its ranks' results.

        trajectories, loss = wait_all([rollout.generate(), actor.train()])

    Args:
        results: results of calls, and handles of `async_op=True`.
        fail_fast: raise as soon as any of them fails, whatever is still to come of the others; False: wait for all
            of them first.
        timeout_s: how long to wait, in seconds; None: as long as they take.
        cancel: when one fails, or the time is over, give the others up (see `GroupResult.cancel`).

    Raises:
        WorkerError: what the one that failed first failed with; so of any other error.
        ResultTimeout: some were not there at the deadline; the text says which. They go on, without `cancel`.
    """
    every = list(results)
    try:
        for result in as_completed(every, timeout_s):
            if fail_fast:
                result.wait()
        return [result.wait() for result in every]
    except BaseException:
        if cancel:
            for result in every:
                result.cancel()
        raise


@explains_arguments
def wait_first(results: Iterable[W], timeout_s: float | None = None) -> W:
    """The first of `results` that is done, well or not; the others go on.

    Raises:
        ResultTimeout: none was done at the deadline.
        ValueError: there are none.
    """
    for result in as_completed(results, timeout_s):
        return result
    message = "wait_first needs at least one result"
    raise ValueError(message)


def _awaits(local: dict[str, Any]) -> Wait | None:
    waits = [result.awaits() for result in local.get("pending", ())]
    if len(waits) < 2:
        return waits[0] if waits else None
    peers = tuple(dict.fromkeys(peer for wait in waits for peer in wait.peers))
    return Wait(
        RESULT, " and ".join(wait.operation for wait in waits), max(w.since_s for w in waits), peers=peers
    )


@explains_arguments
@awaited(_awaits)
def as_completed(results: Iterable[W], timeout_s: float | None = None) -> Iterator[W]:
    """Each of `results` as soon as it is done, well or not.

        for result in as_completed([rollout.generate(), reward.score()]):
            use(result.wait())

    Args:
        results: results of calls, and handles of `async_op=True`.
        timeout_s: how long all of them may take, in seconds; None: as long as they take.

    Raises:
        ResultTimeout: some were not done at the deadline; the text says which.
    """
    limit_s = checked_deadline(timeout_s)
    pending = list(results)
    started = time.monotonic()
    while pending:
        done = [result for result in pending if result.done()]
        pending = [result for result in pending if not any(result is other for other in done)]
        yield from done
        if done:
            continue
        left_s = None if limit_s is None else max(0.0, started + limit_s - time.monotonic())
        with explaining(current_or_none(), limit_s, started):
            with FirstOf([result.settled for result in pending]) as first:
                is_done = first.wait(left_s)
            if not is_done:
                missing = [result.describe() for result in pending]
                raise ResultTimeout(counted(len(pending), "result"), time.monotonic() - started, missing)


class FirstOf(Promise[Any]):
    """Complete once any of several promises is, by the process that completed that one.

    Args:
        promises: those; a `with` block listens to them.
    """

    __slots__ = ("_promises",)

    def __init__(self, promises: Sequence[Promise[Any]]) -> None:
        super().__init__()
        self._promises = promises

    def __enter__(self) -> Self:
        for promise in self._promises:
            promise.add_done_callback(self._wake)
        return self

    def __exit__(self, *_: object) -> None:
        for promise in self._promises:
            promise.remove_done_callback(self._wake)

    def _wake(self, promise: Promise[Any]) -> None:
        if not self.done():
            self.by = promise.by
        self.set_result(promise)
