"""Handles of what goes on, by RLinf's names: all of them are one class here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.promise import Promise

AsyncWork = AsyncHandle
AsyncChannelWork = AsyncHandle
AsyncChannelCommWork = AsyncHandle
AsyncCollWork = AsyncHandle
AsyncFuncWork = AsyncHandle
AsyncRayWork = AsyncHandle


class AsyncRouteWork(AsyncHandle[Any]):
    """Several handles as one: its result is `finalize_fn` of the list of theirs; what one failed with is its failure.

    Args:
        works: the handles, which nobody else waits for; cancelling this one cancels them.
        finalize_fn: makes the result, once, in the thread of whoever waits for it first.
    """

    __slots__ = ()

    def __init__(self, works: Sequence[AsyncHandle[Any]], finalize_fn: Callable[[list[Any]], Any]) -> None:
        works = tuple(works)
        super().__init__(
            _all_done(works),
            lambda _: finalize_fn([work.wait() for work in works]),
            f"{len(works)} operations",
        )


def _all_done(works: Sequence[AsyncHandle[Any]]) -> Promise[None]:
    """Return what is complete once all of the handles are."""
    done: Promise[None] = Promise(lambda: [work.cancel() for work in works])
    # They end in any thread; each number is given to one of them.
    count = itertools.count(1).__next__

    def on_done(_work: Promise[Any]) -> None:
        if count() == len(works):
            done.set_result(None)

    for work in works:
        work.settled.add_done_callback(on_done)
    if not works:
        done.set_result(None)
    return done
