"""What hundreds of peers cost the process that holds their channel.

python tests/comm/transport/test_many_peers.py [peers] [unix|tcp]     # prints the figures
"""

import contextlib
import multiprocessing
import time

import pytest

from crowd_peers import be_many, hold_channel
from rlinf_scheduler.comm import ClusterSecret
from waits import wait_until

DEADLINE_S = 240.0
NUM_PROCESSES = 4
IDLE_S = 0.5


class Crowd:
    """A process that holds a channel, and others with `num_peers` messengers between them, all connected."""

    def __init__(self, num_peers, *, tcp=False):
        self._context = multiprocessing.get_context("forkserver")
        self._stack = contextlib.ExitStack()
        secret = ClusterSecret.generate()
        self._holder = self._start(hold_channel, secret, tcp)
        ref = received(self._holder)
        self.alone = self.usage()
        share = num_peers // NUM_PROCESSES
        self._members = [
            self._start(be_many, secret, tcp, ref, number * share, share) for number in range(NUM_PROCESSES)
        ]
        for member in self._members:
            received(member)

    def _start(self, function, *args):
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=function, args=(theirs, *args), daemon=True)
        process.start()
        theirs.close()
        self._stack.callback(process.join, DEADLINE_S)
        self._stack.callback(process.kill)
        self._stack.callback(ours.close)
        return ours

    def usage(self):
        """What the holder uses."""
        self._holder.send("usage")
        return received(self._holder)

    def trade(self):
        """Every peer puts an item and gets one; what they got."""
        for member in self._members:
            member.send("go")
        return [item for member in self._members for item in received(member)]

    def idle_share(self):
        """The share of one core that the holder takes while nobody does anything."""
        before = self.usage()
        # Nothing comes on this pipe: the wait ends with its time.
        assert not self._members[0].poll(IDLE_S)
        after = self.usage()
        return (after["cpu_s"] - before["cpu_s"]) / (after["at_s"] - before["at_s"])

    def leave(self):
        """End all members at once; seconds until the holder has lost them."""
        began = time.monotonic()
        for member in self._members:
            member.close()
        while self.usage()["peers"]:
            assert time.monotonic() - began < DEADLINE_S
        return time.monotonic() - began

    def close(self):
        self._stack.close()


def received(pipe):
    assert pipe.poll(DEADLINE_S)
    return pipe.recv()


@pytest.fixture
def new_crowd():
    with contextlib.ExitStack() as stack:

        def make(*args, **options):
            crowd = Crowd(*args, **options)
            stack.callback(crowd.close)
            return crowd

        yield make


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("num_peers", "transport"), [(128, "unix"), (48, "tcp")])
def test_many_peers_on_one_channel_take_a_descriptor_each_and_no_thread(new_crowd, num_peers, transport):
    crowd = new_crowd(num_peers, tcp=transport == "tcp")
    connected = crowd.usage()
    assert connected["peers"] == num_peers
    assert connected["threads"] == crowd.alone["threads"]
    assert connected["descriptors"] <= crowd.alone["descriptors"] + num_peers
    share = num_peers // NUM_PROCESSES
    assert sorted(crowd.trade()) == [(number, 100 * (number % share)) for number in range(num_peers)]
    after = crowd.usage()
    assert after["threads"] == crowd.alone["threads"]
    # The collector of garbage may be at what was traded.
    assert min(crowd.idle_share() for _ in range(3)) < 0.05
    crowd.leave()
    wait_until(lambda: crowd.usage()["descriptors"] <= crowd.alone["descriptors"])
