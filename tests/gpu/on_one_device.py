"""A job on one real device: two groups that share it. Prints what their ranks saw, as JSON."""

import json
import os
import sys
import time

import torch

from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, PackedPlacementStrategy, Worker

MEMBERS = [("actor", [0]), ("rollout", [0])]


class Rank(Worker):
    def setup(self):
        self.model = torch.nn.Linear(4096, 4096, device=self.torch_device)
        return {
            "device": str(self.torch_device),
            "count": torch.cuda.device_count(),
            "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "uuid": f"GPU-{torch.cuda.get_device_properties(self.torch_device).uuid}",
            "planned": list(self.placement.visible_accelerators),
        }

    def look(self):
        return {"count": torch.cuda.device_count(), "mask": os.environ.get("CUDA_VISIBLE_DEVICES")}

    def join_nccl(self):
        torch.cuda.set_device(self.torch_device)
        torch.distributed.init_process_group("nccl", device_id=self.torch_device)
        ones = torch.ones(10, device=self.torch_device)
        torch.distributed.all_reduce(ones)
        total = ones.sum().item()
        torch.distributed.destroy_process_group()
        return total / self.world_size

    def take_turns(self, rounds):
        """Has its model on the device in its turns only.

        When each began and ended, where it was then and afterwards; and whether it is the same in the end.
        """
        before, turns = self.model.weight.detach().cpu().clone(), []
        for _ in range(rounds):
            with self.device_lock(timeout_s=60, offload=[self.model]):
                began = time.monotonic()
                there = str(self.model.weight.device)
                self.model(torch.ones(1, 4096, device=self.torch_device))
                ended = time.monotonic()
            afterwards = self.model.weight
            turns.append((began, ended, there, str(afterwards.device), afterwards.is_pinned()))
        return turns, torch.equal(before, self.model.weight)


class Actor(Rank):
    def exchange(self, channel, there):
        given = torch.arange(1 << 20, device=self.torch_device)
        self.send(given, "rollout", 0)
        self.broadcast(given + 1, groups=MEMBERS, src=("actor", 0))
        channel.put(given + 2)
        for number in range(20):
            there.put({"state": given[::2] + number, "text": "beside"})
        self.publish_weights("policy", self.model.state_dict(), 1)
        return given.sum().item(), self.model.weight.double().sum().item()


class Rollout(Rank):
    def exchange(self, channel, there):
        sent, cast, item = (
            self.recv("actor", 0),
            self.broadcast(groups=MEMBERS, src=("actor", 0)),
            channel.get(),
        )
        self.fetch_weights("policy", into=self.model, min_version=1, timeout_s=60)
        stayed = [there.get(timeout_s=60)["state"] for _ in range(20)]
        all_there = all(each.device == self.torch_device for each in (sent, cast, item, *stayed))
        half = torch.arange(1 << 20, device=self.torch_device)[::2]
        all_there &= all(torch.equal(each, half + number) for number, each in enumerate(stayed))
        sums = [sent.sum().item(), (cast - 1).sum().item(), (item - 2).sum().item()]
        return sums, self.model.weight.double().sum().item(), all_there


def main():
    with Cluster(num_nodes=1) as cluster:
        first = PackedPlacementStrategy(0, 0)
        actor = Actor.create_group().launch(cluster, first, name="actor")
        rollout = Rollout.create_group().launch(cluster, first, name="rollout")
        hidden = Rank.create_group().launch(cluster, NodePlacementStrategy([0]), name="hidden")
        whole = Rank.create_group().launch(cluster, first, name="whole", isolate_gpu=False)
        seen = [actor.setup().wait()[0], rollout.setup().wait()[0]]
        channel, there = Channel.create("items"), Channel.create("there", device_items=True)
        exchanged = [actor.exchange(channel, there), rollout.exchange(channel, there)]
        exchanged = [result.wait(timeout_s=120)[0] for result in exchanged]
        turns = [group.take_turns(3) for group in (actor, rollout)]
        turns = [result.wait(timeout_s=120)[0] for result in turns]
        report = {
            "seen": seen,
            "hidden": hidden.look().wait()[0],
            "whole": whole.look().wait()[0],
            "nccl": actor.join_nccl().wait(timeout_s=120)[0],
            "exchanged": exchanged,
            "turns": turns,
        }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
