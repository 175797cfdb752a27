"""`GroupResult`: the results of one call on the ranks of a group; and waiting for several at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar, overload

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.checks import checked_deadline, explains_arguments, explains_calls
from rlinf_scheduler.comm import waits
from rlinf_scheduler.comm.failure import Failure, read_error
from rlinf_scheduler.comm.forking import forked_error, generation
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.waits import RESULT, Wait, awaited, keeps_wait
from rlinf_scheduler.errors import CallCancelled, PeerDied, ResultTimeout, WorkerDied, WorkerError
from rlinf_scheduler.host.timing import Reduce, reduce_durations
from rlinf_scheduler.observe.reasons import explain, explaining
from rlinf_scheduler.session import current_or_none
from rlinf_scheduler.wording import counted
from rlinf_scheduler.worker.call import LEFT_OUT, Call, LeftOut

R = TypeVar("R")

# Ray says why a process is gone a little later than its connection breaks.
_REASON_WAIT_S = 2.0


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


def _awaits_several(local: dict[str, Any]) -> Wait | None:
    waits = [result.awaits() for result in local.get("pending", ())]
    if len(waits) < 2:
        return waits[0] if waits else None
    peers = tuple(dict.fromkeys(peer for wait in waits for peer in wait.peers))
    return Wait(
        RESULT, " and ".join(wait.operation for wait in waits), max(w.since_s for w in waits), peers=peers
    )


@explains_arguments
@awaited(_awaits_several)
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


def _awaits(local: dict[str, Any]) -> Wait:
    result: GroupResult[Any] = local["self"]
    return result.awaits()


@explains_calls
class GroupResult(Generic[R]):
    """The results of one call on several ranks, in rank order.

    A failure is a value: `wait` raises it, as soon as the first rank fails, and the driver goes on. A wait that was
    interrupted can be made again. Large arrays and tensors of a result lie in the rank's shared memory; they are
    writable, the caller's own, and their memory goes back when they are dropped.
    """

    def __init__(
        self,
        call: Call,
        reason_of_death: Callable[[WorkerAddress, float, str], str],
        before_return: Callable[[], object] = lambda: None,
    ) -> None:
        """Used by the group.

        Args:
            call: what goes on.
            reason_of_death: why a rank's process is gone, waiting up to so many seconds to learn it; else what is
                given here.
            before_return: called before results are handed out.
        """
        self._call = call
        self._reason_of_death = reason_of_death
        self._before_return = before_return
        self._values: dict[int, Any] = {}
        self._generation = generation()

    def wait(self, timeout_s: float | None = None) -> list[R]:
        """Every rank's result, in rank order.

        Args:
            timeout_s: how long to wait, in seconds; None: as long as every rank lives.

        Raises:
            WorkerError: a rank's method raised; the text holds the remote traceback.
            WorkerDied: a rank's process is gone.
            CallCancelled: `cancel` was called before every rank had answered.
            ResultTimeout: some rank had not answered at the deadline; the text names them. The call goes on.
            ConfigError: `timeout_s` is neither None nor a number of at least 0.
        """
        self._wait_for(self._call.settled, timeout_s)
        return self._collect()

    def results(self, return_exceptions: bool = False, timeout_s: float | None = None) -> list[Any]:
        """Every rank's result once all have answered; with `return_exceptions`, failures stand in their places.

        Raises:
            WorkerError: a rank failed and `return_exceptions` is False.
            ResultTimeout: some rank had not answered at the deadline.
        """
        if not return_exceptions:
            return self.wait(timeout_s)
        self._wait_for(self._call.complete, timeout_s)
        return [self._outcome(index) for index in self._call.places]

    def cancel(self) -> None:
        """Give the call up: who waits for it gets CallCancelled, and the ranks leave it.

        A rank that has not begun it never does. One that waits in this library (recv, get, put, a handle's or a
        result's wait, a lock, the next value's turn) gets `asyncio.CancelledError` there, and so does an `async def`
        method at its `await`: once, so that its `finally` may wait. One that computes goes on until its next wait, and
        can see `self.cancelled`. `results(return_exceptions=True)` returns once every rank has left it. After that the
        group can be called as before. It does nothing where all ranks have answered; this returns at once.
        """
        self._call.messenger.submit(self._call.cancel)

    @overload
    def durations(self, reduce: Reduce = "max", timeout_s: float | None = None) -> dict[str, float]: ...

    @overload
    def durations(self, reduce: None, timeout_s: float | None = None) -> dict[str, list[float]]: ...

    def durations(
        self, reduce: Reduce | None = "max", timeout_s: float | None = None
    ) -> dict[str, float] | dict[str, list[float]]:
        """How long the parts of the call took, in seconds, by the names that the ranks' timers have.

        The method as a whole stands under its own name. Ranks that failed count with what they measured until then.

        Args:
            reduce: what to make of the ranks' durations: "max", "min", "mean" or "sum"; None: a list of them.
            timeout_s: how long to wait until every rank has answered, in seconds; None: as long as it takes.

        Raises:
            ResultTimeout: some rank had not answered at the deadline.
        """
        read = self._call.is_read
        self._wait_for(self._call.complete, timeout_s)
        self._call.is_read = read
        return reduce_durations(self._call.durations, reduce)

    def done(self) -> bool:
        """Whether `wait` would return, or raise what happened, at once."""
        return self._call.settled.done()

    def __await__(self) -> Generator[Any, None, list[R]]:
        """`await result`: as `wait`, without blocking the event loop."""
        self._call.is_read = True
        self._check_process()
        if not self.done():
            yield from self._settled_in_this_loop().__await__()
        return self._collect(reason_wait_s=0.0)

    async def async_wait(self) -> list[R]:
        """`await result.async_wait()`: another name of `await result`."""
        return await self

    @awaited(_awaits)
    @keeps_wait("settled")
    async def _settled_in_this_loop(self) -> None:
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        settled = self._call.settled
        began, cause = waits.now(), settled.cause()

        def wake(_settled: Promise[None]) -> None:
            try:
                loop.call_soon_threadsafe(_set_done, woken)
            except RuntimeError:  # the event loop was closed meanwhile: nobody is left to tell
                return

        settled.add_done_callback(wake)
        try:
            await woken
        finally:
            settled.remove_done_callback(wake)
        if waits.account is not None:
            waits.account(began, cause, settled.by)

    def note_read(self) -> None:
        """Somebody looks after this call: what it fails with need not be logged."""
        self._call.is_read = True

    def unread_failure(self) -> BaseException | None:
        """What the call failed with, if it did and nobody has asked for its result yet; runs no user's code."""
        return None if self._call.is_read else self.failure(reason_wait_s=0.0)

    def failure(self, reason_wait_s: float = _REASON_WAIT_S) -> BaseException | None:
        """What the call failed with, if it did and was not given up; runs no user's code.

        Args:
            reason_wait_s: how long to wait to learn why a rank's process is gone, in seconds.
        """
        try:
            self._raise_failure(reason_wait_s, load_cause=False)
        except CallCancelled:
            return None
        except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
            return error
        return None

    def __repr__(self) -> str:
        outcomes = [each for each in self._call.outcomes if each is not LEFT_OUT]
        answered = sum(outcome is not None for outcome in outcomes)
        return f"<GroupResult of {self._call.title}: {answered} of {len(outcomes)} ranks have answered>"

    @property
    def settled(self) -> Promise[None]:
        """Done when `wait` would not block; for `wait_all` and its like."""
        return self._call.settled

    def describe(self) -> str:
        """What is waited for, and which ranks have not answered."""
        return f"{self._call.title} on {', '.join(self._missing())}"

    def awaits(self) -> Wait:
        """Return what a wait for it is for; in any thread."""
        call = self._call
        began = min((at for at in call.sent_at if at), default=time.monotonic())
        return Wait(RESULT, call.title, time.monotonic() - began, peers=tuple(self._missing()))

    def _missing(self) -> list[str]:
        pairs = zip(self._call.addresses, self._call.outcomes, strict=True)
        return [str(address) for address, outcome in pairs if outcome is None]

    @awaited(_awaits)
    def _wait_for(self, end: Promise[None], timeout_s: float | None) -> None:
        limit_s = checked_deadline(timeout_s)
        self._call.is_read = True
        self._check_process()
        started = time.monotonic()
        try:
            self._wait_until(end, limit_s, started)
        except (ResultTimeout, KeyboardInterrupt) as error:
            explain(current_or_none(), error, limit_s, time.monotonic() - started)
            raise
        self._before_return()

    def _wait_until(self, end: Promise[None], limit_s: float | None, started: float) -> None:
        if not end.wait(limit_s):
            raise ResultTimeout(self._call.title, time.monotonic() - started, self._missing())

    def _check_process(self) -> None:
        if self._generation != generation() and not self.done():
            raise forked_error(self._call.title)

    def _collect(self, reason_wait_s: float = _REASON_WAIT_S) -> list[R]:
        self._raise_failure(reason_wait_s)
        return [self._outcome(index) for index in self._call.places]

    def _raise_failure(self, reason_wait_s: float, *, load_cause: bool = True) -> None:
        """Raise what the first rank that failed failed with, if any did."""
        if isinstance(
            self._call.aborted, WorkerDied
        ):  # of which the others' failures come, if there are some
            raise self._call.aborted
        failures = [
            (index, outcome)
            for index, outcome in enumerate(self._call.outcomes)
            if outcome is not None and not isinstance(outcome, (ReceivedPayload, LeftOut))
        ]
        # A rank that was only cancelled says less than one that failed by itself.
        failures.sort(key=lambda failure: isinstance(failure[1], CallCancelled))
        for index, outcome in failures:
            raise self._failure(index, outcome, reason_wait_s, load_cause)
        if self._call.aborted is not None:
            raise self._call.aborted

    def _outcome(self, index: int) -> Any:
        """A rank's result; what it failed with, if it did."""
        outcome = self._call.outcomes[index]
        if not isinstance(outcome, ReceivedPayload):
            return self._failure(index, outcome)
        if index not in self._values:
            self._values[index] = outcome.load()
        return self._values[index]

    def _failure(
        self,
        index: int,
        outcome: Failure | LeftOut | BaseException | None,
        reason_wait_s: float = _REASON_WAIT_S,
        load_cause: bool = True,
    ) -> BaseException:
        address, method = self._call.addresses[index], self._call.method
        if outcome is None or isinstance(outcome, LeftOut):
            return self._call.aborted or WorkerDied(address.group, address.rank, method)
        if isinstance(outcome, Failure):
            cause = outcome.load() if load_cause else None
            return WorkerError(address.group, address.rank, method, outcome.traceback, cause)
        if not isinstance(outcome, PeerDied):
            return read_error(outcome) if load_cause else outcome
        reason = self._reason_of_death(address, reason_wait_s, outcome.reason)
        died = WorkerDied(address.group, address.rank, method, reason)
        died.__cause__ = outcome
        return died


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
