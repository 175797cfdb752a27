"""The handle of an operation that goes on: wait for it, await it, or chain on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from rlinf_scheduler.checks import called_directly, explains_calls
from rlinf_scheduler.comm import waits
from rlinf_scheduler.comm.codec.interruptions import raised_by_signal_handler
from rlinf_scheduler.comm.forking import forked_error, generation
from rlinf_scheduler.comm.promise import ConsumedFlag, Promise
from rlinf_scheduler.comm.waits import OTHER, Cause, Wait, awaited, keeps_wait
from rlinf_scheduler.errors import ChannelTimeout, CommTimeout, ResultTimeout

T = TypeVar("T")
U = TypeVar("U")

# For the overloads, which say what `async_op` makes of a call: its result now, or a handle.
Now: TypeAlias = Literal[False]
Later: TypeAlias = Literal[True]
Seconds: TypeAlias = float | None


def _awaits(local: dict[str, Any]) -> Wait | None:
    handle: AsyncHandle[Any] = local["self"]
    return None if handle.settled.done() else handle.awaits()


def _awaited_in_vain(local: dict[str, Any]) -> Wait | None:
    """Also when that is over, and it is found out why nothing came."""
    handle: AsyncHandle[Any] = local["self"]
    return handle.awaits() if "error" in local else _awaits(local)


@explains_calls
class AsyncHandle(Generic[T]):
    """What `async_op=True` gives: the result of an operation, now or later.

    The operation goes on whether anybody waits or not, and ends by itself at its own deadline. Only an `await`
    that is cancelled, while nobody else awaits the handle, cancels it too (`asyncio.shield` prevents that). What
    remains to be done with the answer (decoding it, the functions given to `then`) is done in the thread that
    asks for the result first, never on the I/O thread. If an interruption (Ctrl-C, a signal handler that raises) ends
    that, the handle is as before, and the next `wait` does it again. A handle that failed and was dropped does no
    harm; of a channel's first put, or the first send, that fails after its handle was dropped a warning tells.

    Args:
        source: completes when the operation does.
        finish: makes the result of what `source` holds; None takes it as it is. It may be called again after an
            interruption, so nothing that it does must prevent that.
        what: what goes on, for messages, e.g. "recv from 'rollout:3'".
        consumed: where it says that the value was taken; by default where the source's owner looks.

    Attributes:
        settled: the source: done when `wait` would not block; for `wait_all` and its like.
    """

    __slots__ = (
        "_awaited_by",
        "_consumed",
        "_error",
        "_finish",
        "_finished",
        "_generation",
        "_lock",
        "_value",
        "_what",
        "settled",
    )

    def __init__(
        self,
        source: Promise[Any],
        finish: Callable[[Any], T] | None = None,
        what: str | Callable[[], str] = "",
        consumed: ConsumedFlag | None = None,
    ) -> None:
        self._what = what
        self.settled = source
        self._consumed = consumed or source.consumed
        self._generation = generation()
        self._finish = finish
        # Of waiting threads only; a signal handler may wait for the handle that it interrupted. What is taken as it is
        # may be taken twice.
        self._lock = None if finish is None else threading.RLock()
        self._finished = False
        self._awaited_by: set[asyncio.Future[None]] | None = None
        self._value: Any = None
        self._error: BaseException | None = None

    @property
    def what(self) -> str:
        """What goes on."""
        return self._what if isinstance(self._what, str) else self._what()

    def describe(self) -> str:
        """What is waited for."""
        return self.what or "an operation"

    def awaits(self) -> Wait:
        """Return what a wait for it is for; in any thread."""
        return self.settled.awaits() or Wait(OTHER, self.describe())

    def cause(self) -> Cause:
        """Return what a wait for it is counted as."""
        return self.settled.cause() or Cause(OTHER, self.describe())

    @classmethod
    def completed(cls, value: T, what: str = "") -> AsyncHandle[T]:
        """A handle that is done."""
        source: Promise[T] = Promise()
        source.set_result(value)
        return cls(source, None, what)

    def done(self) -> bool:
        """Whether the operation is over, well or not: then `wait` does not block."""
        return self.settled.done()

    @awaited(_awaits)
    @called_directly("AsyncHandle")
    def wait(self, timeout_s: float | None = None) -> T:
        """The result.

        Args:
            timeout_s: how long to wait; the operation goes on after that. None waits until the operation
                ends, which it does at its own deadline at the latest.

        Raises:
            ResultTimeout: `timeout_s` passed.
            CommError: it began before this process was forked, and its end does not come here.
            BaseException: what the operation failed with.
        """
        if self._finished or self.settled.done():
            value = self._take()
        else:
            self._check_process()
            value = self._take_when_done(timeout_s)
        consumed = self._consumed
        # Stores and a return: an interruption comes before all, and then the value may still go back, or after.
        consumed.mark[0] = 1
        consumed.taken = True
        return value

    @called_directly("AsyncHandle")
    def result(self) -> T:
        """The result; the same as `wait()`."""
        return self.wait()

    def exception(self) -> BaseException | None:
        """What the operation failed with, or None; waits for its end."""
        try:
            self.wait()
        except Exception as error:  # noqa: BLE001 - handed to the caller, whatever it is
            return error
        return None

    def cancel(self) -> bool:
        """Give the operation up; False if it is over. A cancelled `recv` or `get` takes nothing."""
        return self.settled.cancel()

    def then(self, function: Callable[[T], U]) -> AsyncHandle[U]:
        """A handle of `function(result)`.

        The function runs once, in the thread that first asks the new handle for its result; what it
        raises is the new handle's failure. If this handle fails, so does the new one, and the function does
        not run.
        """
        return AsyncHandle(self.settled, lambda _: function(self._take()), self.what)

    async def async_wait(self) -> T:
        """The result; the same as awaiting the handle."""
        return await self

    @awaited(_awaits)
    @keeps_wait("self")
    def __await__(self) -> Generator[Any, None, T]:
        if not self.settled.done():
            self._check_process()
            loop = asyncio.get_running_loop()
            woken = loop.create_future()
            began: float | None = waits.now()
            cause = self.cause()

            def wake(_source: Any) -> None:
                try:
                    loop.call_soon_threadsafe(_set_done, woken)
                except RuntimeError:  # the event loop was closed meanwhile: nobody is left to tell
                    return

            self.settled.add_done_callback(wake)
            if self._awaited_by is None:
                self._awaited_by = set()
            awaited_by = self._awaited_by
            awaited_by.add(woken)
            try:
                yield from woken
            except asyncio.CancelledError:
                # As with a future of asyncio: who gives up waiting gives up the operation.
                if awaited_by == {woken}:
                    self.settled.cancel()
                raise
            finally:
                awaited_by.discard(woken)
            if waits.account is not None and began is not None:
                waits.account(began, cause, self.settled.by)
            began = None  # what it brought is still to be read
        value = self._take()
        consumed = self._consumed
        consumed.mark[0] = 1
        consumed.taken = True
        return value

    def _check_process(self) -> None:
        if self._generation != generation() and not self.settled.done():
            raise forked_error(self.what or "an operation")

    @awaited(_awaited_in_vain)
    def _take_when_done(self, timeout_s: float | None) -> T:
        began = waits.now()
        try:
            self._await(timeout_s)
            return self._take()
        except (ResultTimeout, KeyboardInterrupt) as error:
            self.settled.explain(error, timeout_s, waits.now() - began)
            raise
        except (ChannelTimeout, CommTimeout) as error:
            self.settled.explain(error, self.awaits().timeout_s, error.waited_s)
            raise

    def _await(self, timeout_s: float | None) -> None:
        began = waits.now()
        if not self.settled.wait(timeout_s):
            raise ResultTimeout(self.what or "the operation", waits.now() - began)

    def _take(self) -> T:
        if self._lock is None:
            self._settle()
        elif not self._finished:
            with self._lock:
                if not self._finished:
                    self._settle()
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def _settle(self) -> None:
        """Make the result. What it ends with is kept, unless an interruption ended it: then it is made again."""
        source, finish = self.settled, self._finish
        came = False
        try:
            value = source.result(0)
            came = True
            if finish is not None:
                value = finish(value)
        except (Exception, CancelledError) as error:
            if raised_by_signal_handler(error):
                raise
            self._error = error
            if came:
                self._consumed.taken = True  # by nobody, but it would stand in the way of all others
        else:
            self._value = value
        self._finished = True
        self._finish = None

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        return f"<AsyncHandle {self.what or 'operation'}: {state}>"


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
