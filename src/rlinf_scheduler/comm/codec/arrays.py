"""Numpy arrays as parts of a message: their memory as it is wherever it has no gaps."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rlinf_scheduler.comm.codec.sources import BytePart, ByteSource, StridedArray
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.errors import CodecError

Array: TypeAlias = npt.NDArray[Any]
Strides: TypeAlias = tuple[int, ...]

# A smaller array costs more as a frame of its own than as a copy within the pickle.
IN_BAND_BYTES = 256
# The types that numpy itself has; those above are strings of any length and what other packages add.
_NUM_BUILTIN_TYPES = 24


# Stands in a pickle for memory that travels beside it. The real thing would not do: pickle looks at it, and
# says of what is read-only here that it has to be read-only there.
MARK = pickle.PickleBuffer(bytearray(1))


def reduce_array(array: Array, sent: list[Any]) -> Any:
    """What pickle writes for an array: how to make it again, on memory that travels beside the pickle.

    Args:
        array: of any dtype; where objects are in it, numpy's own way has to serve.
        sent: takes what travels beside the pickle; MARK stands for it there.
    """
    dtype = array.dtype
    if dtype.hasobject:
        return NotImplemented
    named = _name(dtype) if _is_plain(dtype) else dtype
    size = array.nbytes
    if not size:
        return np.ndarray, (array.shape, named)
    if array.flags.c_contiguous:
        if size < IN_BAND_BYTES:
            return np.ndarray, (array.shape, named, bytearray(array.tobytes()))
        sent.append(memory_of(array))
        return np.ndarray, (array.shape, named, MARK)
    part, strides = pack(array)
    if size < IN_BAND_BYTES:
        memory: Any = bytearray(part.contiguous() if isinstance(part, ByteSource) else part)
    else:
        memory = MARK
        sent.append(part)
    if strides is None:
        return np.ndarray, (array.shape, named, memory)
    return strided_array, (array.shape, named, memory, strides)


def layout_of(array: Array) -> tuple[Strides, str] | None:
    """All that pickle writes for an array, if its memory travels beside it as it is; None if there is more to say."""
    if array.nbytes < IN_BAND_BYTES or not array.flags.c_contiguous or not _is_plain(array.dtype):
        return None
    return array.shape, _name(array.dtype)


def reduce_subclass(array: Array) -> Any:
    """What pickle writes for an array of a subclass: the plain array, and what turns it into the subclass.

    A subclass that has its own way of pickling keeps it.
    """
    kind = type(array)
    masked = sys.modules.get("numpy.ma")
    if masked is not None and kind is masked.MaskedArray:
        return _masked_array, _masked_fields(array)
    plain = np.ndarray
    if (
        kind.__reduce__ is not plain.__reduce__
        or kind.__reduce_ex__ is not plain.__reduce_ex__
        or kind.__setstate__ is not plain.__setstate__
    ):
        return NotImplemented
    # A memory map's own attributes tell of its file, which the receiver's array is not.
    attributes = None if isinstance(array, np.memmap) else getattr(array, "__dict__", None)
    return _subclass, (array.view(np.ndarray), kind, attributes or None)


def pack(array: Array) -> tuple[BytePart, Strides | None]:
    """The bytes of an array without gaps, and its strides in them; None if rows follow one another as in C.

    Args:
        array: of at least one byte, without objects.
    """
    if array.flags.c_contiguous:
        return memory_of(array), None
    order = memory_order(array.shape, array.strides)
    turned = array.transpose(order)
    if turned.flags.c_contiguous:
        return memory_of(turned), array.strides
    strides = None if in_order(order) else packed_strides(array.shape, order, array.itemsize)
    return StridedArray(turned), strides


def memory_of(array: Array) -> memoryview:
    """The memory of an array without gaps, as bytes."""
    try:
        return pickle.PickleBuffer(array).raw()  # type: ignore[arg-type]
    except ValueError:  # Dates, and what other packages add, have no format that a buffer could tell.
        return array.reshape(-1).view(np.uint8).data


def memory_order(shape: Sequence[int], strides: Strides) -> list[int]:
    """The axes in the order in which they lie in memory, the widest step first.

    Copying along it is fastest. Where something is repeated (a stride of 0) it is the order of the axes.
    """
    axes = range(len(strides))
    if any(stride == 0 and size > 1 for size, stride in zip(shape, strides, strict=True)):
        return list(axes)
    return sorted(axes, key=lambda axis: -abs(strides[axis]))


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether its name says all of it, and its memory all of a value: that of objects holds their addresses here."""
    builtin = dtype.num < _NUM_BUILTIN_TYPES and not dtype.hasobject
    return builtin and dtype.names is None and dtype.metadata is None


@lru_cache(maxsize=256)
def _name(dtype: np.dtype[Any]) -> str:
    """Says all of a plain dtype; pickle writes the same string once, and reads it ten times as fast as a dtype."""
    return dtype.str


def in_order(order: Sequence[int]) -> bool:
    """Whether the axes lie in memory as in C."""
    return all(axis == place for place, axis in enumerate(order))


def packed_strides(shape: Sequence[int], order: Sequence[int], itemsize: int) -> Strides:
    """The strides in bytes of an array whose axes lie in memory in this order, without gaps."""
    strides = [0] * len(order)
    step = itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def strided_array(shape: Strides, dtype: Any, memory: Buffer, strides: Strides) -> Array:
    """The array that lies in `memory` so.

    Raises:
        CodecError: it would reach beyond the memory.
    """
    dtype = np.dtype(dtype)
    check_extent(shape, strides, dtype.itemsize, 0, len(memory))
    return np.ndarray(shape, dtype, memory, 0, strides)


def check_extent(shape: Strides, strides: Strides, itemsize: int, offset: int, size_bytes: int) -> None:
    """Check that an array of this shape lies within `size_bytes`; numpy and torch trust large numbers.

    Raises:
        CodecError: it does not.
    """
    if len(shape) == len(strides) and min(shape, default=1) > 0 and min(strides, default=0) >= 0 <= offset:
        reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if offset + reach + itemsize <= size_bytes:
            return
    raise CodecError(
        f"shape {shape} with strides {strides} at byte {offset} does not lie within {size_bytes} bytes"
    )


def _subclass(array: Array, kind: type[Any], attributes: dict[str, Any] | None) -> Any:
    made = array.view(kind)
    if attributes:
        made.__dict__.update(attributes)
    return made


def _masked_fields(array: Any) -> tuple[Any, ...]:
    mask = None if array.mask is np.ma.nomask else array.mask
    return array.data, mask, array.fill_value, array.hardmask


def _masked_array(data: Array, mask: Array | None, fill_value: Any, hard_mask: bool) -> Any:
    return np.ma.MaskedArray(
        data,
        mask=np.ma.nomask if mask is None else mask,
        fill_value=fill_value,
        hard_mask=hard_mask,
    )
