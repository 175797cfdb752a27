"""What tensors of a program say of themselves: DTensors, plain ones, arrays and slices, as key, dtype, part, memory.

torch is only used where it is loaded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rlinf_scheduler.errors import WeightsError
from rlinf_scheduler.weights.layout import Placement, Replicate, Sharded, TensorPart, sharded, sliced, whole


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
    """What is here of one tensor.

    Attributes:
        key: its name.
        dtype: as torch calls it, or numpy ("<f4").
        part: which boxes, and where they lie in `local`.
        local: the tensor or array that has them.
    """

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
