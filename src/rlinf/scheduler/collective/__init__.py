"""Handles of what goes on, and options of communication, by RLinf's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf.scheduler.absent import Collective, CollectiveGroup, MultiChannelProcessGroup, add_absent_modules
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


@dataclass
class CollectiveGroupOptions:
    """The value of `options=` of `send`, `recv`, `send_tensor`, `recv_tensor` and `broadcast`.

    They tune NCCL, which carries nothing here, so none of them has an effect.

    Attributes:
        accel_cluster_size: how many thread blocks of NCCL's make a cluster.
        accel_max_ctas: how many of them it uses at most.
        accel_min_ctas: how many at least.
        is_high_priority_stream: whether it uses streams of high priority.
        use_ring_broadcast: whether a broadcast goes to the first receiver, and from there to the others.
    """

    accel_cluster_size: int | None = None
    accel_max_ctas: int | None = None
    accel_min_ctas: int | None = None
    is_high_priority_stream: bool = False
    use_ring_broadcast: bool = False

    def is_empty_options(self) -> bool:
        """Return whether all of them are as they are by default."""
        return self == CollectiveGroupOptions()
