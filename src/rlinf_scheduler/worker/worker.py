"""`Worker`: the class that users derive their components from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    overload,
)

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.checks import explains_calls
from rlinf_scheduler.comm.cancellation import current_scope
from rlinf_scheduler.errors import ClusterError, ConfigError
from rlinf_scheduler.host.info import Role, WorkerInfo, job_settings
from rlinf_scheduler.host.ports import acquire_port
from rlinf_scheduler.host.timing import Stopwatch, timer
from rlinf_scheduler.observe.timekeeping import at_step
from rlinf_scheduler.planning import Placement
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.session import current_or_none
from rlinf_scheduler.session.membership import Draining, GroupMembers, GroupMembership
from rlinf_scheduler.worker.device_lock import DeviceLock, called_in_with
from rlinf_scheduler.worker.offload import Offload, TorchMemory
from rlinf_scheduler.worker.routed import Routed, members_of
from rlinf_scheduler.worker.torch_devices import (
    ClassFact,
    Live,
    torch_device_of,
    torch_platform_of,
    torch_type_of,
    vendor_of,
)

if TYPE_CHECKING:  # loaded by those who use it only
    import torch

    from rlinf_scheduler.config.metrics import Reduction
    from rlinf_scheduler.events import ChildLost, Event
    from rlinf_scheduler.worker.group import WorkerGroup
    from rlinf_scheduler.worker.group_builder import GroupBuilder

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Worker")

_LOGGER = logging.getLogger("rlinf.worker")


@explains_calls
class Worker(Routed):
    """One rank of a component: derive, add methods, and launch a group of them.

        class Policy(Worker):
            def __init__(self, hidden_size: int):
                super().__init__()
                self.log_info(f"rank {self.rank} of {self.world_size}")

            def act(self, observation): ...

        group = Policy.create_group(hidden_size=64).launch(cluster, placement_strategy=strategy)
        actions = group.act(observation).wait()     # one result a rank, in rank order

    A class may have `on_resize(self, old, new)`, which every rank of `old` runs among its calls when the group grows or
    shrinks; one whose ranks run collectives must. `old` and `new` are `GroupMembers`; see `WorkerGroup.grow`.

    Everything below may be used from the first line of `__init__` on. Constructed outside a launched process, a
    worker is rank 0 of 1 and can compute, but not communicate.
    """

    _rlinf_role: Role
    logger: ClassVar[logging.Logger] = _LOGGER
    """What the log functions below write to; its lines appear in the driver under `rlinf.worker.<group>`."""

    _logger: ClassVar[logging.Logger] = _LOGGER  # for programs

    if not TYPE_CHECKING:  # whose parameters would be taken for those of the class

        def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
            """Give the new worker its identity."""
            worker = super().__new__(cls)
            # Here and not in __init__, so that a class whose __init__ forgets super().__init__() works all the same.
            worker._rlinf_take_place()
            return worker

    def __init__(
        self,
        *,
        parent_address: WorkerAddress | None = None,
        world_size: int | None = None,
        rank: int | None = None,
    ) -> None:
        """Nothing to do in a rank: the launch has told the process who it is.

        In a process that a rank started these arguments join the job below it, as `join_parent` does.

        Args:
            parent_address: the rank, or the worker below one, that started this process.
            world_size: how many such processes there are.
            rank: this one's number among them.

        Raises:
            ClusterError: as of `join_parent`.
        """
        if parent_address is not None or world_size is not None or rank is not None:
            if not isinstance(parent_address, WorkerAddress | None):
                raise ClusterError(f"parent_address={parent_address!r}: it is a WorkerAddress")
            from rlinf_scheduler.host.joining import join_parent  # noqa: PLC0415 - most workers are ranks

            join_parent(rank, world_size, parent=parent_address)
            self._rlinf_take_place()

    def _rlinf_take_place(self) -> None:
        self._rlinf_session = session = current_or_none()
        self._rlinf_role = (session and session.fact(Role)) or Role.alone()

    @classmethod
    def create_group(
        cls: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> GroupBuilder[T, WorkerGroup[T]]:
        """A group of this class, to be launched: `.launch(cluster, placement_strategy=...)`.

        Args:
            *args: handed to `__init__` of every rank; picklable.
            **kwargs: likewise.

        Raises:
            CallArgumentError: `__init__` does not take them.
        """
        # A rank launches nothing, mostly; what can takes longer to import than all else.
        from rlinf_scheduler.worker.group import WorkerGroup  # noqa: PLC0415
        from rlinf_scheduler.worker.group_builder import GroupBuilder  # noqa: PLC0415

        return GroupBuilder(cast(type[T], cls), args, kwargs, WorkerGroup)

    @staticmethod
    def join_parent(
        rank: int | None = None, world_size: int | None = None, *, timeout_s: float = 60.0
    ) -> WorkerAddress:
        """Join the job in a process that a rank started, by whatever means, as a worker below that rank.

            def serve():                        # in a process of multiprocessing, subprocess, vLLM, ...
                Worker.join_parent()            # the address "rollout:3/0"
                worker = Worker()
                worker.fetch_weights("policy", into=model)

        From then on every worker that is made here is that one: it sends and receives, has channels and weights, logs
        and times as ranks do, and is called by nobody. It ends with the process that started it. What it starts itself
        may join below it. A second call in a process that has joined gives its address.

        Args:
            rank: its number below that rank; None: the lowest one that no process has.
            world_size: how many there will be; None: not said, and 0 in `world_size`.
            timeout_s: how long the job's home may take, in seconds.

        Raises:
            ClusterError: no rank started this process, or that one is gone; another process has the number; or this
                process is a part of a job already.
            ClusterTimeout: the job's home does not answer in time.
        """
        from rlinf_scheduler.host.joining import join_parent  # noqa: PLC0415 - as above

        return join_parent(rank, world_size, timeout_s=timeout_s)

    def on_child_lost(self, callback: Callable[[ChildLost], object]) -> None:
        """Have `callback` called with each process that has joined below this worker and died while this one lives.

            self.on_child_lost(lambda lost: self.engine.fail(f"{lost.address}: {lost.reason}"))

        On the thread of events: it may wait, and holds up nothing but later events. What receives from such a process
        gets `PeerDied` beside this.

        Args:
            callback: called with its address and why it died.
        """
        if self._rlinf_session is None:
            return  # nobody joins below it
        from rlinf_scheduler.events import ChildLost  # noqa: PLC0415 - most ranks listen to no event

        def tell(event: Event) -> None:
            if isinstance(event, ChildLost):
                callback(event)

        self._rlinf_session.bus.subscribe(tell)

    # A program may set each of these, or have a method of that name: nothing of the library asks for them.

    @cached_property
    def info(self) -> WorkerInfo:
        """Who and where this worker is."""
        return self._rlinf_role.info

    @cached_property
    def address(self) -> WorkerAddress:
        """Its name in the job, `group:rank`."""
        return self._rlinf_role.info.address

    @cached_property
    def group_name(self) -> str:
        """Its group's name."""
        return self._rlinf_role.info.address.group

    @cached_property
    def rank(self) -> int:
        """Its number in the group, from 0."""
        return self._rlinf_role.info.address.rank

    @Live
    def members(self) -> GroupMembers:
        """The ranks that the group has now: it may grow and shrink."""
        return members_of(self)

    @Live
    def world_size(self) -> int:
        """How many ranks the group has now."""
        return members_of(self).world_size

    @Live
    def draining(self) -> bool:
        """Whether this rank leaves its group: what it has is to be finished, and no more work begun."""
        session = self._rlinf_session
        return session is not None and session.service(Draining).leaves

    @Live
    def draining_left_s(self) -> float | None:
        """How many seconds it has for that until it is ended by force; None as long as it stays."""
        return _draining_left_s(self)

    @cached_property
    def placement(self) -> Placement:
        """The node and the devices it was given."""
        return self._rlinf_role.info.placement

    @cached_property
    def hardware(self) -> tuple[Any, ...]:
        """What it was given, piece by piece: an `Accelerator`, a `Robot`, or what a plug-in makes of its own type.

        In the order of `placement.local_hardware_ranks`; empty for a worker on a bare node.
        """
        return self._rlinf_role.hardware

    @cached_property
    def local_rank(self) -> int:
        """Its number among its group's ranks on this node, as they were when it was started."""
        return self._rlinf_role.info.placement.local_rank

    @cached_property
    def local_world_size(self) -> int:
        """How many of its group's ranks were on this node when it was started."""
        return self._rlinf_role.info.placement.local_world_size

    @cached_property
    def num_restarts(self) -> int:
        """How many processes had its place before this one, and died; 0 for the first."""
        return self._rlinf_role.info.num_restarts

    @cached_property
    def seed(self) -> int:
        """The seed of its random numbers, from 0 to 2**32 - 1: its own, and the same in its successor.

        It is derived from the `seed` of the launch, the group and the rank; without such a seed, from one that was
        drawn for the job. 0 for a worker that was constructed directly.
        """
        return self._rlinf_role.info.seed

    @cached_property
    def node_rank(self) -> int:
        """Its node's number in the cluster."""
        return self._rlinf_role.info.placement.node_rank

    @property
    def cancelled(self) -> bool:
        """Whether the call that runs here was given up by its caller (see `GroupResult.cancel`).

        For methods that compute for long: those that wait in this library are ended there.
        """
        scope = current_scope()
        return bool(vars(self).get("cancelled", scope is not None and scope.cancelled))

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        vars(self)["cancelled"] = value

    @staticmethod
    @overload
    def timer(what: str) -> Stopwatch: ...

    @staticmethod
    @overload
    def timer(what: Callable[P, R]) -> Callable[P, R]: ...

    @staticmethod
    def timer(what: Any) -> Any:
        """Measure a part of a call: `with self.timer("generate"):`, `@Worker.timer` or `@Worker.timer("generate")`.

        What was measured travels with the result of the call, failed or not: `result.durations()`. Parts of one name
        add up. Outside a call nothing is kept.

        Args:
            what: a name; or, as a decorator, the method, which is measured under its own name.

        Raises:
            ConfigError: the method is a generator: its time depends on who iterates over it.
        """
        return timer(what)

    @staticmethod
    def at_step(number: int) -> AbstractContextManager[None]:
        """A block that belongs to a training step, for traces, metrics and profilers.

            with self.at_step(812):
                batch = trajectories.get_batch(batch_weight=4096)

        A trace says of what this thread or task puts and takes in it that it was at that step. `log_metrics` in it is
        of that step. Where `cluster.profiling` names this rank and the step, it is profiled.

        Args:
            number: the step's.
        """
        session = current_or_none()
        if session is None or job_settings(session).profiling is None:
            return at_step(number)
        block: AbstractContextManager[None] = of_room("profiling.steps:profiled_block")(session, number)
        return block

    def log_metrics(
        self, metrics: Mapping[str, Any], step: int | None = None, *, reduce: Reduction | None = None
    ) -> None:
        """Log numbers of a training step, which are reduced over the ranks of the group and written by the driver.

            self.log_metrics({"loss": loss, "return_max": best}, step=812)

        `cluster.metrics` of the config says where to; without it they go nowhere. It waits for nobody: what the driver
        does not take is given up, and counted.

        Args:
            metrics: by name. What a tensor or an array holds must be one number.
            step: the step's number; None: that of the block of `at_step`.
            reduce: "mean", "sum", "max" or "min" of all that ranks log of a name in a step; None: by the name's last
                word ("tokens_total" and "count" are summed), else the mean.

        Raises:
            ConfigError: a name is no text, a value no number, or the step no whole number from 0.
        """
        info = self._rlinf_role.info
        of_room("metrics.sending:log_metrics")(
            self._rlinf_session,
            info.address.group,
            str(info.address),
            members_of(self).world_size,
            (metrics, step, reduce),
        )

    # The documents' programs use these names.
    _rank = cached_property[int](lambda self: self._rlinf_role.info.address.rank)
    _world_size = Live[int](lambda self: members_of(self).world_size)
    _local_rank = cached_property[int](lambda self: self._rlinf_role.info.placement.local_rank)
    _local_world_size = cached_property[int](lambda self: self._rlinf_role.info.placement.local_world_size)
    _node_rank = cached_property[int](lambda self: self._rlinf_role.info.placement.node_rank)
    _group_name = cached_property[str](lambda self: self._rlinf_role.info.address.group)
    _worker_address = cached_property[WorkerAddress](lambda self: self._rlinf_role.info.address)

    @cached_property
    def torch_device(self) -> torch.device:
        """The first device that it was given, as torch numbers what it sees: `torch.device("cuda:0")`; or the CPU.

        Raises:
            ClusterError: what torch calls the devices of that vendor is not known.
        """
        return torch_device_of(self._rlinf_role.info.placement, vendor_of(self))

    accelerator_type: ClassFact[str] = ClassFact(str)
    """The vendor of its accelerators, such as "NVIDIA"; "" without any. On the class too, see `torch_platform`."""

    torch_device_type: ClassFact[str] = ClassFact(torch_type_of)
    """What torch calls its devices: "cuda", "npu", ...; "cpu" without any. On the class too, see `torch_platform`."""

    torch_platform: ClassFact[Any] = ClassFact(torch_platform_of)
    """The part of torch that is about its devices: `torch.cuda`, `torch.npu`, ...

    Without any it is `torch.cpu` with those functions of `torch.cuda` that have nothing to do there: `empty_cache()`,
    `set_device(...)`, `memory_allocated()`, `stream(...)` and their like; `is_available()` is False.

    `Worker.torch_platform`, on the class, is that of the rank which this process is, for functions that have no worker
    at hand; in a process that is none, that of this machine's accelerators. A process that is to become a rank, and has
    not been told which, gets a ClusterError; so does who asks for what torch does not have.
    """

    @called_in_with
    def device_lock(
        self, timeout_s: float | None = None, *, offload: Sequence[object] = (), group: bool = False
    ) -> DeviceLock:
        """A block in which this worker has its devices alone, among all that take turns on them so.

            with self.device_lock(offload=[self.model, self.optimizer]):
                self.train_step(batch)

        `with self.device_lock:`, without parentheses, is the block without options.

        For ranks of several groups that share devices. They come in the order in which they asked; who has several
        devices gets all at once. It is given back at the end of the block, and when this process dies. A worker
        without devices waits for nobody.

        Args:
            timeout_s: how long to wait for its turn, in seconds; None: as long as it takes.
            offload: what is on `torch_device` in this block only: modules with their gradients and buffers, optimizers
                with their state, tensors, and dicts, lists and tuples of them. At the block's beginning what of it is
                in host memory comes to the device; at its end all goes to host memory, pinned where there is room, and
                the device's memory to the others. They stay the same objects. The timers "onload" and "offload" say
                what it takes. Of modules and tensors in shards (FSDP2, DTensor) this rank's shards move.
            group: all ranks of the group have their devices together, so that they may run collectives in the block:
                each enters it, the turn begins when the last one has and all devices are theirs, and ends when the last
                one has left. Ranks that wait have nothing yet, in whatever order they and other groups come.

        Raises (from `with`):
            DeviceLockTimeout: others had the devices until the deadline, or a rank of the group has not entered; the
                text says who.
            PeerDied: with `group`, a rank that has not entered is gone.

        Raises:
            ConfigError: there is something in `offload` that cannot be moved; or this worker is a rank of no group.
        """
        session, info = self._rlinf_session, self._rlinf_role.info
        if group and info.address.parent is not None:
            raise ConfigError(f"device_lock(group=True): '{info.address}' is a rank of no group")
        place = session.fact(GroupMembership) if group and session is not None else None
        placement = info.placement
        numbers = placement.local_hardware_ranks if placement.has_accelerators else ()
        devices = [f"device {number} of node {placement.node_rank}" for number in numbers]
        moved = None
        if offload:
            vendor = vendor_of(self)
            device = torch_device_of(placement, vendor)
            if device.type != "cpu":
                moved = Offload(offload, TorchMemory(device, torch_platform_of(vendor)))
        return DeviceLock(session, devices, timeout_s, moved, place)

    def acquire_free_port(self, max_port_num: int | None = None) -> int:
        """A TCP port that is free on this node, and that no other worker there is given as long as this one lives.

        Args:
            max_port_num: the highest that will do, for a server that takes another one above it; None: any.

        Raises:
            ClusterError: none is free.
        """
        session = self._rlinf_session
        return acquire_port(
            ports=session.messenger.ports if session is not None else None, highest=max_port_num
        )

    def log_on_first_rank(self, message: str) -> None:
        """As `log_info`, on the first rank of the group only: for what every rank would say."""
        first, *_ = members_of(self).ranks or (0,)  # who joined may not know how many there are
        if self._rlinf_role.info.address.rank == first:
            _log(logging.INFO, message)

    def log_debug(self, message: str) -> None:
        """Log for those who look for a fault; shown where the driver's logging shows DEBUG."""
        _log(logging.DEBUG, message)

    def log_info(self, message: str) -> None:
        """Log a line; it appears in the driver under the logger `rlinf.worker.<group>`."""
        _log(logging.INFO, message)

    def log_warning(self, message: str) -> None:
        """Log something that someone should look at."""
        _log(logging.WARNING, message)

    def log_error(self, message: str) -> None:
        """Log a failure."""
        _log(logging.ERROR, message)


def _draining_left_s(worker: Worker) -> float | None:
    session = worker._rlinf_session
    return None if session is None else session.service(Draining).left_s


def _log(level: int, message: str) -> None:
    _LOGGER.log(level, "%s", message)
