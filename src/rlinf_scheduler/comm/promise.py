"""The end of something that is under way: one thread completes it, any thread waits for it, and none shares a lock.

`concurrent.futures.Future` guards itself by a lock that a waiting thread holds for moments. A signal handler that
runs in such a moment, and waits for the I/O thread, which waits for that lock, never returns. Here whoever waits has
a lock of its own.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from rlinf_scheduler.comm import waits
from rlinf_scheduler.comm.cancellation import current_scope
from rlinf_scheduler.comm.codec.interruptions import raised_by_signal_handler
from rlinf_scheduler.comm.failure import read_error
from rlinf_scheduler.comm.reports import Reporter, on_io_thread
from rlinf_scheduler.comm.waits import Cause, Wait, awaited, keeps_wait

logger = Reporter(__name__)

T = TypeVar("T")

# A signal that comes just before a wait begins does not end it: its handler runs when the thread looks again.
SLICE_S = 1.0
_CANCELLED = object()
# What a promise keeps until it is complete, by these names; its outcome by None.
_GATES, _CALLBACKS = "gates", "callbacks"
# What is marked there is seen by nobody.
NOWHERE = bytearray(1)


class ConsumedFlag:
    """What became of a value: known to both sides, also when the promise itself is gone.

    The waiter says that it has the value by stores, right before its `return`: CPython lets no signal handler run
    in between. Until then the value may still go back to where it came from.

    Attributes:
        taken: the waiter has it.
        mark: one byte that says the same to other processes, where the value lies in shared memory.
        whole: what became of the several values of which this is one, if they are taken together; else None.
    """

    __slots__ = ("mark", "taken", "whole")

    def __init__(self) -> None:
        self.taken = False
        self.mark: Any = NOWHERE
        self.whole: ConsumedFlag | None = None

    @property
    def is_taken(self) -> bool:
        """Whether the waiter has it, alone or with others."""
        return self.taken or (self.whole is not None and self.whole.is_taken)


class Promise(Generic[T]):
    """A value or an error to come. It is completed once: by the thread that owns what is under way, or by `cancel`.

    Args:
        on_cancelled: called once by the thread that cancels it.
        consumed: where it is noted what became of the value, if somebody knows that place already.

    Attributes:
        consumed: what became of the value.
        by: the process that completed it, said before it is complete; "" where that is not known.
    """

    __slots__ = ("__weakref__", "_known", "_on_cancelled", "by", "consumed")

    def __init__(
        self, on_cancelled: Callable[[], object] | None = None, consumed: ConsumedFlag | None = None
    ) -> None:
        self._on_cancelled = on_cancelled
        # (value, error), once there is one; and who is to be told, if anybody is. A dict, for its `setdefault` is one
        # step: of several outcomes the first one wins, and a list is made once.
        self._known: dict[str | None, Any] = {}
        self.consumed = ConsumedFlag() if consumed is None else consumed
        self.by = ""

    @property
    def _gates(self) -> list[Any]:
        """One locked lock for each waiting thread; whoever completes opens all of them."""
        gates: list[Any] = self._known.setdefault(_GATES, [])
        return gates

    @property
    def _callbacks(self) -> list[Callable[[Any], Any]]:
        callbacks: list[Callable[[Any], Any]] = self._known.setdefault(_CALLBACKS, [])
        return callbacks

    # -- its owner -------------------------------------------------------------------------------

    def set_result(self, value: T) -> None:
        """Complete it well; nothing happens if it is complete."""
        self._complete((value, None))

    def set_exception(self, error: BaseException) -> None:
        """Complete it badly; nothing happens if it is complete."""
        self._complete((None, error))

    def set_from(self, function: Callable[[], T]) -> None:
        """Complete it with what a function returns, or raises."""
        try:
            self.set_result(function())
        except Exception as error:  # noqa: BLE001 - it belongs to the caller
            self.set_exception(error)

    def set_cancelled(self) -> None:
        """Complete it as given up; nothing happens if it is complete."""
        self._complete((_CANCELLED, None))

    def follow(self, other: Promise[T]) -> None:
        """Complete it as another is, if that is complete."""
        outcome = other._known.get(None)
        if outcome is not None:
            self.by = other.by
            self._complete(outcome)

    def forget(self) -> None:
        """Refer to the value no longer: it went to whoever asked for it first, or back."""
        self._known[None] = (None, None)

    def _complete(self, outcome: tuple[Any, BaseException | None]) -> bool:
        known = self._known
        first = known.setdefault(None, outcome) is outcome
        if len(known) > 1:
            # Also by the second one: the first may have been interrupted here.
            self._tell(known.get(_GATES, ()), known.get(_CALLBACKS, ()))
        return first

    def _tell(self, gates: Any, callbacks: Any) -> None:
        while gates:
            with suppress(IndexError):  # its thread gave up in between
                gates.pop(0).release()
        while callbacks:
            with suppress(IndexError):  # its thread was faster
                self._run(callbacks.pop(0))

    def _run(self, callback: Callable[[Any], Any]) -> None:
        try:
            callback(self)
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            logger.exception("a callback of something that ended failed")

    # -- whoever waits ---------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether it is complete."""
        return None in self._known

    def cancelled(self) -> bool:
        """Whether it was given up."""
        outcome = self._known.get(None)
        return outcome is not None and outcome[0] is _CANCELLED

    def cancel(self) -> bool:
        """Give up what is under way, unless it is complete; whether it was given up."""
        if self._complete((_CANCELLED, None)) and self._on_cancelled is not None:
            self._on_cancelled()
        return self.cancelled()

    @keeps_wait("self")
    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is complete, for at most `timeout_s` seconds; whether it is.

        Raises:
            asyncio.CancelledError: the call that this thread works at was cancelled (see `cancellation`).
        """
        known = self._known
        if None in known:
            return True
        began, cause = waits.now(), self.cause()
        gate = threading.Lock()
        gate.acquire()
        self._gates.append(gate)
        scope, waker = current_scope(), partial(self._open, gate)
        try:
            if scope is not None:
                scope.begin_wait(waker)
            # Completed before the gate was there: then nobody opens it.
            deadline = math.inf if timeout_s is None else began + timeout_s
            while None not in known:
                left_s = min(SLICE_S, deadline - time.monotonic())
                if left_s <= 0 or gate.acquire(timeout=left_s):
                    break
        finally:
            with suppress(ValueError):  # it was opened
                self._gates.remove(gate)
            if scope is not None:
                scope.end_wait(waker)
        if waits.account is not None and timeout_s != 0:
            waits.account(began, cause, self.by)
        if scope is not None and None not in known:
            scope.check()
        return None in known

    @awaited(lambda local: local["self"].awaits())
    def wait_described(self, timeout_s: float | None = None) -> bool:
        """As `wait`, where `awaits` is what tells what this thread waits for."""
        return self.wait(timeout_s)

    def _open(self, gate: Any) -> None:
        """Let one thread go on, unless whoever completes it does so."""
        with suppress(ValueError):
            self._gates.remove(gate)
            gate.release()

    def awaits(self) -> Wait | None:
        """Return what a wait for it is for, None where that is not known here. From any thread."""
        return None

    def cause(self) -> Cause | None:
        """Return what a wait for it is counted as; None: as what the function that waits says."""
        return None

    def explain(self, error: BaseException, limit_s: float | None, waited_s: float) -> None:
        """Add to what ended a wait for it why it did not end by itself, where somebody knows (see `Messenger`)."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What it failed with, None if it did not; waits as `result` does.

        Raises:
            TimeoutError: `timeout` seconds passed.
            CancelledError: it was given up.
        """
        if not self.wait(timeout):
            raise TimeoutError
        if self.cancelled():
            raise CancelledError
        error: BaseException | None = self._known[None][1]
        return error if error is None or on_io_thread() else read_error(error)

    def result(self, timeout: float | None = None) -> T:
        """The value.

        Raises:
            TimeoutError: `timeout` seconds passed.
            CancelledError: it was given up.
            BaseException: what it failed with.
        """
        outcome = self._known.get(None)
        if outcome is None:
            if not self.wait(timeout):
                raise TimeoutError
            outcome = self._known[None]
        value, error = outcome
        if error is not None:
            raise error if on_io_thread() else read_error(error)
        if value is _CANCELLED:
            raise CancelledError
        result: T = value
        return result

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Call `callback(promise)` once it is complete, in the thread that completes it, or here if it is."""
        self._callbacks.append(callback)
        # Its own only: another's would be lost if this thread were interrupted now.
        if None in self._known and self.remove_done_callback(callback):
            self._run(callback)

    def remove_done_callback(self, callback: Callable[[Any], Any]) -> bool:
        """Do not call `callback`; False if that was begun already."""
        try:
            self._callbacks.remove(callback)
        except ValueError:
            return False
        return True


