"""Ranks that shard a model with torch over gloo, and publish it, or fetch into it."""

import logging

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from rlinf.scheduler import Cluster, Slice, Worker

TENSOR_PARALLEL = {"up": ColwiseParallel, "down": RowwiseParallel}


class Net(torch.nn.Module):
    """Sizes that two and four ranks do not share evenly, a tied parameter, and a buffer that is not saved."""

    def __init__(self, seed=None):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.up, self.down = torch.nn.Linear(6, 10), torch.nn.Linear(10, 6)
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        with torch.no_grad():
            torch.manual_seed(seed or 0)
            for each in self.parameters():
                each.copy_(torch.randn(each.shape) if seed else torch.zeros(each.shape))


class ShardedWorker(Worker):
    """A rank with meshes of its group, by their shapes."""

    def join(self):
        # That gathering, with which it is compared, is slow.
        logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
        dist.init_process_group("gloo")
        self.meshes = {}

    def leave(self):
        dist.destroy_process_group()

    def publish(self, name, how, mesh, version=1):
        """Publish what this rank has of a model; return all of it, as torch gathers it."""
        model = self._model(how, mesh, seed=version)
        if model is None:
            return None
        self.publish_weights(name, model, version)
        return _whole(model.state_dict())

    def fetch(self, name, how, mesh=(), dtype=torch.float32, **options):
        """Fetch into a model; return all of it, as torch gathers it."""
        model = self._model(how, mesh).to(dtype)
        self.fetch_weights(name, model, timeout_s=60, **options)
        return _whole(model.state_dict())

    def stream(self, name, **options):
        """Return the version of a stream, and its tensors in their order."""
        stream = self.stream_weights(name, timeout_s=60, **options)
        return stream.version, list(stream)

    def look(self, name):
        """Return who has weights, and who reads them."""
        there = Cluster().weights[name]
        return there.sources, there.readers, there.plan()

    def fetch_slices(self, name, dim):
        """Fetch this rank's part of each tensor along one dimension; return the parts."""
        into = {}
        for key, each in Net().state_dict().items():
            sizes = torch.tensor_split(torch.arange(each.shape[dim % each.dim()]), self.world_size)
            part = each.index_select(dim % each.dim(), sizes[self.rank])
            start = [0] * each.dim()
            start[dim % each.dim()] = int(sizes[self.rank][0])
            into[key] = Slice(part, tuple(start), tuple(each.shape))
        self.fetch_weights(name, into, timeout_s=60)
        return {key: each.tensor for key, each in into.items()}

    def _model(self, how, sizes, seed=None):
        """Return a model, cut over a mesh of the first ranks; None where this is none of them."""
        model = Net(seed)
        if how == "plain":
            return model
        if sizes not in self.meshes:
            ranks = torch.arange(int(torch.tensor(sizes).prod())).reshape(sizes)
            self.meshes[sizes] = DeviceMesh("cpu", ranks, mesh_dim_names=("outer", "inner")[-len(sizes) :])
        mesh = self.meshes[sizes]
        if mesh.get_coordinate() is None:
            return None
        if "tp" in how:
            plan = {name: parallel() for name, parallel in TENSOR_PARALLEL.items()}
            parallelize_module(model, mesh["inner"], plan)
        if "fsdp" in how:
            fully_shard(model, mesh=mesh["outer"] if "tp" in how else mesh)
        return model


def _whole(state_dict):
    return {
        key: each.full_tensor() if isinstance(each, DTensor) else each for key, each in state_dict.items()
    }
