"""What a process has of named tensors and arrays: DTensors, plain ones and slices, as data; and their bytes.

    head    msgpack of rows [key, dtype, shape, part]; "float32" is a dtype of torch, "<f4" one of numpy
    parts   the elements of each, in the order of its axes; what several keys refer to is there once

There is no pickle in it, so a reader can see from the head alone whether everything fits before it touches anything.
torch is only used where it is loaded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.codec.arrays import memory_of
from rlinf_scheduler.comm.codec.destinations import special_kind
from rlinf_scheduler.comm.codec.sources import BytePart, StridedArray, StridedTensor
from rlinf_scheduler.comm.codec.tensors import BITS
from rlinf_scheduler.errors import WeightsError
from rlinf_scheduler.weights.layout import (
    Placement,
    Replicate,
    Sharded,
    TensorPart,
    WeightsLayout,
    layout,
    sharded,
    sliced,
    whole,
)


class Slice(NamedTuple):
    """A box of a tensor, for frameworks that have no DTensor.

    Attributes:
        tensor: the box, a torch tensor or a numpy array.
        offsets: where it begins in the whole tensor, in each dimension.
        global_shape: the shape of the whole tensor.
    """

    tensor: Any
    offsets: Sequence[int]
    global_shape: Sequence[int]


class HeldTensor(NamedTuple):
    """What is here of one tensor; its dtype is as torch calls it, or numpy ("<f4")."""

    key: str
    dtype: str
    part: TensorPart
    local: Any


def values_of(weights: Any) -> Mapping[str, Any] | None:
    """Return the values of a module (its `state_dict()`), or of a mapping; None if it is neither.

    A tensor that is made of others, as a quantised one is, counts as these: "<key>.<name of the part>".
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(weights, torch.nn.Module):
        weights = weights.state_dict()
    if not isinstance(weights, Mapping):
        return None
    return {part: each for key, value in weights.items() for part, each in _parts(key, value)}


def _parts(key: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    names = getattr(value, "__tensor_flatten__", None)
    if names is None or is_dtensor(value) or value.is_nested:
        yield key, value
        return
    for name in names()[0]:
        yield from _parts(f"{key}.{name}", getattr(value, name))


def local_of(value: Any) -> Any:
    """Return what is here of a value: the local tensor of a DTensor, the tensor of a `Slice`, or the value itself."""
    if isinstance(value, Slice):
        return value.tensor
    return value.to_local() if is_dtensor(value) else value


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def held(name: str, key: str, value: Any, local: Any) -> HeldTensor:
    """Return what is here of one tensor of a state dict.

    It is a tensor (also a DTensor, on any device), an array, or a `Slice` of one; `local` is what `local_of` gave.

    Raises:
        WeightsError: it is none of these, is a DTensor whose values are partial sums, or a slice that is not within its
            tensor.
    """
    if type(key) is not str:
        raise WeightsError(name, f"keys are strings, and {key!r} is none")
    if not isinstance(local, np.ndarray) and not is_tensor(local):
        raise WeightsError(name, f"'{key}' is of type {type(local).__qualname__}, neither tensor nor array")
    if isinstance(value, Slice):
        shapes = [tuple(map(int, each)) for each in (value.global_shape, value.offsets, local.shape)]
        try:
            part = sliced(*shapes)
        except ValueError as error:
            raise WeightsError(name, f"'{key}' is a slice that does not fit: {error}") from error
    elif is_dtensor(value):
        part = _part_of_dtensor(name, key, value, tuple(local.shape))
    else:
        part = whole(tuple(local.shape))
    return HeldTensor(key, dtype_of(local), part, local)


def is_dtensor(value: Any) -> bool:
    """Whether it is a tensor that torch has cut over a mesh of processes."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def dtype_of(value: Any) -> str:
    """Return the name of a dtype, as torch calls it, or numpy ("<f4")."""
    return value.dtype.str if isinstance(value, np.ndarray) else str(value.dtype).removeprefix("torch.")


# A model has thousands of tensors and some ten ways in which they are cut.
_sharded = lru_cache(maxsize=1024)(sharded)


def _part_of_dtensor(name: str, key: str, tensor: Any, local_shape: tuple[int, ...]) -> TensorPart:
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    shape = tuple(tensor.shape)
    if coordinate is None:  # this process is not in its mesh, and has nothing of it
        return TensorPart(shape, local_shape, ())
    placements = tuple(_placement(name, key, each, len(shape)) for each in tensor.placements)
    part = _sharded(shape, tuple(mesh.shape), tuple(coordinate), placements)
    if part.local_shape != local_shape and math.prod(local_shape) + part.size:
        raise WeightsError(
            name,
            f"'{key}' is a DTensor of shape {shape}, placed as {list(tensor.placements)}: process {tuple(coordinate)} "
            f"of {tuple(mesh.shape)} should have {part.local_shape} of it, and has {local_shape}",
        )
    return part


def _placement(name: str, key: str, placement: Any, dims: int) -> Placement:
    """Return a placement of torch as data; all that it says of itself are `dim` and `split_factor`."""
    if placement.is_replicate():
        return Replicate()
    dim = getattr(placement, "dim", None)
    if dim is None or placement.is_partial():
        raise WeightsError(
            name, f"'{key}' is a DTensor placed as {placement}: redistribute it to shards or replicas first"
        )
    return Sharded(dim % dims, int(getattr(placement, "split_factor", 1)))


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