class PromiseRef(weakref.ref[Promise[Any]]):
    """Stands for a promise that only whoever waits for it keeps.

    Given a deque's `append` as its callback, it is in that deque once the promise is gone: the interpreter puts it
    there itself, so that no interruption comes in between, as it may in a `__del__`.

    Attributes:
        ticket: what the promise was of.
    """

    __slots__ = ("ticket",)
    ticket: int


class Unheard:
    """Ends operations by errors, and warns of the first one whose promise nobody has: `what`, e.g. "a send", failed."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_told = False

    def fail(self, operation: Any, error: BaseException) -> None:
        """End an operation, which refers no longer to its promise; on the I/O thread."""
        promise = operation.find_promise()
        if promise is None:
            return
        known, kept = promise._known, PromiseRef(promise)
        operation.let_go()
        del promise
        promise = kept()
        if promise is None:  # what is to be called at its end is called all the same
            promise = Promise()
            promise._known = known
            if not self._is_told:
                self._is_told = True
                logger.warning("%s failed, and nobody has its handle (the first one): %s", self._what, error)
        promise.set_exception(error)


class Wake:
    """Calls something when it is dropped. An interruption may prevent that: what it wakes for happens anyhow, later."""

    __slots__ = ("_tell",)

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def __del__(self) -> None:
        tell = getattr(self, "_tell", None)  # none if an interruption came while it was made
        if tell is not None:
            tell()
