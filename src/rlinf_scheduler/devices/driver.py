"""What a device can do, as far as buckets need it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol


class DeviceUnusable(Exception):
    """A device does not do what was asked of it; the text says why, and what can be done about it."""


@dataclass(slots=True, eq=False)
class BucketMemory:
    """A stretch of memory on a device, this process's own or opened.

    Attributes:
        device: the device's UUID.
        bytes: it as a `torch.Tensor` of uint8, of shape (size_bytes,); None once it was given up.
        token: the driver's own.
    """

    device: str
    bytes: Any
    token: Any


class DeviceDriver(Protocol):
    """Devices of one kind. Everything but `device_of`, `devices`, `empty` and `mark` is on one thread.

    Tensors on its devices are copied by torch, with `copy_`, in the block of `copying`.
    """

    def device_of(self, tensor: Any) -> str:
        """The UUID of the device that a tensor is on; "" if it is none of these, or cannot share memory."""

    def devices(self) -> Sequence[str]:
        """The UUIDs of the devices that this process sees and can share memory of; from any thread."""

    def empty(self, device: str, size_bytes: int) -> Any:
        """A new `torch.Tensor` of uint8 on a device, of torch's own memory; in the thread that is to use it."""

    def free_bytes(self, device: str) -> tuple[int, int]:
        """How much memory a device has free, and in all."""

    def trim(self, device: str) -> None:
        """Give back what torch keeps of a device and does not use."""

    def allocate(self, device: str, size_bytes: int) -> BucketMemory:
        """Memory that other processes can open.

        Raises:
            DeviceUnusable: there is none.
        """

    def handle(self, memory: BucketMemory) -> bytes:
        """What another process opens memory of this one by.

        Raises:
            DeviceUnusable: nobody can.
        """

    def free(self, memory: BucketMemory) -> None:
        """Give memory of this process back."""

    def open(self, device: str, size_bytes: int, handle: bytes) -> BucketMemory:
        """Memory of another process.

        Raises:
            DeviceUnusable: it cannot be opened here.
        """

    def close(self, memory: BucketMemory) -> None:
        """Undo `open`; nothing reads or writes the memory."""

    def pin(self, address: int, size_bytes: int) -> None:
        """Let the devices read host memory by themselves; whole pages of this process.

        Raises:
            DeviceUnusable: they cannot.
        """

    def unpin(self, address: int) -> None:
        """Undo `pin`; no device reads the memory.

        Raises:
            DeviceUnusable: it stays pinned.
        """

    def settle(self) -> None:
        """Return when the devices have done all that this process has asked of them until now.

        Raises:
            DeviceUnusable: that cannot be known.
        """

    def mark(self, device: str) -> Any:
        """What this thread has asked of a device until now, for `copying`."""

    def copying(self, device: str, mark: Any = None) -> AbstractContextManager[None]:
        """Copy in this block after what was marked; the copies are there when the block has ended."""
