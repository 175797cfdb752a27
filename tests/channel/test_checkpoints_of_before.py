"""Checkpoints of earlier versions, whose items are of classes that have moved since."""

from pathlib import Path

import numpy as np

from rlinf_scheduler.channel import Channel, ShardBatch
from rlinf_scheduler.comm.codec.moved import MOVED, ItemId
from rlinf_scheduler.observe.process_stats import Activity
from rlinf_scheduler.observe.report import GroupTimes
from rlinf_scheduler.queueing.item import SubscriptionName
from rlinf_scheduler.session.membership import GroupMembers

DEADLINE_S = 60.0

# By commit ecee75f4: of three shards of steps of three items, shard 0 has done one and has the next, shard 1 has its
# first, shard 2 has asked for none; two items are left, and one of three producers was done.
SHARDS = Path(__file__).parents[1] / "data" / "three_shards.channel"
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


def test_shards_and_producers_of_before_are_there_for_any_number_of_ranks(in_process):
    two = GroupMembers("actor", (0, 1))
    channel = Channel.create(in_process.name(), producers=2, restore=SHARDS)
    shards = [channel.shard(rank, two, batch_items=3) for rank in range(2)]
    assert [shard.next_batch(DEADLINE_S) for shard in shards] == [[3], [1]]
    assert shards[1].next_batch(DEADLINE_S) == [4]
    # What was cut for the third is in the queue again.
    assert (channel.qsize(), channel.peek()) == (4, 2)
    assert [shard.next_batch(DEADLINE_S) for shard in shards] == [[2, 6], [5]]
    with channel.producer():
        pass
    assert [list(shard) for shard in shards] == [[[]], [[7]]]


def test_shards_of_before_that_are_as_many_as_they_were_go_on(in_process):
    channel = Channel.create(in_process.name(), producers=3, restore=SHARDS)
    shards = [channel.shard(rank, 3, batch_items=3) for rank in range(3)]
    assert [shard.next_batch(DEADLINE_S) for shard in shards] == [[3], [1], [2]]
