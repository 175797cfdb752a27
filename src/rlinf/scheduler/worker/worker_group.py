"""Groups, and the results of their calls, with RLinf's names beside ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

import rlinf_scheduler.worker as core
from rlinf.scheduler.placement.records import Placement, in_rlinfs_types
from rlinf_scheduler.checks import explains_calls
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.host.timing import reduce_durations
from rlinf_scheduler.session import current_session
from rlinf_scheduler.wording import list_names
from rlinf_scheduler.worker.call import Call
from rlinf_scheduler.worker.group import RemoteMethod as WorkerGroupFunc
from rlinf_scheduler.worker.group import ScatteredGroup
from rlinf_scheduler.worker.remote_group import sent_group

__all__ = ["WorkerGroup", "WorkerGroupFunc", "WorkerGroupFuncResult"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
Reduction = Literal["max", "min", "mean", "sum"]


@dataclass(frozen=True)
class WorkerRank:
    """One rank of a group: a view whose calls go to it, and its number."""

    worker: WorkerGroup[Any]
    rank: int


@explains_calls
class WorkerGroup(core.WorkerGroup[T]):
    """A launched group, with RLinf's names: see `rlinf_scheduler.WorkerGroup` for all else."""

    @classmethod
    def from_group_name(cls, worker_cls: type[R], group_name: str) -> WorkerGroup[R]:
        """Return a group of workers of that class that another process of the job has launched.

        Raises:
            ClusterError: there is none of that name.
        """
        if group_name not in (there := current_session().directory.group_ranks()):
            raise ClusterError(f"there is no group '{group_name}'; there is {list_names(there)}")
        group: WorkerGroup[R] = sent_group(cls, group_name, worker_cls, {})
        return group

    @property
    def worker_group_name(self) -> str:
        """Its name in the job."""
        return self._name

    @property
    def worker_info_list(self) -> list[WorkerRank]:
        """Its ranks, one by one."""
        return [WorkerRank(self._view((rank,)), rank) for rank in self._members.ranks]

    @property
    def placements(self) -> list[Placement]:  # type: ignore[override]  # a list that nobody else has
        """Where each rank runs."""
        return in_rlinfs_types(map(replace, super().placements))

    if TYPE_CHECKING:  # what these return is made by `_result_of`

        @overload
        def call(
            self,
            method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
            *args: P.args,
            **kwargs: P.kwargs,
        ) -> WorkerGroupFuncResult[R]: ...

        @overload
        def call(  # type: ignore[overload-overlap]  # a plain method's result may be of any type
            self,
            method: Callable[Concatenate[T, P], Iterator[R] | AsyncIterator[R]],
            *args: P.args,
            **kwargs: P.kwargs,
        ) -> core.GroupStream[R]: ...

        @overload
        def call(
            self, method: Callable[Concatenate[T, P], R], *args: P.args, **kwargs: P.kwargs
        ) -> WorkerGroupFuncResult[R]: ...

        def call(self, method: Any, *args: Any, **kwargs: Any) -> Any: ...  # noqa: D102

        def get(self, name: str) -> WorkerGroupFuncResult[Any]: ...  # noqa: D102

    def _close(self) -> None:
        """End its ranks: as `shutdown`."""
        core.WorkerGroup.shutdown(self)

    def _copied_as(self, kind: type[Any]) -> Any:
        return super()._copied_as(_ScatteredGroup if issubclass(kind, ScatteredGroup) else WorkerGroup)

    def _result_of(
        self,
        call: Call,
        reason_of_death: Callable[[Any, float, str], str],
        before_return: Callable[[], object],
    ) -> WorkerGroupFuncResult[Any]:
        return WorkerGroupFuncResult(call, reason_of_death, before_return, self)


class _ScatteredGroup(WorkerGroup[T], ScatteredGroup[T]):
    """A view that `scatter` made."""


@explains_calls
class WorkerGroupFuncResult(core.GroupResult[R], Generic[R]):
    """The results of one call on several ranks, with RLinf's names: see `rlinf_scheduler.GroupResult` for all else."""

    def __init__(
        self,
        call: Call,
        reason_of_death: Callable[[Any, float, str], str],
        before_return: Callable[[], object],
        group: core.WorkerGroup[Any],
    ) -> None:
        """Used by the group, which is `group`; the others are as of `GroupResult`."""
        super().__init__(call, reason_of_death, before_return)
        self._group = group

    def consume_duration(self, reduction_type: Reduction = "max") -> float:
        """Return how long the method took, in seconds: by the timers of its name on its ranks, which are popped.

        A rank that has no such timer counts with the time of this call.

        Args:
            reduction_type: what to make of the ranks' seconds: "max", "min", "mean" or "sum".

        Raises:
            WorkerError: the call has failed.
        """
        self.wait()
        method = self._call.method
        own = max(self.durations(reduce=None)[method])
        popped = self._on_all_ranks("pop_execution_time", method, own)
        return reduce_durations([{method: each} for each in popped], reduction_type)[method]  # type: ignore[return-value]

    @overload
    def consume_durations(
        self, reduction_type: Reduction = "max", return_per_rank: Literal[False] = False
    ) -> dict[str, float]: ...

    @overload
    def consume_durations(
        self, reduction_type: Reduction = "max", *, return_per_rank: Literal[True]
    ) -> tuple[dict[str, float], list[dict[str, float]]]: ...

    def consume_durations(self, reduction_type: Reduction = "max", return_per_rank: bool = False) -> Any:
        """Return the seconds of all timers of the group's ranks, by name; they are popped.

        Also what other calls have measured since they were last popped.

        Args:
            reduction_type: as of `consume_duration`.
            return_per_rank: return a pair, of these and of a list with each rank's own.

        Raises:
            WorkerError: the call has failed.
        """
        self.wait()
        popped = self._on_all_ranks("pop_execution_times")
        reduced = reduce_durations(popped, reduction_type)
        return (reduced, popped) if return_per_rank else reduced

    def _on_all_ranks(self, method: str, *arguments: Any) -> list[Any]:
        group = core.WorkerGroup.plain(self._group)
        popped: list[Any] = group[:].call_method(method, arguments, {}).wait()
        return popped
