"""Processes of torch's meshes that are one process: nothing is sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed.tensor import placement_types
from torch.testing._internal.distributed.fake_pg import FakeStore

from rlinf_scheduler.weights.layout import Placement, Sharded


@contextlib.contextmanager
def process(rank: int, world_size: int) -> Iterator[None]:
    """Be one process of so many; torch's pretended process group sends nothing."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def of_torch(placement: Placement) -> Any:
    """Return a placement as torch has it."""
    if not isinstance(placement, Sharded):
        return placement_types.Replicate()
    if placement.split_factor == 1:
        return placement_types.Shard(placement.dim)
    return placement_types._StridedShard(placement.dim, split_factor=placement.split_factor)
