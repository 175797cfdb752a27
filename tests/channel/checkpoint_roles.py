"""What other processes do in the tests of checkpoints."""

DEADLINE_S = 60.0


def take_and_write_into(channel, number):
    """Take items and write into their arrays; what was in them."""
    seen = []
    for _ in range(number):
        array = channel.get(timeout_s=DEADLINE_S)
        seen.append(int(array[0]))
        array[:] = -1
    return seen


def save_in_a_lease(channel, path):
    """Save while an item is on lease, and let another one count as done with; what was on lease."""
    with channel.lease(timeout_s=DEADLINE_S) as one, channel.lease(timeout_s=DEADLINE_S) as two:
        channel.save(path, acknowledge=two)
        return one.item, two.item, two.num_left
