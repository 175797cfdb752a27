"""One handle for several operations that belong together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from msgspec import structs

from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.promise import NOWHERE, Fate, Promise
from rlinf_scheduler.comm.waits import Wait

T = TypeVar("T")
Join = Callable[[list[BaseException | None]], BaseException | None]


def gathered(
    handles: Sequence[AsyncHandle[Any]], finish: Callable[[list[Any]], T], what: str, join: Join | None = None
) -> AsyncHandle[T]:
    """Return one handle of `finish(results)`, of the results of several handles in their order.

    Args:
        handles: those; nobody else waits for them.
        finish: makes the result, in the thread of whoever waits.
        what: what goes on, as its caller would write it.
        join: for operations that go on whatever becomes of the others: returns what all of them together failed with,
            given what each failed with or None. Without it the first failure is that of the whole: the others are
            cancelled, and what some of them had received goes back to where it came from.
    """
    end = _Gathered(handles, what, join)
    return AsyncHandle(end, lambda _: finish([handle._take() for handle in end.handles]), what, end.fate)


class _Gathered(Promise[None]):
    """Complete once all of several handles are, or, without `join`, the first of them has failed.

    Attributes:
        handles: those; none once they have failed.
    """

    __slots__ = ("_count", "_fates", "_join", "_what", "handles")

    def __init__(self, handles: Sequence[AsyncHandle[Any]], what: str, join: Join | None) -> None:
        self._fates = _Fates([handle._fate for handle in handles])
        super().__init__(self._give_up, self._fates)
        self.handles = tuple(handles)
        self._what = what
        self._join = join
        # Handles end in any thread; each number is given to one of them.
        self._count = itertools.count(1).__next__
        for handle in handles:
            handle.settled.add_done_callback(self._on_done)
        if not handles:
            self.set_result(None)

    def done(self) -> bool:
        """Whether it is complete; of a rank that is run again, whether it was then."""
        return super().done() and all(handle.done() for handle in self.handles)

    def awaits(self) -> Wait | None:
        """What whoever waits for it waits for: those that are not done."""
        waits = [wait for handle in self.handles if not handle.done() and (wait := handle.settled.awaits())]
        if not waits:
            return None
        peers = dict.fromkeys(peer for wait in waits for peer in wait.peers)
        return structs.replace(waits[0], operation=self._what, peers=tuple(peers))

    def explain(self, error: BaseException, limit_s: float | None, waited_s: float) -> None:
        """See `Promise`."""
        for handle in self.handles[:1]:
            handle.settled.explain(error, limit_s, waited_s)

    def _on_done(self, ended: Promise[Any]) -> None:
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
        self._fates.forget()
        for handle in handles:
            if not handle.done():
                handle.cancel()


class _Fates(Fate):
    """What became of several values at once.

    Args:
        fates: of each.
    """

    __slots__ = ("_fates",)

    def __init__(self, fates: Sequence[Fate]) -> None:
        self._fates = fates
        self.mark = _Marks(fates)

    @property
    def taken(self) -> bool:
        """Whether whoever waited has them."""
        return all(fate.taken for fate in self._fates)

    @taken.setter
    def taken(self, value: bool) -> None:
        for fate in self._fates:
            fate.taken = value

    def forget(self) -> None:
        """Say nothing of them any more: what is there goes back."""
        self._fates = ()
        self.mark = NOWHERE


class _Marks:
    """The marks of several values, see `Fate`."""

    __slots__ = ("_fates",)

    def __init__(self, fates: Sequence[Fate]) -> None:
        self._fates = fates

    def __setitem__(self, place: int, mark: int) -> None:
        for fate in self._fates:
            fate.mark[place] = mark


def _error(ended: Promise[Any]) -> BaseException | None:
    return CancelledError() if ended.cancelled() else ended.exception()
