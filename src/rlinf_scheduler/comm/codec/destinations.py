"""Tensors and arrays of a user's that are written to: whether they can be, found before the first byte, and how.

torch is touched only where it is loaded already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_OVERLAPS = "expanded, or overlaps itself: elements of it lie in the same memory"


def why_unwritable(torch: Any, tensor: Any) -> str:
    """Return why values cannot be copied into a tensor, in a phrase that follows "it is"; "" if they can be.

    Args:
        torch: the module.
        tensor: a `torch.Tensor`, of whatever kind.
    """
    if kind := special_kind(torch, tensor):
        return f"{kind}, not a plain dense tensor"
    if not tensor.is_contiguous() and _overlaps(tensor.shape, tensor.stride(), 1):
        return _OVERLAPS
    if tensor.untyped_storage().nbytes() < _end_bytes(tensor):
        return "without memory: its storage was freed"
    return ""


def special_kind(torch: Any, tensor: Any) -> str:
    """Return what a tensor is that is more, or less, than strided elements in memory; "" for a plain dense one.

    >>> import torch
    >>> special_kind(torch, torch.zeros(2)), special_kind(torch, torch.zeros(2).to_sparse())
    ('', 'a Tensor of layout torch.sparse_coo')
    """
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        # DTensors, fake tensors, tensors that a library quantised: they hold other tensors.
        holds_others = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        if holds_others or torch.nn.parameter.is_lazy(tensor):
            return _a(kind.__qualname__)
    if tensor.layout != torch.strided:
        return f"{_a(kind.__qualname__)} of layout {tensor.layout}"
    if tensor.is_meta:
        return "on the meta device"
    if tensor.is_nested:
        return "nested"
    return f"quantised ({tensor.dtype})" if tensor.is_quantized else ""


def copy_into(torch: Any, tensor: Any, source: Any, *, non_blocking: bool = False) -> None:
    """Copy a tensor into another one of its shape, also into one that needs gradients, or was made for inference."""
    # Only in this mode torch changes what was made in it, as the models of rollout engines are.
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(source, non_blocking=non_blocking)


def why_unwritable_array(array: np.ndarray[Any, Any]) -> str:
    """Return why values cannot be copied into an array, in a phrase that follows "it is"; "" if they can be."""
    if not array.flags.writeable:
        return "read-only"
    if _overlaps(array.shape, array.strides, array.itemsize):
        return _OVERLAPS
    return ""


def _overlaps(shape: Sequence[int], strides: Sequence[int], size: int) -> bool:
    """Whether elements of a size share memory, or lie in a pattern of which that is not easily told."""
    if 0 in shape:
        return False
    reach = size - 1
    for stride, count in sorted((abs(stride), count) for stride, count in zip(strides, shape, strict=True)):
        if count > 1:
            if stride <= reach:
                return True
            reach += (count - 1) * stride
    return False


def _end_bytes(tensor: Any) -> int:
    """Return where the last element of a tensor ends in its storage; 0 if it has none."""
    num = tensor.numel()
    if num and not tensor.is_contiguous():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        num = 1 + sum((count - 1) * stride for count, stride in steps)
    return int((tensor.storage_offset() + num) * tensor.element_size()) if num else 0


def _a(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"
