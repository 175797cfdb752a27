"""Three machines: what the channel's one sees of items that go from the second to the third."""

import pytest

from machine_fixtures import received
from machine_peers import join
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.errors import ItemsLost

DEADLINE_S = 60.0
MIB = 1 << 20


@pytest.fixture
def start(star, secret, start_on):
    """Starts a function of `machine_peers` on one of the machines; gives its process and its pipe."""
    with join(secret, star.machines[0].address, "driver") as driver:
        yield lambda function, on, *args: start_on(
            star.machines[on], function, driver.messenger.endpoint, *args
        )


def test_bytes_of_items_do_not_pass_the_channels_machine(star, start):
    machines = star.machines
    Channel.create("items")
    holder = start("hold", 1)[1]
    assert received(holder) == "holds"
    # What processes need to find each other is not counted: they have traded one item before.
    producer, first = start("put_arrays", 1, "env:0", [1], MIB)
    assert received(first) == "put"
    consumer = start("take_arrays", 2, "actor:0", 9)[1]
    before = [machine.traffic() for machine in machines]
    second = start("put_arrays", 1, "env:1", range(2, 10), MIB)[1]
    assert received(second) == "put"
    producer.kill()
    assert sorted(received(consumer)) == list(range(1, 10))
    came, left = (
        [now[way] - then[way] for now, then in zip((m.traffic() for m in machines), before, strict=True)]
        for way in (0, 1)
    )
    assert came[0] + left[0] < MIB // 4, "the channel's machine saw descriptors"
    assert left[1] > 8 * MIB
    assert came[2] > 8 * MIB


def test_items_outlive_their_producer_and_go_with_their_node(start):
    channel = Channel.create("items")
    holder, says = start("hold", 1)
    assert received(says) == "holds"
    producer, pipe = start("put_arrays", 1, "env:0", [1, 2, 3], MIB)
    assert received(pipe) == "put"
    producer.kill()
    producer.join(DEADLINE_S)
    assert int(channel.get(timeout_s=DEADLINE_S)[0]) == 1
    holder.kill()
    with pytest.raises(ItemsLost, match=r"2 items put by 'env:0' went with node 192\.0\.2\.2"):
        channel.get(timeout_s=DEADLINE_S)
    assert channel.stats().num_lost == 2
