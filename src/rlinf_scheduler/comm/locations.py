"""Where parts of an object may lie beside host memory: on devices, which the room of that name shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.shm.sent_payload import Payload


class StagedObject(Protocol):
    """An object of this process that lies on a device, as long as this or a reader refers to it.

    Attributes:
        device: the UUID of the device.
        payload: what readers are sent.
        size_bytes: how large the object is.
    """

    device: str
    payload: Payload
    size_bytes: int

    def goes_to(self, reader: Endpoint, devices: Sequence[str]) -> bool:
        """Say whether a process that has these devices can read it there."""

    def given_to(self, reader: Endpoint) -> None:
        """Note that a process is told of it."""


class OpenedObject(Protocol):
    """An object of another process that can be read on its device here, as long as this is referred to."""

    def frames(self, frames: Sequence[Buffer]) -> list[Any]:
        """Return its frames, its parts on the device as tensors of bytes there; `frames` are those that were sent."""


class DeviceObjects:
    """Objects that processes share on devices: none, where the room `devices` is left out."""

    def device_of(self, tensor: Any) -> str:
        """Return the UUID of the device that a tensor is on, if other processes can share it; else ""."""
        return ""

    def of(self, tensors: Iterable[Any]) -> tuple[str, ...]:
        """Return the devices that tensors are on."""
        return tuple(sorted({self.device_of(tensor) for tensor in tensors} - {""}))

    def stage(self, what: str, encoded: Encoded) -> StagedObject | None:
        """Put what an object has on one device there, to be shared; None if that is not worth it, or cannot be."""
        return None

    def is_staged(self, frames: Sequence[Buffer]) -> bool:
        """Say whether parts of the object with these frames lie on a device."""
        return False

    def readable_from(self, process_id: str, devices: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of some devices on which this process can read what another one has staged."""
        return ()

    def open(self, what: str, arrived: ReceivedPayload, then: Callable[[Any], None]) -> None:
        """Open what arrived; `then` is called on the I/O thread with it, or with None if it cannot be opened here."""
        raise NotImplementedError

    def read(self, what: str, use: Any, copy: Callable[[], None]) -> None:
        """Let `copy` copy out of what `open` gave; what it copies is there at the end."""
        raise NotImplementedError

    def copy_out(self, what: str, staged: Any, then: Callable[[Payload | BaseException], None]) -> None:
        """Copy what `stage` gave to host memory; `then` is called on the I/O thread with that, or what went wrong."""
        raise NotImplementedError
