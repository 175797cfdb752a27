"""Buckets on NVIDIA devices: memory that torch's allocator knows nothing of, shared by CUDA IPC.

Users' tensors are never exported: what torch allocates may lie in memory that cannot be shared (expandable segments),
and always in memory that others of its tensors lie in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.devices.cuda_api import HANDLE_BYTES, CudaApi
from rlinf_scheduler.devices.driver import BucketMemory, DeviceDriver, DeviceUnusable

logger = Reporter(__name__)

_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_IN_CONTAINERS = (
    "both processes must see the device, and the kernel must let one open what the other shares: in containers, the "
    "same one, or a shared IPC and PID namespace (docker: --ipc=host --pid=host)"
)


class _Interface:
    """What torch makes a tensor of."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "version": 2,
            "data": (address, False),
            "shape": (size_bytes,),
            "typestr": "|u1",
            "strides": None,
        }


class CudaDriver:
    """The CUDA devices that torch shows to this process; see `DeviceDriver`.

    Args:
        torch: the module, with CUDA initialised.
        api: the driver's library.
    """

    def __init__(self, torch: Any, api: CudaApi) -> None:
        self._torch = torch
        self._api = api
        # By torch's index. Other processes may count them otherwise.
        self._uuids: dict[int, str] = {}
        self._streams: dict[int, Any] = {}
        _tell_of_expandable_segments()

    def device_of(self, tensor: Any) -> str:
        """The UUID of the device that a tensor is on; "" if it is none of these, or cannot share memory."""
        return self._uuid(tensor.device.index) if tensor.is_cuda else ""

    def devices(self) -> Sequence[str]:
        """The UUIDs of the devices that this process sees and can share memory of; from any thread."""
        there = (self._uuid(index) for index in range(self._torch.cuda.device_count()))
        return [device for device in there if device]

    def empty(self, device: str, size_bytes: int) -> Any:
        """A new `torch.Tensor` of uint8 on a device: memory of the calling thread's stream there."""
        torch = self._torch
        return torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{self._index(device)}")

    def free_bytes(self, device: str) -> tuple[int, int]:
        """How much memory a device has free, and in all."""
        return self._api.memory(self._index(device))

    def trim(self, device: str) -> None:
        """Give back what torch keeps of a device and does not use."""
        with self._torch.cuda.device(self._index(device)):
            self._torch.cuda.empty_cache()

    def allocate(self, device: str, size_bytes: int) -> BucketMemory:
        """Memory that other processes can open."""
        address = self._api.allocate(self._index(device), size_bytes)
        return self._memory(device, address, size_bytes, self._api.free)

    def handle(self, memory: BucketMemory) -> bytes:
        """What another process opens memory of this one by."""
        return self._api.handle(self._index(memory.device), memory.token)

    def free(self, memory: BucketMemory) -> None:
        """Give memory of this process back."""
        self._api.free(self._index(memory.device), memory.token)

    def open(self, device: str, size_bytes: int, handle: bytes) -> BucketMemory:
        """Memory of another process."""
        if len(handle) != HANDLE_BYTES:
            raise DeviceUnusable(f"a handle of CUDA has {HANDLE_BYTES} bytes, not {len(handle)}")
        try:
            address = self._api.open(self._index(device), handle)
        except DeviceUnusable as error:
            raise DeviceUnusable(f"{error}; {_IN_CONTAINERS}") from error
        return self._memory(device, address, size_bytes, self._api.close)

    def close(self, memory: BucketMemory) -> None:
        """Undo `open`; nothing reads or writes the memory."""
        self._api.close(self._index(memory.device), memory.token)

    def pin(self, address: int, size_bytes: int) -> None:
        """Let the devices read host memory by themselves; whole pages of this process."""
        used = self._in_use()
        if not used:
            raise DeviceUnusable("this process has not used a device yet")
        self._api.register(used[0], address, size_bytes)

    def unpin(self, address: int) -> None:
        """Undo `pin`; no device reads the memory."""
        self._api.unregister(self._in_use()[0], address)

    def settle(self) -> None:
        """Return when the devices have done all that this process has asked of them until now."""
        for index in self._in_use():
            self._api.synchronize(index)

    def _in_use(self) -> list[int]:
        return [index for index in range(self._torch.cuda.device_count()) if self._api.is_in_use(index)]

    def mark(self, device: str) -> Any:
        """What this thread has asked of a device until now, for `copying`."""
        index = self._index(device)
        with self._torch.cuda.device(index):
            event = self._torch.cuda.Event()
            event.record(self._torch.cuda.current_stream(index))
        return event

    @contextmanager
    def copying(self, device: str, mark: Any = None) -> Iterator[None]:
        """Copy on a stream of its own, which is waited for: a version is told of when it is there."""
        cuda, index = self._torch.cuda, self._index(device)
        with cuda.device(index):
            stream = self._stream(index)
            if mark is not None:
                stream.wait_event(mark)
            try:
                with cuda.stream(stream):
                    yield
            finally:
                stream.synchronize()

    def _stream(self, index: int) -> Any:
        stream = self._streams.get(index)
        if stream is None:
            # The first stream of torch's own makes all of a pool's: tens of MiB of the device in each process.
            address = self._api.stream(index)
            stream = self._streams[index] = self._torch.cuda.ExternalStream(address, device=index)
        return stream

    def _memory(
        self, device: str, address: int, size_bytes: int, undo: Callable[[int, int], None]
    ) -> BucketMemory:
        index = self._index(device)
        try:
            with self._torch.cuda.device(index):
                data = self._torch.as_tensor(_Interface(address, size_bytes), device=f"cuda:{index}")
        except (RuntimeError, TypeError, ValueError) as error:
            undo(index, address)
            raise DeviceUnusable(f"torch makes no tensor of memory of CUDA's: {error}") from error
        return BucketMemory(device, data, address)

    def _index(self, device: str) -> int:
        for index in range(self._torch.cuda.device_count()):
            if self._uuid(index) == device:
                return index
        raise DeviceUnusable(f"this process does not see the device {device}")

    def _uuid(self, index: int) -> str:
        known = self._uuids.get(index)
        if known is None:
            try:
                own, whole = self._api.uuids(index)
            except DeviceUnusable as error:
                logger.warning("what ranks of cuda:%d exchange goes through host memory: %s", index, error)
                own = whole = ""
            if own != whole:
                logger.warning(
                    "cuda:%d is a part (MIG) of %s, which shares no memory between processes here: what its ranks "
                    "exchange goes through host memory",
                    index,
                    whole,
                )
            known = self._uuids[index] = own if own == whole else ""
        return known


