"""What other processes do in the tests of channels. They are functions of a module so that any backend can run them."""

from __future__ import annotations

from rlinf_scheduler.channel import Channel
from rlinf_scheduler.errors import ChannelClosed

DEADLINE_S = 60.0


def produce(channel, items, queue_name="default"):
    for item in items:
        channel.put(item, queue_name=queue_name, timeout_s=DEADLINE_S)


def produce_async(channel, items, queue_name="default"):
    handles = [channel.put(item, 1, queue_name, async_op=True, timeout_s=DEADLINE_S) for item in items]
    for handle in handles:
        handle.wait()


def consume(channel, count, queue_name="default"):
    return [channel.get(queue_name, timeout_s=DEADLINE_S) for _ in range(count)]


def consume_until_closed(channel):
    return list(channel)


def connect_and_consume(name, count):
    return consume(Channel.connect(name, timeout_s=DEADLINE_S), count)


def wait_for_an_item_and_never_return(channel, ready):
    handle = channel.get(async_op=True)
    channel.qsize()  # answered after the get has its place in line
    ready.put("waiting")
    handle.wait()
    ready.put("got it")


def receive_items_and_take_none(channel, ready, count):
    handles = [channel.get(async_op=True) for _ in range(count)]
    for handle in handles:
        # The item is in this process; `wait` would take it.
        handle.settled.exception(DEADLINE_S)
    ready.put("arrived")
    ready.get("never", timeout_s=DEADLINE_S)


def put_until_it_waits(channel, ready, items):
    handles = [channel.put(item, async_op=True) for item in items]
    channel.qsize()
    ready.put("putting")
    for handle in handles:
        handle.wait()


def take_one_and_leave(channel):
    return channel.get(timeout_s=DEADLINE_S)


def answer_requests(channel, count):
    for _ in range(count):
        number, reply_queue = channel.get("requests", timeout_s=DEADLINE_S)
        channel.put(number * number, queue_name=reply_queue, timeout_s=DEADLINE_S)


def count_until_closed(channel):
    return sum(1 for _ in channel)


def produce_as_producer(channel, items):
    with channel.producer():
        produce(channel, items)


def produce_async_as_producer(channel, count):
    with channel.producer():
        for number in range(count):
            channel.put(number, async_op=True)


def be_a_producer_and_never_leave(channel, ready):
    with channel.producer():
        channel.put("a put")
        ready.put("in")
        ready.get("never")


def fail_as_producer(channel):
    with channel.producer():
        channel.put("before")
        message = "it cannot go on"
        raise ZeroDivisionError(message)


def train(channel, index, num_shards, options):
    """(step, items, imbalance, complete) of every batch of a shard."""
    shard = channel.shard(index, num_shards, **options)
    return [(batch.step, list(batch), batch.imbalance, batch.complete) for batch in shard]


def write_into_a_batch_and_never_come_back(channel, ready, options):
    for batch in channel.shard(0, 2, **options):
        for item in batch:
            item[:] = 99
        ready.put("has it")
        ready.get("never")


def sums_of_batches(channel, index, num_shards, options):
    return [
        (batch.step, [float(item.sum()) for item in batch])
        for batch in channel.shard(index, num_shards, **options)
    ]


def put_a_sample_of_each(channel, prompts, sample):
    for prompt in prompts:
        channel.put(sample, group=("prompt", prompt), timeout_s=DEADLINE_S)


def take_groups_until_closed(channel, size):
    groups = []
    while True:
        try:
            group = channel.get_group(size, timeout_s=DEADLINE_S)
        except ChannelClosed:
            return groups
        groups.append((group.group, list(group)))


def take_a_part(channel):
    """One batch of the only shard."""
    return list(channel.shard(0, 1, batch_items=2).next_batch(DEADLINE_S))
