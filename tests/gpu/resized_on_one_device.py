"""A group on one real device whose ranks run NCCL, and that grows and shrinks. Prints what its ranks saw, as JSON.

NCCL refuses two ranks of one host that have the same device. Each rank says it is a host of its own (NCCL_HOSTID), so
they exchange by sockets: what is tried is that they leave a communicator and meet in another one.
"""

import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from rlinf.scheduler import Cluster, FlexiblePlacementStrategy, Worker

DEADLINE_S = 60.0
SIZE = 1 << 20


class Actor(Worker):
    def __init__(self):
        super().__init__()
        os.environ |= {"NCCL_HOSTID": f"host-{self.rank}", "NCCL_SOCKET_IFNAME": "lo"}
        self.followed = []
        self.weight = torch.zeros(SIZE, device=self.torch_device)
        self.meet()

    def meet(self):
        torch.cuda.set_device(self.torch_device)
        dist.init_process_group("nccl", device_id=self.torch_device, timeout=timedelta(seconds=DEADLINE_S))
        dist.broadcast(self.weight, src=0)

    def on_resize(self, old, new):
        began = time.monotonic()
        dist.destroy_process_group()
        if self.rank in new:
            self.meet()
        self.followed.append((old.ranks, new.ranks, time.monotonic() - began))

    def step(self):
        """The weight after one more step, the same everywhere; this rank's place, and how many there are."""
        gradient = torch.full((SIZE,), float(self.rank + 1), device=self.torch_device)
        dist.all_reduce(gradient)
        self.weight += gradient
        low, high = self.weight.aminmax()
        return low.item(), high.item(), dist.get_rank(), dist.get_world_size()

    def ways(self):
        return self.followed


def main():
    with Cluster(num_nodes=1) as cluster:
        actor = Actor.create_group().launch(cluster, FlexiblePlacementStrategy([[0], [0]]), name="actor")
        report = {"steps": [actor.step().wait(DEADLINE_S)], "took_s": []}
        for resize in (
            lambda: actor.grow(placement=FlexiblePlacementStrategy([[0]]), timeout_s=DEADLINE_S),
            lambda: actor.shrink(ranks=[0], drain_s=DEADLINE_S),
        ):
            began = time.monotonic()
            resize()
            report["took_s"].append(time.monotonic() - began)
            report["steps"].append(actor.step().wait(DEADLINE_S))
        report["ways"] = actor.ways().wait(DEADLINE_S)
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
