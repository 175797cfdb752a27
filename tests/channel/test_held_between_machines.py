"""Three machines: what the channel's one sees of items that go from the second to the third."""

import contextlib
import multiprocessing
from multiprocessing import forkserver

import pytest

from machine_peers import join, run
from rlinf.scheduler.channel import Channel
from rlinf.scheduler.comm.secret import ClusterSecret
from rlinf.scheduler.errors import ItemsLost
from rlinf.testing.machines import MachineStar, MachinesUnavailable

DEADLINE_S = 20.0
MIB = 1 << 20


@pytest.fixture
def star():
    context = multiprocessing.get_context("forkserver")
    forkserver.ensure_running()  # on none of the machines
    try:
        star = MachineStar(3)
    except MachinesUnavailable as error:
        pytest.skip(f"tests between machines need root or CAP_SYS_ADMIN, and veth and bridge: {error}")
    with star, star.machines[0].entered():
        yield star, context


@pytest.fixture
def start(star):
    """Starts a function of `machine_peers` on one of the machines; gives its process and its pipe."""
    star, context = star
    secret = ClusterSecret.generate()
    with contextlib.ExitStack() as stack:
        driver = stack.enter_context(join(secret, star.machines[0].address, "driver"))

        def start(function, on, *args):
            ours, theirs = context.Pipe()
            arguments = (theirs, star.machines[on], function, secret, driver.messenger.endpoint, *args)
            process = context.Process(target=run, args=arguments, daemon=True)
            process.start()
            theirs.close()
            stack.callback(ours.close)
            stack.callback(process.join, DEADLINE_S)
            stack.callback(process.kill)
            return process, ours

        yield start


def received(pipe):
    assert pipe.poll(DEADLINE_S)
    return pipe.recv()


def test_bytes_of_items_do_not_pass_the_channels_machine(star, start):
    machines = star[0].machines
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
