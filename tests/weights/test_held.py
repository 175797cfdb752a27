"""What tensors of a program say of themselves, DTensors of every kind among them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, distribute_tensor, placement_types

from pretended_processes import of_torch, process
from rlinf_scheduler.errors import WeightsError
from rlinf_scheduler.weights.held import Slice, held, local_of
from rlinf_scheduler.weights.layout import Sharded, whole
from weight_meshes import Mesh, within


def held_all(weights):
    return [held("policy", key, value, local_of(value)) for key, value in weights.items()]


@st.composite
def cut_tensors(draw):
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple))
    return shape, draw(Mesh.drawn(shape))


@given(cut_tensors(), st.data())
def test_a_dtensor_says_which_boxes_are_here(drawn, data):
    shape, mesh = drawn
    rank = data.draw(st.integers(0, len(mesh.coordinates) - 1))
    tensor = torch.arange(int(np.prod(shape))).reshape(shape)
    local = tensor
    for size, at, placement in zip(mesh.sizes, mesh.coordinates[rank], mesh.placements, strict=True):
        if isinstance(placement, Sharded):
            shards, _ = of_torch(placement)._split_tensor(local, size, with_padding=False, contiguous=True)
            local = shards[at]
    with process(rank, len(mesh.coordinates)):
        torch_mesh = DeviceMesh("cpu", torch.arange(len(mesh.coordinates)).reshape(mesh.sizes))
        placements = [of_torch(each) for each in mesh.placements]
        cut = DTensor.from_local(
            local, torch_mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
        )
        (one,) = held_all({"w": cut})
    assert (one.key, one.dtype, one.part.shape) == ("w", "int64", shape)
    for piece in one.part.pieces:
        here = one.local[within(piece.local_start, piece.shape)]
        assert torch.equal(here, tensor[within(piece.start, piece.shape)])
    assert one.part.size == one.local.numel()


def test_a_tensor_of_another_mesh_is_not_here():
    with process(3, 4):
        mesh = DeviceMesh("cpu", torch.tensor([0, 1]))
        cut = distribute_tensor(torch.zeros(4, 2), mesh, [placement_types.Shard(0)])
        (one,) = held_all({"w": cut})
    assert (one.part.shape, one.part.pieces) == ((4, 2), ())


def test_partial_sums_are_refused_with_what_to_do():
    with process(0, 2):
        mesh = DeviceMesh("cpu", torch.tensor([0, 1]))
        cut = DTensor.from_local(torch.zeros(4), mesh, [Partial()], run_check=False)
        with pytest.raises(WeightsError, match=r"'w' is a DTensor placed as .*: redistribute it to shards"):
            held_all({"w": cut})


def test_plain_tensors_and_arrays_are_whole():
    given_ = {"a": torch.zeros(2, 3, dtype=torch.bfloat16), "b": np.zeros(4, "<f4")}
    assert [(one.dtype, one.part) for one in held_all(given_)] == [
        ("bfloat16", whole((2, 3))),
        ("<f4", whole((4,))),
    ]


def test_a_slice_says_where_it_is():
    (one,) = held_all({"w": Slice(np.ones((2, 4)), (6, 0), (8, 4))})
    assert [str(piece.box) for piece in one.part.pieces] == ["[6:8, 0:4]"]
    with pytest.raises(WeightsError, match="'w' is a slice that does not fit: rows 7 to 9 of dimension 0"):
        held_all({"w": Slice(np.ones((2, 4)), (7, 0), (8, 4))})


@pytest.mark.parametrize("value", [None, [1.0], Slice([1.0], (0,), (1,))])
def test_what_is_neither_tensor_nor_array_is_named(value):
    with pytest.raises(WeightsError, match=r"'w' is of type .*, neither tensor nor array"):
        held_all({"w": value})
