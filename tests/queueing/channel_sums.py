"""What a channel keeps as sums, counted anew; and a channel that is made of a snapshot."""

import msgspec

from rlinf_scheduler.queueing.dead_letters import DeadLetters
from rlinf_scheduler.queueing.item import SubscriptionName
from rlinf_scheduler.queueing.policies import ChannelData
from rlinf_scheduler.queueing.policy import OperationOver
from rlinf_scheduler.queueing.stats import counts_of, depth_of


def restore(state, snapshot):
    """Let a new channel hold what was written of another one, and read."""
    data = msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot.data), type=ChannelData)
    state.restore(data, [item.payload for item in snapshot.items])


def check_sums(state):
    """Make sure that the sums of a channel are those of its queues, and that no put waits for room that is there."""
    queues = [queue for queue in state.queues.all() if not isinstance(queue.name, SubscriptionName)]
    depths = [depth_of(queue) for queue in queues]
    letters = state.policy(DeadLetters).letters.values()
    stats = counts_of(state.queues)
    assert (stats.num_items, stats.size_bytes, stats.num_leased, stats.num_dead, stats.num_queues) == (
        sum(depth.num_items for depth in depths),
        sum(depth.size_bytes for depth in depths),
        sum(depth.num_leased for depth in depths),
        sum(depth.num_dead for depth in depths),
        len(queues),
    )
    dead_bytes = sum(letter.item.size_bytes for letter in letters)
    assert stats.held_bytes == dead_bytes + sum(queue.held_bytes for queue in queues)
    for queue in queues:
        assert not (queue.putters and queue.has_room(next(iter(queue.putters)).item.size_bytes)), queue.name


def is_over(state, operation, client=""):
    """Whether what an operation is about is over."""
    try:
        state.apply(operation, client)
    except OperationOver:
        return True
    return False
