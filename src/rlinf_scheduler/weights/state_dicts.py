"""Named tensors and arrays as bytes, and bytes back into tensors and arrays that are there already.

    head    msgpack of rows [key, dtype, shape, part]; "float32" is a dtype of torch, "<f4" one of numpy
    parts   the elements of each, in the order of its axes; what several keys refer to is there once

There is no pickle in it, so a reader can see from the head alone whether everything fits before it touches anything.
torch is only used where it is loaded, or where a dtype arrives that numpy does not know.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import msgspec
import numpy as np

from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.codec.arrays import memory_of
from rlinf_scheduler.comm.codec.copying import Copy, copy_all
from rlinf_scheduler.comm.codec.destinations import copy_into, why_unwritable, why_unwritable_array
from rlinf_scheduler.comm.codec.sources import BytePart, StridedArray, StridedTensor
from rlinf_scheduler.comm.codec.tensors import BITS, KNOWN_TO_NUMPY
from rlinf_scheduler.errors import WeightsError, WeightsMismatch

_NO_PART = -1
_NUMPY_MARKS = "<>|="


class TensorEntry(msgspec.Struct, array_like=True, gc=False):
    """One tensor or array of a state dict."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    part: int

    @property
    def of_torch(self) -> bool:
        """Whether a tensor was published, not an array."""
        return self.dtype[0] not in _NUMPY_MARKS

    @property
    def in_numpy(self) -> np.dtype[Any] | None:
        """Its dtype in numpy, which does not know all of torch's."""
        return np.dtype(self.dtype) if not self.of_torch or self.dtype in KNOWN_TO_NUMPY else None


_encode_rows = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(list[TensorEntry]).decode


def encode_state_dict(
    name: str, state_dict: Mapping[str, Any], device_of: Callable[[Any], str] = lambda _tensor: ""
) -> Encoded:
    """The tensors and arrays of `state_dict`; those in one stretch of memory are not copied.

    Args:
        name: for messages.
        state_dict: tensors (on any device) and arrays by key.
        device_of: says which tensors are on a device that processes share: these are not looked at, whatever they are.

    Raises:
        WeightsError: something in it is neither, or has no plain elements.
    """
    if not isinstance(state_dict, Mapping):
        raise WeightsError(
            name, f"a dict of tensors or arrays is published, not {type(state_dict).__qualname__}"
        )
    table = _Table(name, device_of)
    for key, value in state_dict.items():
        table.add(key, value)
    return Encoded(_encode_rows(table.rows), table.parts)


class _Table:
    def __init__(self, name: str, device_of: Callable[[Any], str]) -> None:
        self._device_of = device_of
        self.rows: list[TensorEntry] = []
        self.parts: list[BytePart] = []
        self._name = name
        self._torch: Any = sys.modules.get("torch")
        # What is in a part -> which. Tied weights are published under several keys.
        self._known: dict[tuple[Any, ...], int] = {}

    def add(self, key: str, value: Any) -> None:
        if type(key) is not str:
            raise WeightsError(self._name, f"keys are strings, and {key!r} is none")
        if self._torch is not None and isinstance(value, self._torch.Tensor):
            self._add_tensor(key, value)
        elif isinstance(value, np.ndarray):
            self._add_array(key, value)
        else:
            raise WeightsError(
                self._name, f"'{key}' is of type {type(value).__qualname__}, neither tensor nor array"
            )

    def _add_tensor(self, key: str, tensor: Any) -> None:
        torch = self._torch
        data = tensor.detach()
        if (
            type(data) is not torch.Tensor
            or data.layout != torch.strided
            or data.is_quantized
            or data.is_meta
            or data.is_nested
        ):
            kind = f"{type(data).__qualname__} ({data.layout}, {data.dtype}, {data.device})"
            raise WeightsError(self._name, f"'{key}' is a {kind}; plain dense tensors can be published")
        data = data.resolve_conj().resolve_neg()
        row = TensorEntry(key, _name_of(data.dtype), tuple(data.shape), _NO_PART)
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
        row = TensorEntry(key, data.dtype.str, data.shape, _NO_PART)
        if data.nbytes:
            part = memory_of(data) if data.flags.c_contiguous else StridedArray(data)
            row.part = self._place(part, (data.ctypes.data, row.dtype, row.shape, data.strides))
        self.rows.append(row)

    def _place(self, part: BytePart, identity: tuple[Any, ...]) -> int:
        index = self._known.setdefault(identity, len(self.parts))
        if index == len(self.parts):
            self.parts.append(part)
        return index


