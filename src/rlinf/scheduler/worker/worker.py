"""`Worker` with RLinf's names beside ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, cast, overload

from rlinf.scheduler.hardware.accelerators.accelerator import AcceleratorType, begin_capture, type_of
from rlinf.scheduler.manager.addresses import WorkerAddress, WorkerInfo
from rlinf.scheduler.placement.records import Placement, in_rlinfs_types
from rlinf.scheduler.worker.routed import Routing
from rlinf.scheduler.worker.timers import WorkerTimer
from rlinf_scheduler.checks import explains_calls
from rlinf_scheduler.hardware.profilers import CAPTURE
from rlinf_scheduler.host.info import hosts_rank, job_topology
from rlinf_scheduler.worker.torch_devices import ClassFact, vendor_of

if TYPE_CHECKING:
    from rlinf.scheduler.manager.worker_manager import WorkerManager
    from rlinf.scheduler.worker.worker_group import WorkerGroup
    from rlinf_scheduler.worker.group_builder import GroupBuilder

__all__ = ["Worker", "WorkerAddress", "WorkerClsType"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Worker")
WorkerClsType = TypeVar("WorkerClsType")


@explains_calls
class Worker(Routing):
    """One rank of a component, with RLinf's names: see `rlinf_scheduler.Worker` for all else.

    Attributes:
        current_worker: the worker of this process; None where it is no rank.
    """

    current_worker: ClassVar[Worker | None] = None

    accelerator_type: ClassFact[AcceleratorType] = ClassFact(type_of)
    """Whose accelerators it was given; on the class too."""

    def __init__(
        self,
        parent_address: WorkerAddress | None = None,
        world_size: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(parent_address=parent_address, world_size=world_size, rank=rank)

    def _rlinf_take_place(self) -> None:
        super()._rlinf_take_place()
        address = WorkerAddress.from_name(str(self._rlinf_role.info.address))
        if hosts_rank() or len(address.rank_path) > 1:
            Worker.current_worker = self
            os.environ.update(_variables(self, address))

    def _load_user_extensions(self) -> None:
        """Load the module that RLINF_EXT_MODULE names; a rank's process has done so before there was a worker."""
        from rlinf.scheduler.cluster import load_user_extension_module  # noqa: PLC0415 - few programs have one

        load_user_extension_module(logger=Worker.logger)

    @classmethod
    def create_group(
        cls: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> GroupBuilder[T, WorkerGroup[T]]:
        """A group of this class, to be launched; see `rlinf_scheduler.Worker`."""
        # A rank launches nothing, mostly; what can takes longer to import than all else.
        from rlinf.scheduler.worker.worker_group import WorkerGroup  # noqa: PLC0415
        from rlinf_scheduler.worker.group_builder import GroupBuilder  # noqa: PLC0415

        return GroupBuilder(cast(type[T], cls), args, kwargs, WorkerGroup)

    # -- who it is: a program may set each of these ----------------------------------------------

    _has_initialized = True

    @cached_property
    def worker_address(self) -> WorkerAddress:
        """Its name in the job."""
        return WorkerAddress.from_name(str(self._rlinf_role.info.address))

    @cached_property
    def address(self) -> WorkerAddress:
        """Its name in the job, as `worker_address`."""
        return self.worker_address

    @cached_property
    def placement(self) -> Placement:
        """The node and the devices it was given."""
        return in_rlinfs_types([replace(self._rlinf_role.info.placement)])[0]

    @cached_property
    def worker_info(self) -> WorkerInfo:
        """Who and where it is."""
        return WorkerInfo.of(
            self._rlinf_role.info,
            accelerator_type=self._accelerator_type,
            accelerator_model=self._accelerator_model,
            available_accelerators=tuple(self.global_accelerator_ids),
            hardware_infos=tuple(self.hardware_infos),
        )

    @cached_property
    def manager_proxy(self) -> WorkerManager:
        """The directory of the other workers."""
        from rlinf.scheduler.manager.worker_manager import WorkerManager  # noqa: PLC0415 - few ask

        return WorkerManager.get_proxy()

    @cached_property
    def has_accelerator(self) -> bool:
        """Whether it was given accelerators."""
        return self._rlinf_role.info.placement.has_accelerators

    @cached_property
    def hardware_type(self) -> str:
        """The type of its hardware: the accelerators' vendor, a robot's type; "" on a bare node."""
        return self._rlinf_role.info.placement.hardware_type

    @cached_property
    def hardware_infos(self) -> list[Any]:
        """Its hardware, piece by piece."""
        from rlinf.scheduler.hardware.infos import infos_of  # noqa: PLC0415 - few ask

        place = self._rlinf_role.info.placement
        return list(infos_of(self._rlinf_role.hardware, place.hardware_type, _accelerator_model(self)))

    @cached_property
    def global_accelerator_ids(self) -> list[int]:
        """The numbers in the cluster of its accelerators."""
        place = self._rlinf_role.info.placement
        if self._rlinf_session is None or not place.has_accelerators:
            return []
        nodes = job_topology(self._rlinf_session).nodes[: place.node_rank]
        before = sum(node.num_accelerators for node in nodes)
        return [before + index for index in place.local_hardware_ranks]

    _worker_address = cached_property[WorkerAddress](lambda self: self.worker_address)
    _worker_info = cached_property[WorkerInfo](lambda self: self.worker_info)
    _worker_name = cached_property[str](lambda self: self.worker_address.get_name())
    _manager_proxy = cached_property["WorkerManager"](lambda self: self.manager_proxy)
    _cluster_node_rank = cached_property[int](lambda self: self._rlinf_role.info.placement.node_rank)
    _node_local_rank = cached_property[int](lambda self: self._rlinf_role.info.placement.local_rank)
    _local_accelerator_rank = cached_property[int](lambda self: _first_accelerator(self))
    _accelerator_type = cached_property[AcceleratorType](lambda self: type_of(vendor_of(self)))
    _accelerator_model = cached_property[str](lambda self: _accelerator_model(self))
    _master_address = cached_property[str](lambda self: self._rlinf_role.info.master_address)
    _master_port = cached_property[int](lambda self: self._rlinf_role.info.master_port)
    _timer_metrics = cached_property[dict[str, float]](lambda _self: {})

    def get_name(self) -> str:
        """Its name in the job, as text."""
        return self.worker_address.get_name()

    def get_parent_rank(self) -> int:
        """The number of the rank whose process started it; 0 of a rank."""
        return self.worker_address.get_parent_rank()

    # -- timers ----------------------------------------------------------------------------------

    def worker_timer(self, tag: str | None = None, trace: bool = True) -> WorkerTimer:
        """Measure a block; seconds of one name add up until they are popped, and travel with the call's result too.

            with self.worker_timer("sample"):
                batch = next(self.data)

        Without a tag its name is that of the function in which it stands. `trace` is taken and not needed.
        """
        return WorkerTimer(tag or sys._getframe(2).f_code.co_name, self._timer_metrics)

    @staticmethod
    @overload
    def timer(tag: str | None = None, trace: bool = ...) -> WorkerTimer: ...

    @staticmethod
    @overload
    def timer(tag: Callable[P, R], trace: bool = ...) -> Callable[P, R]: ...

    @staticmethod
    def timer(tag: Any = None, trace: bool = True) -> Any:
        """Measure each call of a method, `@Worker.timer("generate")`, or a block, `with self.timer("generate"):`.

        As `worker_timer`; `@Worker.timer` and `@Worker.timer()` take the method's own name.

        Raises:
            ConfigError: the method is a generator: its time depends on who iterates over it.
        """
        if callable(tag):
            return WorkerTimer(tag.__name__, None)(tag)
        current = Worker.current_worker
        return WorkerTimer(tag, current._timer_metrics if current is not None else None)

    def pop_execution_time(self, tag: str, default: float | None = None) -> float:
        """Return the seconds that were measured under a name since they were last popped.

        Raises:
            ValueError: nothing was, and there is no `default`.
        """
        if tag not in self._timer_metrics and default is not None:
            return default
        if tag not in self._timer_metrics:
            measured = ", ".join(self._timer_metrics) or "nothing"
            raise ValueError(f"no timer '{tag}' was measured since it was popped; there is: {measured}")
        return self._timer_metrics.pop(tag)

    def pop_execution_times(self) -> dict[str, float]:
        """The seconds of all timers since they were last popped, by name."""
        popped: dict[str, float] = {}
        while self._timer_metrics:
            name, seconds = self._timer_metrics.popitem()
            popped[name] = seconds
        return popped

    def start_profile(self, step_idx: int | None = None) -> None:
        """Have a profiler that waits for it record this process from now on; nothing without accelerators."""
        begin_capture(self._accelerator_type)
        if CAPTURE.is_open:
            self.log_debug(f"what the profiler records begins at step {step_idx}")

    def stop_profile(self) -> None:
        """Have that profiler record no more."""
        CAPTURE.close()


def _first_accelerator(worker: Worker) -> int:
    first = worker._rlinf_role.info.placement.local_gpu_id
    return -1 if first is None else first


def _accelerator_model(worker: Worker) -> str:
    session, place = worker._rlinf_session, worker._rlinf_role.info.placement
    if session is None or not place.has_accelerators:
        return ""
    return job_topology(session).nodes[place.node_rank].accelerator_model


def _variables(worker: Worker, address: WorkerAddress) -> dict[str, str]:
    """Return the variables that RLinf's programs, and their children, find in the environment of a rank."""
    place = worker._rlinf_role.info.placement
    return {
        "GROUP_NAME": address.root_group_name,
        "WORKER_NAME": address.get_name(),
        "CLUSTER_NODE_RANK": str(place.node_rank),
        "NODE_GROUP_LABEL": place.node_group,
        "NODE_LOCAL_RANK": str(place.local_rank),
        "NODE_LOCAL_WORLD_SIZE": str(place.local_world_size),
        "LOCAL_ACCELERATOR_RANK": str(worker._local_accelerator_rank),
        "LOCAL_HARDWARE_RANKS": ",".join(map(str, place.local_hardware_ranks)),
        "VISIBLE_DEVICES": ",".join(place.visible_accelerators),
        "ISOLATE_ACCELERATOR": str(int(place.isolate_gpu)),
        "ACCELERATOR_TYPE": type_of(vendor_of(worker)).value,
        "ACCELERATOR_MODEL": _accelerator_model(worker),
    }
