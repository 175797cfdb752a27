"""Torch tensors as bytes: each storage once, whatever the number of views of it.

torch is touched only where it is loaded already, or where a tensor arrives.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import msgspec

from rlinf.scheduler.comm.framing import Buffer, allocate

# A row of the table: buffer, dtype, shape, strides, offset in bytes, requires_grad, kind, device.
Row = list[Any]
_PLAIN = 0
_PARAMETER = 1
# Torch wants the first element of a view at a multiple of its size; the largest is complex128.
ALIGNMENT = 16


class _View:
    """A tensor that waits for the decision which part of its storage is sent."""

    __slots__ = ("begin", "end", "flat", "kind", "own_bytes", "requires_grad", "tensor")

    def __init__(self, tensor: Any, kind: int, requires_grad: bool) -> None:
        self.tensor = tensor
        self.kind = kind
        self.requires_grad = requires_grad
        item = tensor.element_size()
        span = 1 + sum(
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        self.begin = tensor.storage_offset() * item
        self.end = self.begin + (span * item if tensor.numel() else 0)
        self.own_bytes = min(tensor.numel(), span) * item


class TensorTable:
    """The tensors of one object, while it is encoded.

    Args:
        torch: the module, or None where it is not loaded; then there are no tensors.
    """

    def __init__(self, torch: ModuleType | None) -> None:
        self._tensor_type: Any = getattr(torch, "Tensor", None)
        self._torch: Any = torch
        self._views: list[tuple[_View, str]] = []
        self._by_storage: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._views)

    def knows(self, obj: object) -> bool:
        """Whether `obj` is a tensor."""
        return self._tensor_type is not None and isinstance(obj, self._tensor_type)

    def add(self, tensor: Any) -> int | None:
        """The tensor's place in the table; None where torch's own pickling must serve.

        That is so for sparse and quantised tensors, subclasses, and tensors that carry attributes.
        """
        torch = self._torch
        kind = _PARAMETER if type(tensor) is torch.nn.Parameter else _PLAIN
        if kind == _PLAIN and type(tensor) is not torch.Tensor:
            return None
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.__dict__ or tensor.is_meta:
            return None
        data = tensor.detach().resolve_conj().resolve_neg()
        device = data.device.type
        if device != "cpu":
            data = data.cpu()
        index = len(self._views)
        self._views.append((_View(data, kind, tensor.requires_grad), device))
        if data.numel():
            self._by_storage.setdefault(data.untyped_storage().data_ptr(), []).append(index)
        return index

    def finish(self) -> tuple[bytes, list[Buffer]]:
        """The table as bytes, and the buffers that it refers to."""
        rows: list[Row] = [self._row(view, device) for view, device in self._views]
        buffers: list[Buffer] = []
        for indices in self._by_storage.values():
            views = [self._views[index][0] for index in indices]
            begin = min(view.begin for view in views) // ALIGNMENT * ALIGNMENT
            end = max(view.end for view in views)
            if end - begin <= sum(view.own_bytes for view in views) + ALIGNMENT:
                for index, view in zip(indices, views, strict=True):
                    rows[index][0] = len(buffers)
                    rows[index][4] = view.begin - begin
                buffers.append(_storage_bytes(self._torch, views[0].tensor, begin, end))
                continue
            for index, view in zip(indices, views, strict=True):
                packed = view.tensor.contiguous()
                rows[index][0] = len(buffers)
                rows[index][3] = list(packed.stride())
                begin_bytes = packed.storage_offset() * packed.element_size()
                buffers.append(
                    _storage_bytes(
                        self._torch, packed, begin_bytes, begin_bytes + packed.numel() * packed.element_size()
                    )
                )
        return msgspec.msgpack.encode((len(buffers), rows)), buffers

    def _row(self, view: _View, device: str) -> Row:
        tensor = view.tensor
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape, strides = list(tensor.shape), list(tensor.stride())
        return [-1, dtype, shape, strides, 0, view.requires_grad, view.kind, device]


def _storage_bytes(torch: Any, tensor: Any, begin: int, end: int) -> Buffer:
    flat = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return memoryview(flat[begin:end].numpy())


class TensorReader:
    """The tensors of one object, while it is decoded.

    Args:
        table: what `TensorTable.finish` gave.
        buffers: the message's buffers; the first `num_buffers` of them belong to tensors.
    """

    def __init__(self, table: memoryview, buffers: Sequence[Buffer]) -> None:
        self._torch: Any = sys.modules.get("torch") or import_module("torch")
        self.num_buffers, self._rows = msgspec.msgpack.decode(table)
        self._bytes = [self._flat(buffer) for buffer in buffers[: self.num_buffers]]

    def get(self, index: int) -> Any:
        """The tensor at `index` of the table."""
        torch = self._torch
        buffer, dtype_name, shape, strides, offset, requires_grad, kind, device = self._rows[index]
        dtype = getattr(torch, dtype_name)
        if buffer < 0:
            tensor = torch.empty_strided(shape, strides, dtype=dtype)
        else:
            flat = self._bytes[buffer][offset:]
            whole = flat[: len(flat) // dtype.itemsize * dtype.itemsize].view(dtype)
            tensor = whole.as_strided(shape, strides)
        if device != "cpu" and torch.get_device_module(device).is_available():
            tensor = tensor.to(device)
        if kind == _PARAMETER:
            return torch.nn.Parameter(tensor, requires_grad=requires_grad)
        return tensor.requires_grad_() if requires_grad else tensor

    def _flat(self, buffer: Buffer) -> Any:
        if memoryview(buffer).readonly:
            copy = allocate(len(buffer))
            copy[:] = buffer
            buffer = copy
        return self._torch.frombuffer(buffer, dtype=self._torch.uint8)
