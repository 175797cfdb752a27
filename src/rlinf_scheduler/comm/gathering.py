"""One handle for several operations that belong together."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, TypeVar

from msgspec import structs

from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.promise import ConsumedFlag, Promise
from rlinf_scheduler.comm.waits import CHANNEL, WEIGHTS, Cause, Wait

T = TypeVar("T")
Join = Callable[[list[BaseException | None]], BaseException | None]


class Gathered(AsyncHandle[T]):
    """One handle of `finish(results)`, of the results of several handles in their order.

    Args:
        handles: those; nobody else waits for them.
        finish: makes the result, in the waiting thread.
        what: what goes on, as its caller would write it.
        join: for operations that go on whatever becomes of the others: returns what all of them together failed with,
            given what each failed with or None. Without it the first failure is that of the whole: the others are
            cancelled, and what some of them had received goes back to where it came from.
    """

    __slots__ = ()

    def __init__(
        self,
        handles: Sequence[AsyncHandle[Any]],
        finish: Callable[[list[Any]], T],
        what: str,
        join: Join | None = None,
    ) -> None:
        end = _AllDone(handles, what, join)
        super().__init__(end, lambda _: finish([handle._take() for handle in end.handles]), what)


class _AllDone(Promise[None]):
    """Complete once all of several handles are, or, without `join`, the first of them has failed.

    Attributes:
        handles: those; none once they have failed.
    """

    __slots__ = ("_count", "_join", "_what", "handles")

    def __init__(self, handles: Sequence[AsyncHandle[Any]], what: str, join: Join | None) -> None:
        super().__init__()
        if join is None:  # they are taken by one store, and until then all of them may go back
            flags = [handle._consumed for handle in handles]
            self.consumed.mark = _ConsumedBytes(flags)
            for flag in flags:
                flag.whole = self.consumed
        self.handles = tuple(handles)
        self._what = what
        self._join = join
        # Handles end in any thread; each number is given to one of them.
        self._count = itertools.count(1).__next__
        # They do not keep this: when nobody has the one handle, nobody waits for them either.
        on_done = partial(_on_done, weakref.ref(self))
        for handle in handles:
            handle.settled.add_done_callback(on_done)
        if not handles:
            self.set_result(None)

    def cancel(self) -> bool:
        """Give up what is under way, unless it is complete; whether it was given up."""
        if super().cancel():
            self._give_up()
        return self.cancelled()

    def done(self) -> bool:
        """Whether it is complete; of a rank that is run again, whether it was then."""
        return super().done() and all(handle.done() for handle in self.handles)

    def awaits(self) -> Wait | None:
        """Return what a wait for it is for: the parts that are not done."""
        waits = [wait for handle in self.handles if not handle.done() and (wait := handle.settled.awaits())]
        if not waits:
            return None
        peers = dict.fromkeys(peer for wait in waits for peer in wait.peers)
        return structs.replace(waits[0], operation=self._what, peers=tuple(peers))

    def cause(self) -> Cause | None:
        """Return what a wait for it is counted as; None: as what the function that waits says."""
        first = self.handles[0].settled.cause() if self.handles else None
        if first is None or first.kind in (CHANNEL, WEIGHTS):
            return first
        return Cause(first.kind, self._what, first.subject)

    def explain(self, error: BaseException, limit_s: float | None, waited_s: float) -> None:
        """Add to what ended a wait for it why it did not end by itself, where somebody knows (see `Messenger`)."""
        for handle in self.handles[:1]:
            handle.settled.explain(error, limit_s, waited_s)

    def note(self, ended: Promise[Any]) -> None:
        """One of them is complete."""
        self.by = ended.by
        if self._join is None and (error := _error(ended)) is not None:
            self._fail(error)
        elif self._count() == len(self.handles):
            error = self._join([_error(handle.settled) for handle in self.handles]) if self._join else None
            if error is None:
                self.set_result(None)
            else:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, CancelledError):
            self.set_cancelled()
        else:
            self.set_exception(error)
        self._give_up()

    def _give_up(self) -> None:
        handles, self.handles = self.handles, ()
        for handle in handles:
            if not handle.done():
                handle.cancel()


class _ConsumedBytes:
    """The `mark` of a `ConsumedFlag` of several values."""

    __slots__ = ("_flags",)

    def __init__(self, flags: Sequence[ConsumedFlag]) -> None:
        self._flags = flags

    def __setitem__(self, place: int, mark: int) -> None:
        for flag in self._flags:
            flag.mark[place] = mark


def _on_done(waiting: weakref.ref[_AllDone], ended: Promise[Any]) -> None:
    all_done = waiting()
    if all_done is not None:
        all_done.note(ended)


def _error(ended: Promise[Any]) -> BaseException | None:
    return CancelledError() if ended.cancelled() else ended.exception()
