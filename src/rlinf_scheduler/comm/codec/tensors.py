"""Torch tensors as parts of a message: memory that several of them share travels once.

torch is touched only where it is loaded already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from rlinf_scheduler.comm.codec.arrays import (
    Array,
    Strides,
    in_order,
    memory_of,
    memory_order,
    pack,
    packed_strides,
)
from rlinf_scheduler.comm.codec.sources import BytePart, StridedTensor
from rlinf_scheduler.errors import CodecError

REQUIRES_GRAD = 1
CONJUGATED = 2
NEGATED = 4
# Other tensors of the message lie in the same part.
SHARED = 8

# Torch wants the first element of a view at a multiple of its size; the largest is complex128.
ALIGNMENT = 16
# Tensors that overlap travel as one part if it has at most this much more than twice their own bytes.
SLACK_BYTES = 4096

# The types of torch that numpy has under the same name.
KNOWN_TO_NUMPY = frozenset(
    (
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    )
)
# A type of torch of so many bytes an element, to move bits by.
BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}


class TensorRow(msgspec.Struct, array_like=True, gc=False):
    """One tensor.

    Attributes:
        dtype: torch's name of it.
        shape: elements along each axis.
        part: the buffer in which it lies; -1 if it has no bytes.
        offset: bytes from there to its first element.
        strides: in bytes; None if rows follow one another as in C.
        flags: REQUIRES_GRAD and the others.
        device: kind of the device that it was on.
    """

    dtype: str
    shape: tuple[int, ...]
    part: int = -1
    offset: int = 0
    strides: tuple[int, ...] | None = None
    flags: int = 0
    device: str = "cpu"


class Dtype(msgspec.Struct, frozen=True, gc=False):
    """A dtype of torch.

    Attributes:
        dtype: itself.
        name: torch's name of it.
        bits: an integer type of the same size.
        carrier: `bits`, if numpy does not know the type; else None.
        array: what it is in numpy, or its carrier.
    """

    dtype: Any
    name: str
    bits: Any
    carrier: Any
    array: np.dtype[Any]


@cache
def dtypes(torch: ModuleType) -> dict[Any, Dtype]:
    """The dtypes of torch, by themselves and by name; not the quantised ones, bytes do not tell all of them."""
    known: dict[Any, Dtype] = {}
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        name = str(dtype).removeprefix("torch.")
        if name.startswith("q"):
            continue
        bits = BITS[dtype.itemsize]
        carrier = None if name in KNOWN_TO_NUMPY else getattr(torch, bits)
        array = np.dtype(name if carrier is None else bits)
        known[dtype] = known[name] = Dtype(dtype, name, getattr(torch, bits), carrier, array)
    return known


@cache
def _reducers(torch: ModuleType) -> tuple[Any, ...]:
    """Ways of pickling that say nothing but what a table says."""
    return torch.Tensor.__reduce_ex__, torch.nn.Parameter.__reduce_ex__


class TensorTable:
    """The tensors of one object, while it is encoded.

    Args:
        device_of: says which tensors are on a device that processes share.
    """

    def __init__(self, torch: ModuleType, device_of: Callable[[Any], str] | None = None) -> None:
        self._torch: Any = torch
        self._device_of = device_of
        self._dtypes = dtypes(torch)
        self.rows: list[TensorRow] = []
        self._parts: list[BytePart | None] = []
        self._tensors: list[Any] = []
        # Device, first byte, byte after the last, and index of every tensor that has bytes.
        self._spans: list[tuple[str, int, int, int]] = []

    def add_object(self, tensor: Any) -> tuple[int, type[Any], Any] | None:
        """Its place in the table, its class, and the state that a subclass or a user gave it.

        None if its own way of pickling has to serve: bytes and strides do not tell all of it, or its class has
        another way.
        """
        torch = self._torch
        kind = type(tensor)
        if kind is not torch.Tensor and kind is not torch.nn.Parameter:
            own = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
            if own or kind.__reduce_ex__ not in _reducers(torch):
                return None
            with torch._C.DisableTorchFunctionSubclass():
                flags = REQUIRES_GRAD if tensor.requires_grad else 0
                index = self.add(tensor.detach().as_subclass(torch.Tensor), flags)
        elif tensor.requires_grad:
            index = self.add(tensor.detach(), REQUIRES_GRAD)
        else:
            index = self.add(tensor if kind is torch.Tensor else tensor.detach())
        return None if index is None else (index, kind, tensor.__getstate__() if tensor.__dict__ else None)

    def add_storage(self, tensor: Any) -> int:
        """The place of its storage in the table, as a tensor of bytes."""
        torch = self._torch
        index = self.add(
            torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        )
        if index is None:
            raise CodecError(f"the storage of a {tensor.dtype} tensor on {tensor.device} cannot be read")
        return index

    def add(self, tensor: Any, flags: int = 0) -> int | None:
        """The tensor's place in the table; None if bytes and strides do not tell all of it.

        That is so for sparse, quantised and meta tensors.

        Args:
            tensor: a `torch.Tensor` that requires no gradient.
            flags: REQUIRES_GRAD or 0.
        """
        kind = self._dtypes.get(tensor.dtype)
        if kind is None:
            return None
        if self._is_shared(tensor):
            return self._add_unusual(tensor, kind, flags)
        try:
            array = tensor.numpy() if kind.carrier is None else tensor.view(kind.carrier).numpy()
        except (RuntimeError, TypeError):
            return self._add_unusual(tensor, kind, flags)
        row = TensorRow(kind.name, array.shape, flags=flags)
        if not array.nbytes:
            return self._append(row, tensor, None, 0)
        if array.flags.c_contiguous:
            return self._append(row, tensor, memory_of(array), array.nbytes)
        part, row.strides, span = _pack_strided(array)
        return self._append(row, tensor, part, span)

    def finish(self, parts: list[BytePart]) -> None:
        """Append the tensors' parts to those of the message, and say in `rows` which one is whose."""
        self._spans.sort()
        group: list[int] = []
        on, begin, reach = "", 0, 0
        for device, first, end, index in self._spans:
            if first < reach and device == on:
                group.append(index)
                reach = max(reach, end)
                continue
            self._place(group, begin, reach, parts)
            group, on, begin, reach = [index], device, first, end
        self._place(group, begin, reach, parts)

    def _append(self, row: TensorRow, tensor: Any, part: BytePart | None, span: int) -> int:
        index = len(self.rows)
        self.rows.append(row)
        self._parts.append(part)
        self._tensors.append(tensor)
        if part is not None:
            begin = tensor.data_ptr()
            self._spans.append((row.device, begin, begin + span, index))
        return index

    def _add_unusual(self, tensor: Any, kind: Dtype, flags: int) -> int | None:
        torch = self._torch
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested:
            return None
        if tensor.is_conj():
            return self.add(tensor.conj(), flags | CONJUGATED)
        if tensor.is_neg():
            return self.add(torch._neg_view(tensor), flags | NEGATED)
        if tensor.is_cpu and not self._is_shared(tensor):
            return None
        return self._add_on_device(tensor, kind, flags)

    def _is_shared(self, tensor: Any) -> bool:
        return self._device_of is not None and bool(self._device_of(tensor))

    def _add_on_device(self, tensor: Any, kind: Dtype, flags: int) -> int:
        if tensor.is_cpu:
            # Its part may be no buffer: it is read as one that others lie in.
            flags |= SHARED
        row = TensorRow(kind.name, tuple(tensor.shape), flags=flags, device=tensor.device.type)
        if not tensor.numel():
            return self._append(row, tensor, None, 0)
        shape, strides = row.shape, _byte_strides(tensor)
        order = memory_order(shape, strides)
        if not in_order(order):
            row.strides = packed_strides(shape, order, tensor.element_size())
        part = StridedTensor(self._torch, tensor.view(kind.bits).permute(order))
        return self._append(row, tensor, part, _span(shape, strides, tensor.element_size()))

    def _place(self, group: list[int], begin: int, end: int, parts: list[BytePart]) -> None:
        if len(group) > 1:
            self._place_overlapping(group, begin, end, parts)
            return
        for index in group:
            self.rows[index].part = len(parts)
            parts.append(self._parts[index])  # type: ignore[arg-type]

    def _place_overlapping(self, group: list[int], begin: int, end: int, parts: list[BytePart]) -> None:
        own = sum(len(self._parts[index] or b"") for index in group)
        storage = max(
            (self._tensors[index].untyped_storage() for index in group), key=lambda each: int(each.nbytes())
        )
        base = storage.data_ptr()
        covered = base <= begin and end <= base + storage.nbytes()
        if not covered or end - begin > 2 * own + SLACK_BYTES:
            self._place_apart(group, parts)
            return
        begin = base + (begin - base) // ALIGNMENT * ALIGNMENT
        for index in group:
            row, tensor = self.rows[index], self._tensors[index]
            row.part, row.offset, row.strides = len(parts), tensor.data_ptr() - begin, _byte_strides(tensor)
            row.flags |= SHARED
        torch = self._torch
        flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)[
            begin - base : end - base
        ]
        plain = flat.is_cpu and not self._is_shared(flat)
        parts.append(memory_of(flat.numpy()) if plain else StridedTensor(torch, flat))

    def _place_apart(self, group: list[int], parts: list[BytePart]) -> None:
        """One part each, but for views that are the same."""
        same: dict[tuple[Any, ...], TensorRow] = {}
        for index in group:
            row, tensor = self.rows[index], self._tensors[index]
            twin = same.setdefault((tensor.data_ptr(), row.dtype, row.shape, tensor.stride()), row)
            if twin is not row:
                twin.flags |= SHARED
                row.flags |= SHARED
                row.part, row.strides = twin.part, twin.strides
                continue
            row.part = len(parts)
            parts.append(self._parts[index])  # type: ignore[arg-type]


