"""Mapped memory as arrays: the map lives as long as the last array of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlinf_scheduler.comm.framing import Bytes
from rlinf_scheduler.comm.shm import kernel

Indexes = npt.NDArray[np.intp]


class _Map:
    """Memory at an address, as numpy takes it."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self._address = address
        self._size_bytes = size_bytes
        self.__array_interface__ = array_interface(address, size_bytes)

    def __del__(self, _unmap: Callable[[int, int], None] = kernel.unmap_memory) -> None:
        _unmap(self._address, self._size_bytes)


def array_interface(address: int, size_bytes: int) -> dict[str, Any]:
    """How numpy is told of `size_bytes` writable bytes at an address."""
    return {"version": 3, "data": (address, False), "shape": (size_bytes,), "typestr": "|u1"}


def map_array(fd: int, size_bytes: int, offset: int = 0) -> Bytes:
    """A map of `fd` from `offset` on as an array, uint8 of shape (size_bytes,); see `kernel.map_memory`.

    Raises:
        OSError: there is no room in the address space.
    """
    return np.asarray(_Map(kernel.map_memory(fd, size_bytes, offset), size_bytes))


class Region(NamedTuple):
    """A map and its address, which numpy takes a microsecond to tell."""

    memory: Bytes
    address: int


def map_region(fd: int, size_bytes: int, offset: int) -> Region:
    """The same as `map_array`, with its address."""
    memory = map_array(fd, size_bytes, offset)
    return Region(memory, memory.ctypes.data)


def nonzero(shared: npt.NDArray[Any]) -> Indexes:
    """Where memory is not 0 that other processes may write meanwhile.

    numpy counts first and collects then: with a change in between it raises RuntimeError, so it gets a copy.
    """
    return np.flatnonzero(shared.copy())
