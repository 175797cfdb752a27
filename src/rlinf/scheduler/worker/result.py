"""`GroupResult`: the results of one call on the ranks of a group."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

from rlinf.scheduler.comm import Reply, decode
from rlinf.scheduler.errors import PeerDied, ResultTimeout, WorkerDied, WorkerError
from rlinf.scheduler.worker import protocol
from rlinf.scheduler.worker.info import WorkerAddress

# Ray says why a process is gone a little later than its connection breaks.
_REASON_WAIT_S = 2.0


class GroupResult:
    """The results of one call on several ranks, in rank order.

    A failure is a value: `wait` raises it, as soon as the first rank fails, and the driver goes on.
    """

    def __init__(
        self,
        method: str,
        calls: Sequence[tuple[WorkerAddress, concurrent.futures.Future[Reply]]],
        reason_of_death: Callable[[WorkerAddress, float], str],
        before_return: Callable[[], object] = lambda: None,
    ) -> None:
        """Used by the group.

        Args:
            method: the method that was called.
            calls: every rank's address and the future of its reply.
            reason_of_death: why a rank's process is gone, waiting up to so many seconds to learn it.
            before_return: called before results are handed out.
        """
        self._method = method
        self._addresses = tuple(address for address, _ in calls)
        self._futures = tuple(future for _, future in calls)
        self._reason_of_death = reason_of_death
        self._before_return = before_return
        self._values: dict[int, Any] = {}
        # Done when every rank has answered or one has failed.
        self._settled: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._all_done: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._aborted: WorkerDied | None = None
        self._read = False
        self._left = len(self._futures)
        for future in self._futures:
            future.add_done_callback(self._note)
        if not self._futures:
            _set(self._settled)
            _set(self._all_done)

    def wait(self, timeout_s: float | None = None) -> list[Any]:
        """Every rank's result, in rank order.

        Args:
            timeout_s: how long to wait, in seconds; None: as long as every rank lives.

        Raises:
            WorkerError: a rank's method raised; the text holds the remote traceback.
            WorkerDied: a rank's process is gone.
            ResultTimeout: some rank had not answered at the deadline; the text names them. The call goes on.
        """
        self._read = True
        self._wait_for(self._settled, timeout_s)
        self._before_return()
        return self._collect()

    def results(self, return_exceptions: bool = False, timeout_s: float | None = None) -> list[Any]:
        """Every rank's result once all have answered; with `return_exceptions`, failures stand in their places.

        Raises:
            WorkerError: a rank failed and `return_exceptions` is False.
            ResultTimeout: some rank had not answered at the deadline.
        """
        if not return_exceptions:
            return self.wait(timeout_s)
        self._read = True
        self._wait_for(self._all_done, timeout_s)
        self._before_return()
        return [self._outcome(index) for index in range(len(self._futures))]

    def done(self) -> bool:
        """Whether `wait` would return, or raise what happened, at once."""
        return self._settled.done()

    def __await__(self) -> Generator[Any, None, list[Any]]:
        """`await result`: as `wait`, without blocking the event loop."""
        self._read = True
        yield from asyncio.shield(asyncio.wrap_future(self._settled)).__await__()
        return self._collect(reason_wait_s=0.0)

    def unread_failure(self) -> BaseException | None:
        """What the call failed with, if it did and nobody has asked for its result yet."""
        if self._read:
            return None
        for index, future in enumerate(self._futures):
            if future.done() and _failed(future):
                return self._failure(index, reason_wait_s=0.0)
        return self._aborted

    def when_settled(self, callback: Callable[[GroupResult], None]) -> None:
        """Call `callback` once every rank has answered or one has failed; it must not block."""
        self._settled.add_done_callback(lambda _: callback(self))

    def __repr__(self) -> str:
        answered = sum(future.done() for future in self._futures)
        group = self._addresses[0].group if self._addresses else ""
        return f"<GroupResult of {group}.{self._method}(): {answered} of {len(self._futures)} ranks have answered>"

    def abort(self, error: WorkerDied) -> None:
        """End the wait with `error`: a rank died that this call may depend on."""
        if self._aborted is None and not self._settled.done():
            self._aborted = error
        _set(self._settled)
        _set(self._all_done)

    def _note(self, future: concurrent.futures.Future[Reply]) -> None:
        self._left -= 1  # callbacks of one messenger run one at a time, on its thread
        if _failed(future):
            _set(self._settled)
        if self._left == 0:
            _set(self._settled)
            _set(self._all_done)

    def _wait_for(self, settled: concurrent.futures.Future[None], timeout_s: float | None) -> None:
        started = time.monotonic()
        try:
            settled.result(timeout=timeout_s)
        except TimeoutError:
            pairs = zip(self._addresses, self._futures, strict=True)
            missing = [str(address) for address, future in pairs if not future.done()]
            what = f"{self._addresses[0].group}.{self._method}()"
            raise ResultTimeout(what, time.monotonic() - started, missing) from None

    def _collect(self, reason_wait_s: float = _REASON_WAIT_S) -> list[Any]:
        for index, future in enumerate(self._futures):
            if future.done() and _failed(future):
                raise self._failure(index, reason_wait_s)
        if self._aborted is not None:
            raise self._aborted
        return [self._value(index) for index in range(len(self._futures))]

    def _outcome(self, index: int) -> Any:
        future = self._futures[index]
        return self._value(index) if future.done() and not _failed(future) else self._failure(index)

    def _value(self, index: int) -> Any:
        if index not in self._values:
            reply = self._futures[index].result()
            self._values[index] = decode(reply.frames[0], reply.frames[1:])
        return self._values[index]

    def _failure(self, index: int, reason_wait_s: float = _REASON_WAIT_S) -> BaseException:
        address, future = self._addresses[index], self._futures[index]
        if not future.done():
            return self._aborted or WorkerDied(address.group, address.rank, self._method)
        error = future.exception()
        if error is not None:
            return self._comm_failure(address, error, reason_wait_s)
        reply = future.result()
        text, cause = bytes(reply.frames[0]).decode(), _unpickled(reply.frames[1])
        return WorkerError(address.group, address.rank, self._method, text, cause)

    def _comm_failure(
        self, address: WorkerAddress, error: BaseException, reason_wait_s: float
    ) -> BaseException:
        if not isinstance(error, PeerDied):
            return error
        died = WorkerDied(
            address.group, address.rank, self._method, self._reason_of_death(address, reason_wait_s)
        )
        died.__cause__ = error
        return died


def _failed(future: concurrent.futures.Future[Reply]) -> bool:
    return future.cancelled() or future.exception() is not None or future.result().head[0] == protocol.RAISED


def _set(future: concurrent.futures.Future[None]) -> None:
    try:
        future.set_result(None)
    except concurrent.futures.InvalidStateError:
        return  # set by another rank's answer in the meantime


def _unpickled(data: Any) -> BaseException | None:
    try:
        cause = pickle.loads(data) if len(data) else None
    except Exception:  # noqa: BLE001 - its class may exist in the worker only; the traceback's text is there
        return None
    return cause if isinstance(cause, BaseException) else None
