"""What a process has of weights: DTensor's cuts, slices, and what nobody has."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import placement_types

from rlinf_scheduler.weights.layout import (
    Box,
    Replicate,
    Sharded,
    WeightsLayout,
    item_size,
    layout,
    sharded,
    sliced,
    uncovered,
    whole,
)
from weight_meshes import Mesh, within

SHAPES = st.lists(st.integers(1, 7), max_size=3).map(tuple)


@st.composite
def cut_tensors(draw):
    shape = draw(SHAPES)
    return shape, draw(Mesh.drawn(shape))


def cut_by_torch(tensor, mesh, coordinate):
    """The local tensor as torch's own placements cut it."""
    for count, index, placement in zip(mesh.sizes, coordinate, mesh.placements, strict=True):
        if isinstance(placement, Sharded):
            of_torch = (
                placement_types.Shard(placement.dim)
                if placement.split_factor == 1
                else placement_types._StridedShard(placement.dim, split_factor=placement.split_factor)
            )
            shards, _ = of_torch._split_tensor(tensor, count, with_padding=False, contiguous=True)
            tensor = shards[index]
    return tensor


@given(cut_tensors())
def test_a_mesh_has_of_a_tensor_what_torch_gives_each_of_its_processes(drawn):
    shape, mesh = drawn
    tensor = torch.arange(int(np.prod(shape))).reshape(shape)
    for coordinate in mesh.coordinates:
        expected = cut_by_torch(tensor, mesh, coordinate)
        part = sharded(shape, mesh.sizes, coordinate, mesh.placements)
        assert part.local_shape == tuple(expected.shape)
        local = torch.full(part.local_shape, -1)
        for piece in part.pieces:
            local[within(piece.local_start, piece.shape)] = tensor[within(piece.start, piece.shape)]
        assert torch.equal(local, expected)
        assert part.size == expected.numel()


@given(cut_tensors())
def test_a_mesh_has_all_of_a_tensor(drawn):
    shape, mesh = drawn
    parts = [sharded(shape, mesh.sizes, each, mesh.placements) for each in mesh.coordinates]
    assert uncovered(shape, [piece.box for part in parts for piece in part.pieces]) == []


@given(cut_tensors(), st.data())
def test_what_nobody_has_is_told_in_boxes_that_do_not_overlap(drawn, data):
    shape, mesh = drawn
    parts = [sharded(shape, mesh.sizes, each, mesh.placements) for each in mesh.coordinates]
    boxes = [piece.box for part in parts for piece in part.pieces]
    there = data.draw(st.lists(st.sampled_from(boxes)))
    count = np.zeros(shape, int)
    for box in set(there):
        count[within(*box)] = 1
    for box in uncovered(shape, there, most=1000):
        assert not count[within(*box)].any()
        count[within(*box)] = 1
    assert count.all()


def test_the_first_boxes_that_nobody_has_are_told_and_no_more():
    rows = [Box((row, 0), (1, 4)) for row in range(1, 20, 2)]
    assert [str(box) for box in uncovered((20, 4), rows, most=2)] == ["[0:1, 0:4]", "[2:3, 0:4]"]


def test_a_shard_of_fsdp_over_tensor_parallelism_lies_within_its_shard_of_the_latter():
    placements = [Sharded(0, split_factor=2), Sharded(0)]
    boxes = {
        coordinate: [str(piece.box) for piece in sharded((8,), (2, 2), coordinate, placements).pieces]
        for coordinate in itertools.product(range(2), range(2))
    }
    assert boxes == {(0, 0): ["[0:2]"], (0, 1): ["[4:6]"], (1, 0): ["[2:4]"], (1, 1): ["[6:8]"]}


def test_the_last_of_many_has_nothing():
    part = sharded((5, 3), (4,), (3,), [Sharded(0)])
    assert (part.local_shape, part.pieces, part.size) == ((0, 3), (), 0)


def test_a_number_is_whole_everywhere():
    assert sharded((), (4,), (3,), [Replicate()]) == whole(())
    assert whole(()).size == 1
    assert uncovered((), []) == [Box((), ())]
    assert uncovered((), [Box((), ())]) == []


def test_a_slice_is_within_its_tensor():
    assert str(sliced((8, 4), (2, 0), (3, 4)).pieces[0].box) == "[2:5, 0:4]"
    assert sliced((8, 4), (8, 0), (0, 4)).pieces == ()
    with pytest.raises(ValueError, match="rows 6 to 9 of dimension 0 are not within its 8"):
        sliced((8, 4), (6, 0), (3, 4))
    with pytest.raises(ValueError, match="a slice of 1 dimensions at 2 offsets is of a tensor of 2"):
        sliced((8, 4), (6, 0), (3,))


def test_tensors_that_are_held_alike_share_a_part():
    part = sharded((8, 4), (2,), (0,), [Sharded(0)])
    made: WeightsLayout = layout(
        [("a", "float32", part), ("b", "bfloat16", part), ("c", "float32", whole((3,)))]
    )
    assert made.parts == (part, whole((3,)))
    assert made.part_of == (0, 0, 1)
    assert made.manifest.shapes == ((8, 4), (8, 4), (3,))


def of_plain_elements(dtype):
    name = str(dtype).removeprefix("torch.")
    return "x" not in name and not name.startswith(("bits", "q"))


@pytest.mark.parametrize(
    "dtype",
    [each for each in vars(torch).values() if isinstance(each, torch.dtype) and of_plain_elements(each)],
)
def test_an_element_has_as_many_bytes_as_in_torch(dtype):
    assert item_size(str(dtype).removeprefix("torch.")) == dtype.itemsize
