"""Workers of the tests about groups that share devices: models in shards (FSDP2, gloo), which move between turns."""

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from rlinf.scheduler import Worker
from rlinf_scheduler.worker.offload import Offload
from small_device import SmallDevice

DEADLINE_S = 60.0


def made(mesh):
    """A model in shards, some of which need padding, and its optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.Linear(5, 3))
    for module in (*model, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=module is not model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def learn(model, optimizer, rank):
    optimizer.zero_grad()
    model(torch.arange(16.0).view(2, 8) + rank).square().sum().backward()
    optimizer.step()


class Trainer(Worker):
    """Has its model on a small device in its turns only; another one, which never moves, learns the same."""

    def __init__(self):
        super().__init__()
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (self.world_size,))
        self.moving, self.staying = made(mesh), made(mesh)
        self.device = SmallDevice()
        self.offload = Offload(self.moving, self.device)

    def step(self):
        """When the turn began and ended, and what was wrong in it."""
        total, problems = self.device.free_bytes, []
        with self.device_lock(DEADLINE_S, group=True):
            began = time.monotonic()
            self.offload.bring()
            if not all(self.device.is_there(each._local_tensor) for each in self.moving[0].parameters()):
                problems.append("not there")
            learn(*self.moving, self.rank)
            if not all(self.device.is_there(each._local_tensor) for each in self.moving[0].parameters()):
                problems.append("left while it learned")
            self.offload.take_away()
            ended = time.monotonic()
        learn(*self.staying, self.rank)
        if self.device.free_bytes != total:
            problems.append(f"{total - self.device.free_bytes} bytes are still used")
        pairs = zip(self.moving[0].parameters(), self.staying[0].parameters(), strict=True)
        if not all(torch.equal(one.full_tensor(), other.full_tensor()) for one, other in pairs):
            problems.append("it has learned something else")
        states = zip(self.moving[1].state.values(), self.staying[1].state.values(), strict=True)
        if not all(
            torch.equal(one["exp_avg"].to_local(), other["exp_avg"].to_local()) for one, other in states
        ):
            problems.append("its optimizer is another one")
        return began, ended, problems
