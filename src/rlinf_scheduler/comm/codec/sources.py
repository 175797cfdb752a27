"""Where the bytes of a message come from: memory as it is, or memory that has to be put in order first.

A part of a message is a `Buffer`, one stretch of memory, or a `ByteSource`, which copies itself straight to
where it is needed: an array with gaps, a tensor on a GPU, a pickle in pieces. So each byte is copied once,
whether it goes into shared memory or through a socket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rlinf_scheduler.comm.codec.copying import Copy, copy_all
from rlinf_scheduler.comm.framing import Buffer, Bytes


class ByteSource(ABC):
    """Bytes that do not lie in one stretch of this process's memory.

    `len()` of it is their number, which is not 0.
    """

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def write_into(self, target: Bytes) -> None:
        """Copy the bytes into `target`, which has exactly their number."""

    def contiguous(self) -> memoryview:
        """The bytes in new memory, which is writable and belongs to the caller."""
        target = np.empty(len(self), np.uint8)
        self.write_into(target)
        return target.data


BytePart: TypeAlias = Buffer | ByteSource


class StridedArray(ByteSource):
    """An array with gaps, in the order of its axes."""

    __slots__ = ("_array",)

    def __init__(self, array: npt.NDArray[Any]) -> None:
        # Fields of a record are copied as one piece, with what lies between them.
        self._array = array.view(f"V{array.itemsize}") if array.dtype.kind == "V" else array

    def __len__(self) -> int:
        return self._array.nbytes

    def write_into(self, target: Bytes) -> None:
        """Copy the bytes into `target`, which has exactly their number."""
        array = self._array
        np.copyto(target.view(array.dtype).reshape(array.shape), array)


class StridedTensor(ByteSource):
    """A tensor with gaps or on a device, in the order of its axes.

    Args:
        tensor: of one of the integer types, or complex128: what is copied are bits, not values.
    """

    __slots__ = ("_torch", "tensor")

    def __init__(self, torch: Any, tensor: Any) -> None:
        self._torch = torch
        self.tensor = tensor

    def __len__(self) -> int:
        return int(self.tensor.nbytes)

    def write_into(self, target: Bytes) -> None:
        """Copy the bytes into `target`, which has exactly their number."""
        tensor = self.tensor
        self._torch.from_numpy(target).view(tensor.dtype).view(tensor.shape).copy_(tensor)


class Pieces(ByteSource):
    """Several stretches of memory as one, e.g. a pickle with the large strings in it."""

    __slots__ = ("_pieces", "_size")

    def __init__(self, pieces: Iterable[Buffer]) -> None:
        self._pieces = [piece if type(piece) is bytes else memoryview(piece).cast("B") for piece in pieces]
        self._size = sum(map(len, self._pieces))

    def __len__(self) -> int:
        return self._size

    def write_into(self, target: Bytes) -> None:
        """Copy the bytes into `target`, which has exactly their number."""
        sizes = map(len, self._pieces)
        write_parts(self._pieces, target, list(accumulate(sizes, initial=0))[:-1])


def copied(part: BytePart) -> Buffer:
    """The bytes of `part` in memory that nobody else refers to, or that nobody can change."""
    if isinstance(part, ByteSource):
        return part.contiguous()
    if type(part) is bytes:
        return part
    return np.frombuffer(part, np.uint8).copy().data if len(part) else b""


def write_parts(parts: Sequence[BytePart], target: Bytes, offsets: Sequence[int]) -> None:
    """Copy each of `parts` to its place in `target`.

    Numpy and torch let other threads run meanwhile; assigning to a slice of a memoryview does not.

    Raises:
        ValueError: there is not one offset for each of them, or a part does not fit.
    """
    copies: list[Copy] = []
    for part, offset in zip(parts, offsets, strict=True):
        end = offset + len(part)
        if offset < 0 or end > len(target):
            message = f"{len(part)} bytes at {offset} do not fit into {len(target)}"
            raise ValueError(message)
        if isinstance(part, ByteSource):
            part.write_into(target[offset:end])
        elif len(part):
            copies.append((target[offset:end], np.frombuffer(part, np.uint8)))
    copy_all(copies)
