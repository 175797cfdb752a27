"""A model in shards (FSDP2), whose ranks gather it once for all micro-batches of a step, however many each has."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from post_training.model import Transformer


def shard(model: Transformer, device: torch.device) -> None:
    """Leave each rank its shards of the model; all ranks together."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    else:
        dist.init_process_group("gloo")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=False)
    for module in _sharded(model):
        # A loss is a share of the step's: gradients are added up. Gloo can do no more than that.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def gather(model: Transformer) -> None:
    """Have the whole model here until `reduce`, however many batches of gradients are added up; all ranks together."""
    for module in _sharded(model):
        module.set_requires_gradient_sync(False)
        module.set_reshard_after_backward(False)
        module.unshard()


def reduce(model: Transformer) -> None:
    """Leave each rank its shards of the gradient of all ranks, and of the model; all ranks together."""
    modules = _sharded(model)
    for module in modules:
        module.set_requires_gradient_sync(True)
        module.set_reshard_after_backward(True)
    if modules:
        # FSDP2 does it in a backward pass: one of a single token that counts for nothing.
        nothing = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
        (model(nothing, nothing, nothing).sum() * 0).backward()


def _sharded(model: Transformer) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]
