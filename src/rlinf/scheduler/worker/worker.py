"""`Worker`: the class that users derive their components from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    Self,
    SupportsIndex,
    TypeVar,
    cast,
    overload,
)

from rlinf.scheduler.channel import Channel
from rlinf.scheduler.channel.client import CONNECT_TIMEOUT_S
from rlinf.scheduler.channel.spec import SUCCESSOR_S
from rlinf.scheduler.comm import WAIT_S, AsyncHandle
from rlinf.scheduler.comm.cancellation import current_scope
from rlinf.scheduler.comm.directory import DEFAULT_TIMEOUT_S
from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.host.info import Role, WorkerAddress, WorkerInfo, job_topology
from rlinf.scheduler.host.ports import acquire_port
from rlinf.scheduler.host.timing import Timer, timer
from rlinf.scheduler.mailbox import Groups, Mailbox, open_mailbox
from rlinf.scheduler.planning import Placement
from rlinf.scheduler.session import Session, current_or_none, current_session
from rlinf.scheduler.weights import open_weights
from rlinf.scheduler.worker.device_lock import DeviceLock
from rlinf.scheduler.worker.group import GroupBuilder
from rlinf.scheduler.worker.torch_devices import torch_device_of, torch_platform_of

if TYPE_CHECKING:  # loaded by those who use it only
    import torch

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Worker")


class Worker:
    """One rank of a component: derive, add methods, and launch a group of them.

        class Policy(Worker):
            def __init__(self, hidden_size: int):
                super().__init__()
                self.log_info(f"rank {self.rank} of {self.world_size}")

            def act(self, observation): ...

        group = Policy.create_group(hidden_size=64).launch(cluster, placement_strategy=strategy)
        actions = group.act(observation).wait()     # one result a rank, in rank order

    Everything below may be used from the first line of `__init__` on. Constructed outside a launched process, a
    worker is rank 0 of 1 and can compute, but not communicate.
    """

    _session: Session | None
    _role: Role
    _logger: ClassVar[logging.Logger] = logging.getLogger("rlinf.worker")

    if not TYPE_CHECKING:  # whose parameters would be taken for those of the class

        def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
            """Give the new worker its identity."""
            worker = super().__new__(cls)
            # Here and not in __init__, so that a class whose __init__ forgets super().__init__() works all the same.
            worker._session = current_or_none()
            worker._role = (worker._session and worker._session.fact(Role)) or Role.alone()
            return worker

    def __init__(self) -> None:
        """Nothing to do: the launch has told the process who it is."""

    @classmethod
    def create_group(cls: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> GroupBuilder[T]:
        """A group of this class, to be launched: `.launch(cluster, placement_strategy=...)`.

        Args:
            *args: handed to `__init__` of every rank; picklable.
            **kwargs: likewise.

        Raises:
            CallArgumentError: `__init__` does not take them.
        """
        return GroupBuilder(cast(type[T], cls), args, kwargs)

    @property
    def info(self) -> WorkerInfo:
        """Who and where this worker is."""
        return self._role.info

    @property
    def address(self) -> WorkerAddress:
        """Its name in the job, `group:rank`."""
        return self.info.address

    @property
    def group_name(self) -> str:
        """Its group's name."""
        return self.info.address.group

    @property
    def rank(self) -> int:
        """Its number in the group, from 0."""
        return self.info.address.rank

    @property
    def world_size(self) -> int:
        """How many ranks the group has."""
        return self.info.world_size

    @property
    def placement(self) -> Placement:
        """The node and the devices it was given."""
        return self.info.placement

    @property
    def hardware(self) -> tuple[Any, ...]:
        """What it was given, piece by piece: an `Accelerator`, a `Robot`, or what a plug-in makes of its own type.

        In the order of `placement.local_hardware_ranks`; empty for a worker on a bare node.
        """
        return self._role.hardware

    @property
    def local_rank(self) -> int:
        """Its number among its group's ranks on this node."""
        return self.placement.local_rank

    @property
    def local_world_size(self) -> int:
        """How many of its group's ranks are on this node."""
        return self.placement.local_world_size

    @property
    def node_rank(self) -> int:
        """Its node's number in the cluster."""
        return self.placement.node_rank

    @property
    def cancelled(self) -> bool:
        """Whether the call that runs here was given up by its caller (see `GroupResult.cancel`).

        For methods that compute for long: those that wait in this library are ended there.
        """
        scope = current_scope()
        return scope is not None and scope.cancelled

    @staticmethod
    @overload
    def timer(what: str) -> Timer: ...

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

    @property
    def _mailbox(self) -> Mailbox:
        if self._session is None:
            raise ClusterError("this worker was constructed directly: launch its group to communicate")
        return self._session.service(open_mailbox)

    # The documents' programs use these names.
    _rank = rank
    _world_size = world_size
    _local_rank = local_rank
    _local_world_size = local_world_size
    _node_rank = node_rank
    _group_name = group_name
    _worker_address = address

    @property
    def torch_device(self) -> torch.device:
        """The first device that it was given, as torch numbers what it sees: `torch.device("cuda:0")`; or the CPU.

        Raises:
            ClusterError: what torch calls the devices of that vendor is not known.
        """
        return torch_device_of(self.placement, self._accelerator_type)

    @property
    def torch_platform(self) -> Any:
        """The part of torch that is about its devices: `torch.cuda`, `torch.npu`, ...; `torch.cpu` without any.

        Raises:
            ClusterError: torch has no such part here, or its name is not known.
        """
        return torch_platform_of(self.placement, self._accelerator_type)

    @property
    def _accelerator_type(self) -> str:
        if self._session is None:
            return ""
        return job_topology(self._session).nodes[self.node_rank].accelerator_type

    def device_lock(self, timeout_s: float | None = None) -> DeviceLock:
        """A block in which this worker has its devices alone, among all that take turns on them so.

            with self.device_lock():
                self.model.to(self.torch_device)

        For ranks of several groups that share devices. They come in the order in which they asked; who has several
        devices gets all at once. It is given back at the end of the block, and when this process dies. A worker
        without devices waits for nobody.

        Args:
            timeout_s: how long to wait for its turn, in seconds; None: half an hour.

        Raises (from `with`):
            DeviceLockTimeout: others had the devices until the deadline; the text says who.
        """
        placement = self.placement
        numbers = placement.local_hardware_ranks if placement.has_accelerators else ()
        devices = [f"device {number} of node {placement.node_rank}" for number in numbers]
        return DeviceLock(self._session, devices, timeout_s)

    def acquire_free_port(self) -> int:
        """A TCP port that is free on this node, and that no other worker there is given as long as this one lives.

        Raises:
            ClusterError: none is free.
        """
        return acquire_port()

    def log_on_first_rank(self, message: str) -> None:
        """As `log_info`, on rank 0 only: for what every rank would say."""
        if self.rank == 0:
            self.log_info(message)

    def log_debug(self, message: str) -> None:
        """Log for those who look for a fault; shown where the driver's logging shows DEBUG."""
        self._log(logging.DEBUG, message)

    def log_info(self, message: str) -> None:
        """Log a line; it appears in the driver under the logger `rlinf.worker.<group>`."""
        self._log(logging.INFO, message)

    def log_warning(self, message: str) -> None:
        """Log something that someone should look at."""
        self._log(logging.WARNING, message)

    def log_error(self, message: str) -> None:
        """Log a failure."""
        self._log(logging.ERROR, message)

    def _log(self, level: int, message: str) -> None:
        self._logger.log(level, "%s", message)

    @overload
    def send(
        self,
        obj: Any,
        dst_group_name: str,
        dst_rank: int,
        async_op: Literal[False] = False,
        timeout_s: float | None = ...,
    ) -> None: ...

    @overload
    def send(
        self,
        obj: Any,
        dst_group_name: str,
        dst_rank: int,
        async_op: Literal[True],
        timeout_s: float | None = ...,
    ) -> AsyncHandle[None]: ...

    @overload
    def send(
        self,
        obj: Any,
        dst_group_name: str,
        dst_rank: int,
        async_op: bool,
        timeout_s: float | None = ...,
    ) -> AsyncHandle[None] | None: ...

    def send(
        self,
        obj: Any,
        dst_group_name: str,
        dst_rank: int,
        async_op: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> AsyncHandle[None] | None:
        """Send an object to another worker; its `recv` gets the objects of one sender in the order of their sends.

        Args:
            obj: any picklable object; tensors and arrays in it travel as bytes, not through pickle. With `async_op` it
                is sent as it is during this call, whatever becomes of it afterwards.
            dst_group_name: the receiver's group.
            dst_rank: its rank there.
            async_op: return a handle at once; else return when the receiver's process holds the object.
            timeout_s: how long to wait, in seconds; None: as long as it takes.

        Raises:
            PeerNotFound: no such worker at the deadline.
            PeerDied: the receiver is gone.
            CommTimeout: the receiver had no room at the deadline.
        """
        handle = self._mailbox.send(
            obj, f"{dst_group_name}:{dst_rank}", timeout_s=timeout_s, wait_s=_room_s(async_op)
        )
        return handle if async_op else handle.wait()

    @overload
    def recv(
        self,
        src_group_name: str,
        src_rank: int,
        async_op: Literal[False] = False,
        timeout_s: float | None = ...,
    ) -> Any: ...

    @overload
    def recv(
        self, src_group_name: str, src_rank: int, async_op: Literal[True], timeout_s: float | None = ...
    ) -> AsyncHandle[Any]: ...

    @overload
    def recv(
        self, src_group_name: str, src_rank: int, async_op: bool, timeout_s: float | None = ...
    ) -> Any: ...

    def recv(
        self,
        src_group_name: str,
        src_rank: int,
        async_op: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """The next object that a worker sent to this one.

        Args:
            src_group_name: the sender's group.
            src_rank: its rank there.
            async_op: return a handle at once.
            timeout_s: how long to wait, in seconds; None: as long as it takes.

        Raises:
            PeerDied: the sender is gone, and nothing of it is left to receive.
            CommTimeout: nothing came before the deadline.
        """
        handle = self._mailbox.recv(f"{src_group_name}:{src_rank}", timeout_s=timeout_s)
        return handle if async_op else handle.wait()

    @overload
    def send_tensor(
        self,
        tensor: torch.Tensor,
        dst_group_name: str,
        dst_rank: int,
        async_op: Literal[False] = False,
        timeout_s: float | None = ...,
    ) -> None: ...

    @overload
    def send_tensor(
        self,
        tensor: torch.Tensor,
        dst_group_name: str,
        dst_rank: int,
        async_op: Literal[True],
        timeout_s: float | None = ...,
    ) -> AsyncHandle[None]: ...

    @overload
    def send_tensor(
        self,
        tensor: torch.Tensor,
        dst_group_name: str,
        dst_rank: int,
        async_op: bool,
        timeout_s: float | None = ...,
    ) -> AsyncHandle[None] | None: ...

    def send_tensor(
        self,
        tensor: Any,
        dst_group_name: str,
        dst_rank: int,
        async_op: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> AsyncHandle[None] | None:
        """Send one tensor to a worker that calls `recv_tensor`; errors as of `send`."""
        handle = self._mailbox.send_tensor(
            tensor, f"{dst_group_name}:{dst_rank}", timeout_s=timeout_s, wait_s=_room_s(async_op)
        )
        return handle if async_op else handle.wait()

    @overload
    def recv_tensor(
        self,
        tensor: torch.Tensor,
        src_group_name: str,
        src_rank: int,
        async_op: Literal[False] = False,
        timeout_s: float | None = ...,
    ) -> torch.Tensor: ...

    @overload
    def recv_tensor(
        self,
        tensor: torch.Tensor,
        src_group_name: str,
        src_rank: int,
        async_op: Literal[True],
        timeout_s: float | None = ...,
    ) -> AsyncHandle[torch.Tensor]: ...

    @overload
    def recv_tensor(
        self,
        tensor: torch.Tensor,
        src_group_name: str,
        src_rank: int,
        async_op: bool,
        timeout_s: float | None = ...,
    ) -> torch.Tensor | AsyncHandle[torch.Tensor]: ...

    def recv_tensor(
        self,
        tensor: Any,
        src_group_name: str,
        src_rank: int,
        async_op: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Receive one tensor into `tensor`, in place, from a worker that calls `send_tensor`.

        Args:
            tensor: where the values go: of the shape and dtype that the sender sends.
            src_group_name: the sender's group.
            src_rank: its rank there.
            async_op: return a handle at once; `tensor` is complete when the handle is done and waited for.
            timeout_s: how long to wait, in seconds; None: as long as it takes.

        Raises:
            CommError: shape or dtype differ; nothing is taken.
            PeerDied: the sender is gone.
            CommTimeout: nothing came before the deadline.
        """
        handle = self._mailbox.recv_tensor(tensor, f"{src_group_name}:{src_rank}", timeout_s=timeout_s)
        return handle if async_op else handle.wait()

    def publish_weights(self, name: str, state_dict: Mapping[str, Any], version: int) -> None:
        """Make new weights the ones that `fetch_weights` gets from now on, in any worker of the job.

        They are written once, on this node, and stay until the next version replaces them. This waits for no reader,
        and no reader sees a mixture of versions.

        Args:
            name: what they are called; one living worker publishes under a name.
            state_dict: tensors (on any device) and numpy arrays by key; free to be changed after this call.
            version: a whole number, larger than that of the version before.

        Raises:
            WeightsError: the version does not grow, or some value is neither tensor nor array.
            NameTaken: another living worker publishes under that name.
        """
        current_session().service(open_weights).publish(name, state_dict, version)

    @overload
    def fetch_weights(
        self,
        name: str,
        into: Any,
        min_version: int | None = None,
        async_op: Literal[False] = False,
        timeout_s: float | None = ...,
    ) -> int: ...

    @overload
    def fetch_weights(
        self,
        name: str,
        into: Any,
        min_version: int | None = None,
        *,
        async_op: Literal[True],
        timeout_s: float | None = ...,
    ) -> AsyncHandle[int]: ...

    @overload
    def fetch_weights(
        self,
        name: str,
        into: Any,
        min_version: int | None = None,
        *,
        async_op: bool,
        timeout_s: float | None = ...,
    ) -> int | AsyncHandle[int]: ...

    def fetch_weights(
        self,
        name: str,
        into: Any,
        min_version: int | None = None,
        async_op: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Copy the newest published weights into tensors that are there already; the version's number.

        Args:
            name: what they were published as.
            into: a `torch.nn.Module`, or a dict of tensors and numpy arrays: they are overwritten in place, and keep
                their dtypes and devices.
            min_version: wait for this version or a newer one; None: for any.
            async_op: return a handle at once. It is done when such a version is there; `into` is overwritten, in the
                thread that does so, when the handle is waited for.
            timeout_s: how long to wait, in seconds; None: as long as it takes; 0: take what is there now.

        Raises:
            WeightsMismatch: keys or shapes differ from those of `into`; nothing was written.
            PeerNotFound: nobody publishes under that name at the deadline.
            PeerDied: the worker that published is gone.
            CommTimeout: no such version at the deadline; it says which one is there.
        """
        handle = (
            current_session()
            .service(open_weights)
            .fetch(name, into, min_version=min_version, timeout_s=timeout_s)
        )
        return handle if async_op else handle.wait()

    @overload
    def broadcast(
        self,
        obj: Any = None,
        groups: Groups = (),
        src: tuple[str, SupportsIndex] | None = None,
        async_op: Literal[False] = False,
        timeout_s: float | None = ...,
    ) -> Any: ...

    @overload
    def broadcast(
        self,
        obj: Any = None,
        groups: Groups = (),
        src: tuple[str, SupportsIndex] | None = None,
        *,
        async_op: Literal[True],
        timeout_s: float | None = ...,
    ) -> AsyncHandle[Any]: ...

    @overload
    def broadcast(
        self,
        obj: Any = None,
        groups: Groups = (),
        src: tuple[str, SupportsIndex] | None = None,
        *,
        async_op: bool,
        timeout_s: float | None = ...,
    ) -> Any: ...

    def broadcast(
        self,
        obj: Any = None,
        groups: Groups = (),
        src: tuple[str, SupportsIndex] | None = None,
        async_op: bool = False,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Give one object to every member of `groups`; each of them calls this, with the same `groups` and `src`.

            weights = self.broadcast(weights, groups=[("actor", [0]), ("rollout", [0, 1, 2])], src=("actor", 0))

        Members may call in any order. Broadcasts of one source to the same members are received in the order of
        its calls; those to other members, and `send`, do not mix with them. On every node the object is written
        once, however many members run there; the arrays and tensors that a member gets are its own all the same.

        Args:
            obj: what to send; looked at on the source only, and not changed until the call returns. With `async_op`
                it is sent as it is during this call.
            groups: the members, the source among them: groups' names with a rank, or a list of ranks.
            src: the source's group and rank; None: the first member in `groups`.
            async_op: return an `AsyncHandle` of the object at once.
            timeout_s: how long to wait, in seconds; None: as long as it takes.

        Returns:
            The object: on the source `obj` itself, once every member's process holds it.

        Raises:
            CommError: a member is named twice, or this worker or the source is none.
            PeerDied: the source is gone, and nothing of it is left to receive; on the source: the members named
                in it are gone, and the others have the object.
            PeerNotFound: the source, or on the source the one member that is missing, was not there at the deadline.
            CommTimeout: the source had not called at the deadline; on the source: the members named in it had not
                started, or had no room, and the others have the object.
        """
        handle = self._mailbox.broadcast(obj, groups, src, timeout_s=timeout_s, wait_s=_room_s(async_op))
        return handle if async_op else handle.wait()

    @classmethod
    def create_channel(
        cls,
        channel_name: str,
        group_affinity: str | None = None,
        group_rank_affinity: int | None = None,
        maxsize: int = 0,
        *,
        max_bytes: int | None = None,
        producers: int | None = None,
        successor_s: float = SUCCESSOR_S,
    ) -> Channel:
        """Create a channel and return this process's end of it.

        Args:
            channel_name: its name in the job.
            group_affinity: the group beside whose worker the channel's process runs; None: this worker's group.
            group_rank_affinity: the rank in that group; None: this worker's rank, or 0 of another group.
            maxsize: how many items each of its queues holds before `put` waits; 0: no limit.
            max_bytes: how many bytes all its queues hold before `put` waits; see `Channel.create`, like the others.
            producers: how many there will be; the channel ends when the last of them is done.
            successor_s: how long a producer that failed or died may be replaced before it counts as done, in seconds.

        Raises:
            ChannelExists: a channel of that name is there already.
        """
        return Channel.create(
            channel_name,
            maxsize=maxsize,
            group_affinity=group_affinity,
            group_rank_affinity=group_rank_affinity,
            max_bytes=max_bytes,
            producers=producers,
            successor_s=successor_s,
        )

    @classmethod
    def connect_channel(cls, channel_name: str, timeout_s: float | None = CONNECT_TIMEOUT_S) -> Channel:
        """This process's end of a channel that someone created, or creates before the deadline.

        Args:
            channel_name: its name in the job.
            timeout_s: how long to wait for that, in seconds; None: as long as it takes.

        Raises:
            ChannelNotFound: no channel of that name at the deadline.
        """
        return Channel.connect(channel_name, timeout_s=timeout_s)


def _room_s(async_op: bool) -> float:
    """How long a call may wait for shared memory: one that returns a handle not at all."""
    return 0.0 if async_op else WAIT_S
