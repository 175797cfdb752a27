"""What a process has of named tensors and arrays, as bytes.

    head    msgpack of rows [key, dtype, shape, part]; "float32" is a dtype of torch, "<f4" one of numpy
    parts   the elements of each, in the order of its axes; what several keys refer to is there once

There is no pickle in it, so a reader can see from the head alone whether everything fits before it touches anything.
torch is only used where it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.codec.arrays import memory_of
from rlinf_scheduler.comm.codec.destinations import special_kind
from rlinf_scheduler.comm.codec.sources import BytePart, StridedArray, StridedTensor
from rlinf_scheduler.comm.codec.tensors import BITS
from rlinf_scheduler.errors import WeightsError
from rlinf_scheduler.weights.held import dtype_of, held, is_tensor, local_of, values_of
from rlinf_scheduler.weights.layout import TensorPart, WeightsLayout, layout

NO_PART = -1


class TensorEntry(msgspec.Struct, array_like=True, gc=False):
    """One tensor or array, as it is here: of a shard that is its own shape."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    part: int


_encode_rows = msgspec.msgpack.Encoder().encode
decode_rows = msgspec.msgpack.Decoder(list[TensorEntry]).decode


def encode_held(
    name: str, weights: Any, device_of: Callable[[Any], str] = lambda _tensor: ""
) -> tuple[Encoded, WeightsLayout]:
    """Return the bytes of all that is here of weights, and which parts of which tensors they are.

    Tensors in one stretch of memory are not copied. `weights` are a `torch.nn.Module`, whose `state_dict()` is taken,
    or tensors (also DTensors, on any device), arrays and `Slice`s of them by key; those on a device that processes
    share, as `device_of` says, are not looked at.

    Raises:
        WeightsError: something in it is none of these, or has no plain elements.
    """
    values = values_of(weights)
    if values is None:
        raise WeightsError(
            name, f"a module or a dict of tensors or arrays is published, not {type(weights).__qualname__}"
        )
    table = _Table(name, device_of)
    described = layout(table.add(key, value) for key, value in values.items())
    return Encoded(_encode_rows(table.rows), table.parts), described


class _Table:
    def __init__(self, name: str, device_of: Callable[[Any], str]) -> None:
        self._device_of = device_of
        self.rows: list[TensorEntry] = []
        self.parts: list[BytePart] = []
        self._name = name
        self._torch: Any = sys.modules.get("torch")
        # What is in a part -> which. Tied weights are published under several keys.
        self._known: dict[tuple[Any, ...], int] = {}

    def add(self, key: str, value: Any) -> tuple[str, str, TensorPart]:
        """Add one; return its key, its dtype, and what is here of it."""
        local = local_of(value)
        if is_tensor(local) and (kind := special_kind(self._torch, local)):
            raise WeightsError(self._name, f"'{key}' is {kind}; plain dense tensors can be published")
        here = held(self._name, key, value, local)
        if isinstance(local, np.ndarray):
            self._add_array(key, local)
        else:
            self._add_tensor(key, local)
        return key, self.rows[-1].dtype, here.part

    def _add_tensor(self, key: str, tensor: Any) -> None:
        torch = self._torch
        data = tensor.detach().resolve_conj().resolve_neg()
        row = TensorEntry(key, dtype_of(data), tuple(data.shape), NO_PART)
        if data.numel():
            bits = data.view(getattr(torch, BITS[data.element_size()]))
            plain = bits.is_cpu and bits.is_contiguous() and not self._device_of(bits)
            part = memory_of(bits.numpy()) if plain else StridedTensor(torch, bits)
            row.part = self._place(part, (data.device, data.data_ptr(), row.dtype, row.shape, data.stride()))
        self.rows.append(row)

    def _add_array(self, key: str, array: np.ndarray[Any, Any]) -> None:
        if array.dtype.hasobject:
            raise WeightsError(self._name, f"'{key}' is an array of objects")
        data = np.asarray(array)
        if not data.dtype.isnative:
            data = data.astype(data.dtype.newbyteorder("="))
        row = TensorEntry(key, data.dtype.str, data.shape, NO_PART)
        if data.nbytes:
            part = memory_of(data) if data.flags.c_contiguous else StridedArray(data)
            row.part = self._place(part, (data.ctypes.data, row.dtype, row.shape, data.strides))
        self.rows.append(row)

    def _place(self, part: BytePart, identity: tuple[Any, ...]) -> int:
        index = self._known.setdefault(identity, len(self.parts))
        if index == len(self.parts):
            self.parts.append(part)
        return index
