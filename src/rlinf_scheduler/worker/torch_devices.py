"""What torch calls the devices of a worker, and what is told of them on its class."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.hardware.vendors import vendor_named
from rlinf_scheduler.planning import Placement

if TYPE_CHECKING:  # loaded by those who ask only
    import torch
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Self, TypeVar, overload

from rlinf_scheduler.hardware.vendors import local_vendor
from rlinf_scheduler.host.info import Role, job_topology, own_role
from rlinf_scheduler.session import Session, current_or_none
from rlinf_scheduler.worker.environment import device_index

V = TypeVar("V")


def torch_type_of(accelerator_type: str) -> str:
    """What torch calls the devices of a vendor: "cuda", "npu", ...; "cpu" without any.

    Args:
        accelerator_type: the vendor; "" for a worker without accelerators.

    Raises:
        ClusterError: that vendor's name in torch is not known.

    >>> torch_type_of("AMD"), torch_type_of("")
    ('cuda', 'cpu')
    """
    if not accelerator_type:
        return "cpu"
    vendor = vendor_named(accelerator_type)
    if vendor is None or not vendor.torch_type:
        message = f"what torch calls the accelerators of '{accelerator_type}' is not known here"
        raise ClusterError(
            f"{message}: name a torch device yourself, or give the vendor's plug-in a torch_type"
        )
    return vendor.torch_type


def torch_device_of(placement: Placement, accelerator_type: str) -> torch.device:
    """The first device that a worker was given, as torch numbers what its process sees."""
    kind = torch_type_of(accelerator_type)
    numbers = () if kind == "cpu" else (device_index(placement),)
    return importlib.import_module("torch").device(kind, *numbers)


def torch_platform_of(accelerator_type: str) -> Any:
    """The part of torch that is about a vendor's devices: `torch.cuda`, `torch.npu`, ...; without any, `CPU`.

    Raises:
        ClusterError: torch has no such part; its vendor's package was not imported, perhaps.
    """
    kind = torch_type_of(accelerator_type)
    if kind == "cpu":
        return CPU
    platform = getattr(importlib.import_module("torch"), kind, None)
    if platform is None:
        raise ClusterError(
            f"torch has no torch.{kind} here: import its vendor's package (torch_{kind}) first"
        )
    return platform


def _nothing(*_args: object, **_options: object) -> None:
    """Nothing to do."""


class CpuStream:
    """A stream, or an event, where each operation is done when it returns: there is nothing to wait for."""

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    synchronize = wait = record = wait_stream = wait_event = _nothing

    def record_event(self, event: CpuStream | None = None) -> CpuStream:
        """Return the event of what was begun, which is done."""
        return CpuStream() if event is None else event

    def query(self) -> bool:
        """Return whether all is done: it is."""
        return True


class CpuPlatform:
    """`torch.cpu`, with those functions of `torch.cuda` that it lacks: no memory to free, no streams to wait for.

    Programs ask by `is_available` whether there are accelerators: there are none.
    """

    Stream = Event = CpuStream
    set_device = empty_cache = ipc_collect = staticmethod(_nothing)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch").cpu, name)

    def is_available(self) -> bool:
        """Return whether there are accelerators: there are none."""
        return False

    def is_initialized(self) -> bool:
        """Return whether the functions here can be used: they can."""
        return True

    def device_count(self) -> int:
        """Return how many accelerators there are: none."""
        return 0

    def current_stream(self, device: object = None) -> CpuStream:
        """Return where operations are begun."""
        return CpuStream()

    def stream(self, stream: object) -> AbstractContextManager[None]:
        """Make a block whose operations are begun in a stream."""
        return nullcontext()

    def memory_allocated(self, device: object = None) -> int:
        """Return the bytes of an accelerator's memory that are used: 0."""
        return 0

    memory_reserved = max_memory_allocated = memory_allocated

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        """Return the free and the total bytes of an accelerator's memory: none."""
        return 0, 0


CPU = CpuPlatform()


class Live(Generic[V]):
    """An attribute of workers that is read anew each time; one that a program sets on a worker wins.

    Args:
        read: reads it of a worker.
    """

    def __init__(self, read: Callable[[Any], V]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    @overload
    def __get__(self, worker: None, _owner: type) -> Self: ...

    @overload
    def __get__(self, worker: object, _owner: type) -> V: ...

    def __get__(self, worker: Any, _owner: type) -> Any:
        return self if worker is None else self._read(worker)


class ClassFact(Generic[V]):
    """An attribute of workers that is on their class too; one that a program sets on a worker wins.

    Args:
        read: makes it of the vendor of the accelerators, "" without any.
    """

    def __init__(self, read: Callable[[str], V]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, worker: Any, _owner: type) -> V:
        return self._read(vendor_here() if worker is None else vendor_of(worker))


def vendor_of(worker: Any) -> str:
    """The vendor of a worker's accelerators; "" without any."""
    session, role = worker._rlinf_session, worker._rlinf_role
    return _vendor_of_placement(session, role.info.placement)


def vendor_here() -> str:
    """The vendor of the accelerators of the rank that this process is; of one that is none, of this machine's.

    Raises:
        ClusterError: this process is to become a rank, and has not been told which.
    """
    role: Role | None = own_role()
    if role is None:
        return local_vendor(os.environ)
    return _vendor_of_placement(current_or_none(), role.info.placement)


def _vendor_of_placement(session: Session | None, placement: Placement) -> str:
    # A job of plain processes knows of no nodes.
    if session is None or not placement.has_accelerators:
        return ""
    return job_topology(session).nodes[placement.node_rank].accelerator_type
