"""What tensors of a program say of themselves: DTensors, plain ones, arrays and slices, as key, dtype, part, memory.

torch is only used where it is loaded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from rlinf_scheduler.errors import WeightsError
from rlinf_scheduler.weights.layout import Part, Placement, Replicate, Shard, sharded, sliced, whole


class Slice(NamedTuple):
    """A box of a tensor, for frameworks that have no DTensor.

    Attributes:
        tensor: the box, a torch tensor or a numpy array.
        offsets: where it begins in the whole tensor, in each dimension.
        global_shape: the shape of the whole tensor.
    """

    tensor: Any
    offsets: tuple[int, ...]
    global_shape: tuple[int, ...]


class Held(NamedTuple):
    """What is here of one tensor.

    Attributes:
        key: its name.
        dtype: as torch calls it, or numpy ("<f4").
        part: which boxes, and where they lie in `local`.
        local: the tensor or array that has them.
    """

    key: str
    dtype: str
    part: Part
    local: Any


def held(name: str, weights: Mapping[str, Any]) -> Iterator[Held]:
    """Yield what is here of each tensor of a state dict.

    Args:
        name: of the weights, for messages.
        weights: by key tensors (also DTensors, on any device), arrays, or `Slice`s of them.

    Raises:
        WeightsError: something is none of these, is a DTensor whose values are partial sums, or a slice that is not
            within its tensor.
    """
    for key, value in weights.items():
        if type(key) is not str:
            raise WeightsError(name, f"keys are strings, and {key!r} is none")
        yield _held(name, key, value)


def _held(name: str, key: str, value: Any) -> Held:
    local = value.tensor if isinstance(value, Slice) else value
    torch = sys.modules.get("torch")
    if not isinstance(local, np.ndarray) and (torch is None or not isinstance(local, torch.Tensor)):
        raise WeightsError(name, f"'{key}' is of type {type(local).__qualname__}, neither tensor nor array")
    if isinstance(value, Slice):
        shapes = [tuple(map(int, each)) for each in (value.global_shape, value.offsets, local.shape)]
        try:
            part = sliced(*shapes)
        except ValueError as error:
            raise WeightsError(name, f"'{key}' is a slice that does not fit: {error}") from error
    elif is_dtensor(value):
        part, local = _part_of_dtensor(name, key, value), value.to_local()
    else:
        part = whole(tuple(local.shape))
    return Held(key, dtype_of(local), part, local)


def is_dtensor(value: Any) -> bool:
    """Whether it is a tensor that torch has cut over a mesh of processes."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def dtype_of(value: Any) -> str:
    """Return the name of a dtype, as torch calls it, or numpy ("<f4")."""
    return value.dtype.str if isinstance(value, np.ndarray) else str(value.dtype).removeprefix("torch.")


def _part_of_dtensor(name: str, key: str, tensor: Any) -> Part:
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    shape, local_shape = tuple(tensor.shape), tuple(tensor.to_local().shape)
    if coordinate is None:  # this process is not in its mesh, and has nothing of it
        return Part(shape, local_shape, ())
    placements = [_placement(name, key, each, len(shape)) for each in tensor.placements]
    part = sharded(shape, tuple(mesh.shape), tuple(coordinate), placements)
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
    return Shard(dim % dims, int(getattr(placement, "split_factor", 1)))