class StateDictWriter:
    """Writes published weights into a module, or into a dict of tensors and arrays.

    Args:
        name: for messages.
        into: a `torch.nn.Module`, whose `state_dict()` is written to, or a mapping, whose values are.

    Raises:
        WeightsError: it is neither.
    """

    def __init__(self, name: str, into: Any) -> None:
        self._name = name
        self._torch: Any = sys.modules.get("torch")
        if self._torch is not None and isinstance(into, self._torch.nn.Module):
            self._targets: dict[str, Any] = dict(into.state_dict())
        elif isinstance(into, Mapping):
            self._targets = dict(into)
        else:
            kind = type(into).__qualname__
            raise WeightsError(name, f"they go into a torch.nn.Module or a dict, not into a {kind}")

    @property
    def tensors(self) -> list[Any]:
        """The tensors that are written to."""
        return [each for each in self._targets.values() if self._is_tensor(each)]

    def write(
        self,
        version: int,
        frames: Sequence[Any],
        on_device: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Copy everything to its place; the dtypes and the devices stay those of the destination.

        Args:
            version: for messages.
            frames: what `encode_state_dict` gave; some may be tensors of bytes on a device.
            on_device: lets something copy from there.

        Raises:
            WeightsMismatch: keys, shapes or kinds differ, or a destination cannot be written to; nothing was written.
        """
        rows = _decode_rows(frames[0])
        self._check(version, rows)
        there: list[tuple[TensorEntry, Any]] = []
        copies: list[Copy] = []
        for row in rows:
            frame = b"" if row.part == _NO_PART else frames[1 + row.part]
            if on_device is not None and isinstance(frame, self._torch.Tensor):
                there.append((row, frame))
            elif len(frame):
                self._write(row, np.frombuffer(frame, np.uint8), copies)
        copy_all(copies)
        if on_device is not None and there:
            on_device(lambda: self._write_from_device(there))

    def _write(self, row: TensorEntry, data: np.ndarray[Any, Any], copies: list[Copy]) -> None:
        """Write one to its place; or note the copy, if it is one of plain bytes."""
        target = self._targets[row.key]
        if isinstance(target, np.ndarray):
            self._write_array(target, row, data, copies)
        else:
            self._write_tensor(target, row, data, copies)

    def _write_from_device(self, there: list[tuple[TensorEntry, Any]]) -> None:
        torch = self._torch
        copies: list[Copy] = []
        for row, data in there:
            target = self._targets[row.key]
            if isinstance(target, np.ndarray):
                self._write_array(target, row, data.cpu().numpy(), copies)
            else:
                source = data.view(getattr(torch, row.dtype)).reshape(row.shape)
                copy_into(torch, *_as_bits(torch, target, source), non_blocking=True)
        copy_all(copies)

    def _write_tensor(
        self, target: Any, row: TensorEntry, data: np.ndarray[Any, Any], copies: list[Copy]
    ) -> None:
        torch = self._torch
        same = _name_of(target.dtype) == (row.dtype if row.of_torch else np.dtype(row.dtype).name)
        lies_plain = target.is_contiguous() and not (target.is_conj() or target.is_neg())
        if same and target.is_cpu and lies_plain:
            # Bytes: torch's own copy has threads that wait by spinning, and readers are many on a machine.
            copies.append((target.detach().view(-1).view(torch.uint8).numpy(), data))
        else:
            copy_into(torch, *_as_bits(torch, target, _as_tensor(torch, row, data)))

    def _write_array(
        self, target: np.ndarray[Any, Any], row: TensorEntry, data: np.ndarray[Any, Any], copies: list[Copy]
    ) -> None:
        dtype = row.in_numpy
        if dtype is not None and target.dtype == dtype and target.flags.c_contiguous:
            copies.append((np.asarray(target).reshape(-1).view(np.uint8), data))
            return
        if dtype is not None:
            values = data.view(dtype).reshape(row.shape)
        else:
            tensor = _as_tensor(self._torch or import_module("torch"), row, data)
            values = (tensor.float() if tensor.element_size() <= 2 else tensor.double()).numpy()
        np.copyto(target, values, casting="same_kind")

    def _check(self, version: int, rows: Sequence[TensorEntry]) -> None:
        published = {row.key for row in rows}
        missing = [key for key in self._targets if key not in published]
        unexpected = [row.key for row in rows if row.key not in self._targets]
        unfit = [problem for row in rows if row.key in self._targets and (problem := self._problem(row))]
        if missing or unexpected or unfit:
            raise WeightsMismatch(self._name, version, missing, unexpected, unfit)

    def _problem(self, row: TensorEntry) -> str:
        """Why a row does not fit into its place; "" if it does."""
        target = self._targets[row.key]
        is_array = isinstance(target, np.ndarray)
        if not is_array and not self._is_tensor(target):
            return f"'{row.key}' is of type {type(target).__qualname__} in the destination"
        if why := why_unwritable_array(target) if is_array else why_unwritable(self._torch, target):
            return f"'{row.key}' cannot be written to in the destination: it is {why}"
        if tuple(target.shape) != row.shape:
            return f"'{row.key}' has shape {row.shape}, and {tuple(target.shape)} in the destination"
        fits = _fits_array(row, target) if is_array else _fits_tensor(self._torch, row.dtype, target.dtype)
        dtype = row.in_numpy or row.dtype
        return "" if fits else f"'{row.key}' is {dtype}, which does not go into {_name_of(target.dtype)}"

    def _is_tensor(self, value: Any) -> bool:
        return self._torch is not None and isinstance(value, self._torch.Tensor)


def _fits_array(row: TensorEntry, target: np.ndarray[Any, Any]) -> bool:
    dtype = row.in_numpy
    if dtype is not None:
        return np.can_cast(dtype, target.dtype, "same_kind")
    # The others of torch are kinds of float that become any float.
    torch = sys.modules.get("torch") or import_module("torch")
    return target.dtype.kind == "f" and _fits_tensor(torch, row.dtype, torch.float64)


@lru_cache(maxsize=256)
def _fits_tensor(torch: Any, name: str, dtype: Any) -> bool:
    """Whether torch here writes what is of a dtype, of its own or of numpy's, into a tensor of another one."""
    if name == _name_of(dtype):
        return True  # bits
    try:
        source = _as_tensor(torch, TensorEntry("", name, (1,), 0), np.zeros(_itemsize(torch, name), np.uint8))
        target = torch.empty(1, dtype=dtype)
        if source.dtype.is_complex and not dtype.is_complex:
            return False
        copy_into(torch, *_as_bits(torch, target, source))
    except (AttributeError, TypeError, RuntimeError):
        return False
    return True


def _itemsize(torch: Any, name: str) -> int:
    is_numpy = name[0] in _NUMPY_MARKS
    return int(np.dtype(name).itemsize if is_numpy else getattr(torch, name).itemsize)


@lru_cache(maxsize=256)
def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _as_tensor(torch: Any, row: TensorEntry, data: np.ndarray[Any, Any]) -> Any:
    if row.of_torch:
        return torch.from_numpy(data).view(getattr(torch, row.dtype)).reshape(row.shape)
    return torch.from_numpy(data.view(row.dtype).reshape(row.shape))


def _as_bits(torch: Any, target: Any, source: Any) -> tuple[Any, Any]:
    """The two as what torch copies in any case: bits, where they are of one dtype."""
    if target.dtype != source.dtype or target.is_complex() or target.is_neg():
        return target, source
    bits = getattr(torch, BITS[target.element_size()])
    return target.detach().view(bits), source.view(bits)
