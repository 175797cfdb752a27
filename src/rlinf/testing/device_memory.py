"""Pretend devices whose memory is host memory that processes really share: what stays on a device can be tried without.

Every tensor of torch on the CPU counts as one on the pretend device. Processes that were given the same UUID have the
same device.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from rlinf.testing.pinned_pages import PinnedPages
from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.comm.shm.kernel import map_array
from rlinf_scheduler.devices.driver import BucketMemory, DeviceUnusable


class PretendDevice:
    """A driver of one device; for `Devices(messenger, lambda: PretendDevice(...))`.

    Args:
        uuid: of the device.
        total_bytes: how much memory it has for this process.
        opens: whether it opens what other processes share.

    Attributes:
        used_bytes: how much of it this process has allocated.
        num_opened: how often it has opened memory of others,
        num_open: and how much of that is open.
        pinned: the pages of host memory that it goes on with, by their address.
    """

    def __init__(self, uuid: str, total_bytes: int = 1 << 30, *, opens: bool = True) -> None:
        self._uuid = uuid
        self._total_bytes = total_bytes
        self._opens = opens
        self.used_bytes = 0
        self.num_opened = self.num_open = 0
        self.pinned: dict[int, PinnedPages] = {}

    def device_of(self, tensor: Any) -> str:
        """The UUID of the device that a tensor is on; "" if it is none of these, or cannot share memory."""
        return self._uuid if tensor.is_cpu else ""

    def devices(self) -> list[str]:
        """The UUIDs of the devices that this process sees and can share memory of; from any thread."""
        return [self._uuid]

    def empty(self, device: str, size_bytes: int) -> Any:
        """A new `torch.Tensor` of uint8 on a device, of torch's own memory; in the thread that is to use it."""
        torch = sys.modules["torch"]
        return torch.empty(size_bytes, dtype=torch.uint8)

    def free_bytes(self, device: str) -> tuple[int, int]:
        """How much memory a device has free, and in all."""
        return self._total_bytes - self.used_bytes, self._total_bytes

    def trim(self, device: str) -> None:
        """Give back what torch keeps of a device and does not use."""

    def allocate(self, device: str, size_bytes: int) -> BucketMemory:
        """Memory that other processes can open."""
        if self.used_bytes + size_bytes > self._total_bytes:
            raise DeviceUnusable(f"{device} has no {size_bytes} bytes free")
        fd = kernel.create(size_bytes)
        self.used_bytes += size_bytes
        return BucketMemory(device, _tensor(fd, size_bytes), (fd, size_bytes))

    def handle(self, memory: BucketMemory) -> bytes:
        """What another process opens memory of this one by."""
        return msgspec.msgpack.encode((os.getpid(), memory.token[0]))

    def free(self, memory: BucketMemory) -> None:
        """Give memory of this process back."""
        fd, size_bytes = memory.token
        os.close(fd)
        self.used_bytes -= size_bytes

    def open(self, device: str, size_bytes: int, handle: bytes) -> BucketMemory:
        """Memory of another process."""
        if not self._opens:
            raise DeviceUnusable("this device opens nothing of others")
        pid, number = msgspec.msgpack.decode(handle, type=tuple[int, int])
        try:
            fd = kernel.open_of(pid, number)
        except OSError as error:
            raise DeviceUnusable(f"process {pid} shares nothing (any more): {error}") from error
        self.num_opened += 1
        self.num_open += 1
        return BucketMemory(device, _tensor(fd, size_bytes), fd)

    def close(self, memory: BucketMemory) -> None:
        """Undo `open`; nothing reads or writes the memory."""
        os.close(memory.token)
        self.num_open -= 1

    def pin(self, address: int, size_bytes: int) -> None:
        """Let the devices read host memory by themselves; whole pages of this process."""
        self.pinned[address] = PinnedPages(address, size_bytes)

    def unpin(self, address: int) -> None:
        """Undo `pin`; no device reads the memory."""
        self.pinned.pop(address).close()

    def settle(self) -> None:
        """Return when the devices have done all that this process has asked of them until now."""

    def mark(self, device: str) -> Any:
        """What this thread has asked of a device until now, for `copying`. What a CPU is asked it does at once."""

    @contextmanager
    def copying(self, device: str, mark: Any = None) -> Iterator[None]:
        """Copy in this block after what was marked; the copies are there when the block has ended."""
        del device, mark
        yield


def _tensor(fd: int, size_bytes: int) -> Any:
    return sys.modules["torch"].from_numpy(map_array(fd, size_bytes))