def quantisation(tensor: Any) -> tuple[Any, ...]:
    """What makes a quantised tensor of its storage: dtype, geometry, and the scheme's parameters."""
    scheme: tuple[Any, ...]
    if str(tensor.qscheme()).startswith("torch.per_tensor"):
        scheme = tensor.q_scale(), tensor.q_zero_point()
    else:
        scheme = (
            tensor.q_per_channel_scales(),
            tensor.q_per_channel_zero_points(),
            tensor.q_per_channel_axis(),
        )
    geometry = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    return tensor.dtype, *geometry, tensor.requires_grad, *scheme


def _pack_strided(array: Array) -> tuple[BytePart, Strides | None, int]:
    """The part of a tensor whose rows do not follow one another, its strides there, and its reach in memory."""
    shape, strides, itemsize = array.shape, array.strides, array.itemsize
    span = _span(shape, strides, itemsize)
    if 0 not in strides:
        if array.nbytes > span:  # Windows onto one row, which overlap.
            row = np.lib.stride_tricks.as_strided(array, (span // itemsize,), (itemsize,))
            return memory_of(row), strides, span
        return *pack(array), span
    once = array[(*(0 if stride == 0 else slice(None) for stride in strides), ...)]
    part, packed, _ = _pack_strided(once)
    inner = iter(packed or packed_strides(once.shape, range(once.ndim), itemsize))
    return part, tuple(0 if stride == 0 else next(inner) for stride in strides), span


def _span(shape: Sequence[int], strides: Strides, itemsize: int) -> int:
    return itemsize + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _byte_strides(tensor: Any) -> Strides:
    size = tensor.element_size()
    return tuple(step * size for step in tensor.stride())
