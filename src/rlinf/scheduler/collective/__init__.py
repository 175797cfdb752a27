"""Handles of what goes on, and options of communication, by RLinf's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlinf.scheduler.absent import Collective, MultiChannelProcessGroup, add_absent_modules
from rlinf.scheduler.collective.collective_group import CollectiveGroup, CollectiveGroupOptions
from rlinf_scheduler.comm.gathering import Gathered
from rlinf_scheduler.comm.handle import AsyncHandle

__all__ = [
    "AsyncChannelCommWork",
    "AsyncChannelWork",
    "AsyncCollWork",
    "AsyncFuncWork",
    "AsyncRayWork",
    "AsyncRouteWork",
    "AsyncWork",
    "Collective",
    "CollectiveGroup",
    "CollectiveGroupOptions",
    "MultiChannelProcessGroup",
]

add_absent_modules(__name__)

# All handles are of one class here.
AsyncWork = AsyncHandle
AsyncChannelWork = AsyncHandle
AsyncChannelCommWork = AsyncHandle
AsyncCollWork = AsyncHandle
AsyncFuncWork = AsyncHandle
AsyncRayWork = AsyncHandle


class AsyncRouteWork(Gathered[Any]):
    """Several handles as one: its result is `finalize_fn` of the list of theirs; what one failed with is its failure.

    Args:
        works: the handles, which nobody else waits for; cancelling this one cancels them.
        finalize_fn: makes the result, once, in the thread that waits for it first.
    """

    __slots__ = ()

    def __init__(self, works: Sequence[AsyncHandle[Any]], finalize_fn: Callable[[list[Any]], Any]) -> None:
        super().__init__(works, finalize_fn, f"{len(works)} operations")