def cuda_driver() -> DeviceDriver | None:
    """The driver of the devices that torch has initialised in this process; None if there is none."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if torch is None or cuda is None or not torch.version.cuda or not cuda.is_initialized():
        return None
    try:
        return CudaDriver(torch, CudaApi())
    except DeviceUnusable as error:
        logger.warning("what ranks of one device exchange goes through host memory: %s", error)
        return NoDevices()


class NoDevices:
    """Stands for a driver that cannot be called: no tensor is on a device that it could share."""

    def device_of(self, _tensor: Any) -> str:
        """The UUID of the device that a tensor is on; "" if it is none of these, or cannot share memory."""
        return ""

    def devices(self) -> Sequence[str]:
        """The UUIDs of the devices that this process sees and can share memory of; from any thread."""
        return ()

    def __getattr__(self, name: str) -> Any:
        raise DeviceUnusable(f"the CUDA driver cannot be called ({name})")


def _tell_of_expandable_segments() -> None:
    for variable in _ALLOCATOR_VARIABLES:
        if "expandable_segments:true" in os.environ.get(variable, "").lower().replace(" ", ""):
            logger.info(
                "%s has expandable_segments: CUDA IPC cannot share such memory; buckets are not of torch's allocator, "
                "so weights between ranks of one device are shared all the same",
                variable,
            )
