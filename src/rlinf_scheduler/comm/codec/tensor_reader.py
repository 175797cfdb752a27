"""Torch tensors made on the memory of a message that arrived."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from rlinf_scheduler.comm.codec.arrays import Strides, check_extent, packed_strides, strided_array
from rlinf_scheduler.comm.codec.tensors import (
    CONJUGATED,
    NEGATED,
    REQUIRES_GRAD,
    SHARED,
    Dtype,
    TensorRow,
    dtypes,
)
from rlinf_scheduler.errors import CodecError


class TensorReader:
    """The tensors of one object, while it is decoded.

    Args:
        buffers: those of the message, writable; tensors lie in them, and keep them.
        on_device: tensors of bytes that stand for some of them, by their places.
    """

    def __init__(self, buffers: Sequence[memoryview], on_device: Mapping[int, Any] | None = None) -> None:
        self._torch: Any = sys.modules.get("torch") or import_module("torch")
        self._dtypes = dtypes(self._torch)
        self._buffers = buffers
        self._whole: dict[tuple[int, str], Any] = {
            (part, whole.device.type): whole for part, whole in (on_device or {}).items()
        }

    def tensor(self, row: TensorRow) -> Any:
        """The tensor that `row` tells of.

        Raises:
            CodecError: it would reach beyond its buffer.
        """
        kind = self._dtypes[row.dtype]
        flags = row.flags
        if row.part < 0:
            tensor = self._empty(row, kind)
        elif flags & SHARED or row.device != "cpu":
            tensor = self._view(row, kind)
        else:
            buffer = self._buffers[row.part]
            if row.strides is None:
                array = np.ndarray(row.shape, kind.array, buffer)
            else:
                array = strided_array(row.shape, kind.array, buffer, row.strides)
            tensor = self._torch.from_numpy(array)
            if kind.carrier is not None:
                tensor = tensor.view(kind.dtype)
        if flags & CONJUGATED:
            tensor = tensor.conj()
        if flags & NEGATED:
            tensor = self._torch._neg_view(tensor)
        return tensor.requires_grad_() if flags & REQUIRES_GRAD else tensor

    def _empty(self, row: TensorRow, kind: Dtype) -> Any:
        if math.prod(row.shape):
            raise CodecError(f"a tensor of shape {row.shape} has no bytes")
        return self._torch.empty(row.shape, dtype=kind.dtype, device=self._place(row.device))

    def _view(self, row: TensorRow, kind: Dtype) -> Any:
        """A view of the whole buffer, which other tensors may view too; on the device if there is one here."""
        whole = self._on_device(row.part, row.device)
        size = kind.array.itemsize
        strides = row.strides
        if strides is None:
            strides = packed_strides(row.shape, range(len(row.shape)), size)
        check_extent(row.shape, strides, size, row.offset, len(whole))
        if row.offset % size or any(stride % size for stride in strides):
            raise CodecError(f"strides {strides} at byte {row.offset} are none of a {row.dtype} tensor")
        typed = whole[: len(whole) // size * size].view(kind.dtype)
        return typed.as_strided(row.shape, [stride // size for stride in strides], row.offset // size)

    def _on_device(self, part: int, device: str) -> Any:
        whole = self._whole.get((part, device))
        if whole is None:
            buffer = self._buffers[part]
            here = self._torch.from_numpy(np.ndarray((len(buffer),), np.uint8, buffer))
            whole = self._whole[part, device] = here.to(self._place(device))
        return whole

    def _place(self, device: str) -> str:
        """`device`, or the CPU in a process that has none of that kind."""
        if device == "cpu":
            return device
        try:
            return device if self._torch.get_device_module(device).is_available() else "cpu"
        except (RuntimeError, AttributeError):  # Its package is not installed here.
            return "cpu"


def same(obj: Any) -> Any:
    """Stands in a pickle before what the decoder puts there."""
    return obj


def dressed(tensor: Any, kind: type[Any], state: Any) -> Any:
    """`tensor` as one of a subclass, with the attributes that it had."""
    requires_grad = tensor.requires_grad
    made = tensor.detach().as_subclass(kind) if type(tensor) is not kind else tensor
    if state is not None:
        _set_state(made, state)
    return made.requires_grad_() if requires_grad and not made.requires_grad else made


def quantised(
    storage: Any, dtype: Any, size: Strides, stride: Strides, offset: int, requires_grad: bool, *scheme: Any
) -> Any:
    """The quantised tensor in `storage`, a tensor of bytes; see `quantisation`."""
    torch: Any = sys.modules["torch"]
    if len(scheme) == 2:
        made = torch._empty_affine_quantized(size, scale=scheme[0], zero_point=scheme[1], dtype=dtype)
    else:
        scales, zero_points, axis = scheme
        made = torch._empty_per_channel_affine_quantized(
            size, scales=scales, zero_points=zero_points, axis=axis, dtype=dtype
        )
    # Where other tensors came along in the same part, its bytes may begin later in it.
    whole = storage.clone() if storage.storage_offset() else storage
    made.set_(whole.untyped_storage(), offset, size, stride)
    return made.requires_grad_() if requires_grad else made


def _set_state(tensor: Any, state: Any) -> None:
    torch: Any = sys.modules["torch"]
    if type(tensor).__setstate__ is not torch.Tensor.__setstate__:
        tensor.__setstate__(state)
        return
    attributes, slots = state if type(state) is tuple else (state, {})
    tensor.__dict__.update(attributes or {})
    for name, value in slots.items():
        setattr(tensor, name, value)
