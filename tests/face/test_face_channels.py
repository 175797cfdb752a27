"""Channels as RLinf's runners create and pass them: local ones, on a node, by ranks that create the same one."""

import pickle

import pytest
import torch

from rlinf.scheduler import Channel, CollectiveGroupOptions, NodePlacementStrategy, Worker
from rlinf_scheduler.errors import ChannelArgumentError, ChannelError, ChannelExists, WorkerError

pytestmark = pytest.mark.ray


class Stage(Worker):
    """Puts in one call what it takes in the next."""

    def infer(self, channel):
        channel.put({"rank": self.rank})
        return channel.is_local

    def train(self, config):
        return config["channel"].get(timeout_s=60)["rank"], config["channel"].empty()

    def make(self, name, *args, **options):
        channel = self.create_channel(name, *args, **options)
        channel.put(self.rank)
        return channel.maxsize

    async def sync(self, patches, options):
        groups, source = [("stages", [0]), ("stages", [1])], ("stages", 0)
        metadata = None
        if self.rank == 0:
            metadata = await self.recv("stages", 1, async_op=True, options=options).async_wait()
        else:
            self.send(["weight"], dst_group_name="stages", dst_rank=0, async_op=True, options=options)
        weights = torch.zeros(4)
        for patch in patches:
            sent = {"rows": torch.tensor([patch]), "values": torch.tensor([float(patch)])}
            work = self.broadcast(sent, groups=groups, src=source, async_op=True, options=options)
            received = await work.async_wait()
            weights[received["rows"]] = received["values"]
        return metadata, weights.tolist()

    def drain(self, name):
        return sorted(self.connect_channel(name).drain())


@pytest.fixture(scope="module")
def stages(ray_cluster):
    """Two ranks on node 1."""
    group = Stage.create_group().launch(ray_cluster, NodePlacementStrategy([1, 1]), name="stages")
    yield group
    group.terminate()


def node_of(cluster, name):
    entries = {entry.name: entry for entry in cluster.session.directory.list()}
    return pickle.loads(entries[f"{name}:0"].info["placement"]).node_rank


def test_each_rank_gets_from_a_local_channel_what_it_has_put(driver, stages):
    channel = Channel.create("inference", local=True)
    assert stages.infer(channel).wait(60) == [True, True]
    assert stages.train({"channel": channel}).wait(60) == [(0, True), (1, True)]
    assert channel.empty(), "the driver has queues of its own"


def test_a_channel_is_held_on_the_node_that_is_named(driver, stages):
    Channel.create("on-node-one", node_rank=1)
    assert node_of(driver, "on-node-one") == 1
    stages.execute_on(0).make("on-node-zero", node_rank=0, distributed=True).wait(60)
    assert node_of(driver, "on-node-zero") == 0
    assert stages.execute_on(0).make("in-the-order-of-rlinf", 8, False, 1).wait(60) == [8]
    assert node_of(driver, "in-the-order-of-rlinf") == 1
    Channel.create("in-that-order-too", 8, False, 1, disable_distributed_log=False)
    assert node_of(driver, "in-that-order-too") == 1
    with pytest.raises(ChannelError, match="there are nodes 0 to 1, not 2"):
        Channel.create("nowhere", node_rank=2)
    with pytest.raises(ChannelArgumentError, match="not both"):
        Channel.create("twice", node_rank=0, group_affinity="stages")
    with pytest.raises(ChannelArgumentError, match="a node's number from 0"):
        Channel.create("before", node_rank=-1)


def test_weights_are_synced_by_patches_that_are_broadcast_with_options(stages):
    options = CollectiveGroupOptions(use_ring_broadcast=True, accel_max_ctas=4)
    synced = stages.sync([1, 3], options).wait(60)
    assert synced == [(["weight"], [0.0, 1.0, 0.0, 3.0]), (None, [0.0, 1.0, 0.0, 3.0])]


def test_all_ranks_may_create_the_same_channel(driver, stages):
    assert stages.make("everybodys", 8, exist_ok=True).wait(60) == [8, 8]
    assert Channel.create("everybodys", maxsize=8, exist_ok=True).qsize() == 2
    assert stages.execute_on(1).drain("everybodys").wait(60) == [[0, 1]]


def test_a_channel_that_exists_is_an_error_unless_that_is_asked_for_with_the_same_options(driver, stages):
    Channel.create("mine", maxsize=8)
    with pytest.raises(ChannelExists):
        Channel.create("mine", maxsize=8)
    with pytest.raises(ChannelExists, match="maxsize=8 and not 9: create it with the same options"):
        Channel.create("mine", maxsize=9, exist_ok=True)
    with pytest.raises(ChannelExists, match="stages"):
        Channel.create("stages", exist_ok=True)
    with pytest.raises(WorkerError, match="ChannelExists"):
        stages.execute_on(0).make("mine").wait(60)
