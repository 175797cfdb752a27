"""What a channel keeps as sums, counted anew."""

from rlinf_scheduler.queueing import Tapped


def check_sums(state):
    """Make sure that the sums of a channel are those of its queues, and that no put waits for room that is there."""
    queues = [queue for queue in state._queues.values() if not isinstance(queue.name, Tapped)]
    depths = [queue.depth() for queue in queues]
    letters = state.leases.dead.values()
    stats = state.stats()
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
