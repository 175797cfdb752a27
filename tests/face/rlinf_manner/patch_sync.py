"""Weights that are synced by patches: what has changed since the last version, broadcast with options.

Every rank that is to have the weights takes part in one broadcast; the first rank of the receivers says beforehand
what it has. The first version goes whole.
"""

import torch

from rlinf.scheduler import Cluster, CollectiveGroupOptions, ComponentPlacement, Worker

CONFIG = {
    "cluster": {"num_nodes": 2, "component_placement": {"actor": "0-1", "rollout": "2-5"}},
    "shapes": {"embed": (8, 4), "head": (4,)},
    "changes": [{}, {"embed": [1, 30]}, {"head": [0], "embed": [2]}, {}],
    "options": CollectiveGroupOptions(use_ring_broadcast=True, accel_max_ctas=2),
}


def changed_entries(state, former):
    """Which entries are different, and their new values, by name; all of them where there is no former state."""
    patch = {}
    for name, value in state.items():
        flat = value.reshape(-1)
        same = (
            torch.zeros(len(flat), dtype=torch.bool) if former is None else flat == former[name].reshape(-1)
        )
        indices = (~same).nonzero()[:, 0].to(torch.int32)
        if len(indices):
            patch[name] = {"indices": indices, "values": flat[indices.long()]}
    return patch


class Member(Worker):
    """A rank of either group; both know which ranks take part."""

    def __init__(self, config, placement):
        Worker.__init__(self)
        self.config, self.num_nodes = config, placement._cluster.num_nodes
        self.groups = [("ActorGroup", 0), ("RolloutGroup", list(range(placement.get_world_size("rollout"))))]

    async def broadcast_from_actor(self, data=None):
        work = self.broadcast(
            data, groups=self.groups, src=("ActorGroup", 0), async_op=True, options=self.config["options"]
        )
        return await work.async_wait()


class Actor(Member):
    def __init__(self, config, placement):
        super().__init__(config, placement)
        self.state = {name: torch.zeros(shape) for name, shape in config["shapes"].items()}
        self.wanted = self.former = None

    def train(self, changes, version):
        """All ranks have the same weights."""
        assert self.num_nodes == self.config["cluster"]["num_nodes"]
        for name, entries in changes.items():
            self.state[name].reshape(-1)[entries] = float(version)
        self.version = version

    async def sync_model_to_rollout(self):
        if self.wanted is None:
            self.wanted = await self.recv(
                src_group_name="RolloutGroup", src_rank=0, async_op=True, options=self.config["options"]
            ).async_wait()
        if self._rank != 0:
            return 0
        patch = changed_entries({name: self.state[name] for name in self.wanted}, self.former)
        await self.broadcast_from_actor({"version": self.version, "names": list(patch)})
        for entries in patch.values():
            await self.broadcast_from_actor(entries)
        self.former = {name: value.clone() for name, value in self.state.items()}
        return sum(len(entries["values"]) for entries in patch.values())


class Rollout(Member):
    def __init__(self, config, placement):
        super().__init__(config, placement)
        self.state = {name: torch.full(shape, -1.0) for name, shape in config["shapes"].items()}
        self.version = None
        self.actor_ranks = range(placement.get_world_size("actor"))

    async def sync_model_from_actor(self):
        if self.version is None and self._rank == 0:
            for rank in self.actor_ranks:
                await self.send(
                    list(self.state),
                    dst_group_name="ActorGroup",
                    dst_rank=rank,
                    async_op=True,
                    options=self.config["options"],
                ).async_wait()
        header = await self.broadcast_from_actor()
        for name in header["names"]:
            entries = await self.broadcast_from_actor()
            self.state[name].reshape(-1)[entries["indices"].long()] = entries["values"]
        self.version = header["version"]
        return self.version, {name: value.sum().item() for name, value in self.state.items()}


def launch(config):
    cluster = Cluster(cluster_cfg=config["cluster"])
    placement = ComponentPlacement(config, cluster)
    return {
        name: worker.create_group(config, placement).launch(
            cluster, name=f"{name.capitalize()}Group", placement_strategy=placement.get_strategy(name)
        )
        for name, worker in {"actor": Actor, "rollout": Rollout}.items()
    }


def run(config, groups):
    history = []
    for version, changes in enumerate(config["changes"]):
        groups["actor"].train(changes, version).wait()
        received = groups["rollout"].sync_model_from_actor()
        sent = groups["actor"].sync_model_to_rollout().wait()
        history.append((sent[0], received.wait()))
    return history
