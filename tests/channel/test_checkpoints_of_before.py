"""Checkpoints of earlier versions, whose items are of classes that have moved since."""

from pathlib import Path

import numpy as np

from rlinf_scheduler.channel import Channel, ShardBatch
from rlinf_scheduler.comm.codec.moved import MOVED, ItemId
from rlinf_scheduler.observe.process_stats import Activity
from rlinf_scheduler.observe.report import GroupTimes
from rlinf_scheduler.queueing.item import SubscriptionName

# Written by commit a61a0d5e: an item of each class that had moved then, and one that has such a class in it.
FILE = Path(__file__).parents[1] / "data" / "moved_names.channel"


def test_items_of_classes_that_have_moved_are_what_they_were(in_process):
    channel = Channel.create(in_process.name(), restore=FILE)
    *items, mixed = channel.drain()
    places = {f"{type(item).__module__}.{type(item).__qualname__}" for item in items}
    assert places <= {f"rlinf_scheduler.{name}" for name in MOVED.values()}
    assert len(places) == len(items)
    one_of = {type(item): item for item in items}
    shard_batch = one_of[ShardBatch]
    assert (shard_batch, shard_batch.step, shard_batch.weights) == ([0, 2], 0, [1, 3])
    assert one_of[ItemId] == ("text", "text", 1)
    assert one_of[SubscriptionName].subscription == "text"
    assert one_of[Activity].calls[0].wait.operation == "text"
    assert one_of[GroupTimes].methods[0].spent.mean_s == 0.5
    assert (mixed["step"], mixed["sources"]) == (3, [ItemId("rollout:0", "p1", 7)])
    assert np.array_equal(mixed["weights"], np.ones(100))
