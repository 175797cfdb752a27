"""What hundreds of peers cost the process that holds their channel.

python tests/comm/test_many_peers.py [peers] [unix|tcp]     # prints the figures
"""

import contextlib
import multiprocessing
import sys
import time

import pytest
from crowd_peers import be_many, hold_channel

from rlinf.scheduler.comm import ClusterSecret

DEADLINE_S = 60.0
NUM_PROCESSES = 4
IDLE_S = 1.0


class Crowd:
    """A process that holds a channel, and others with `num_peers` messengers between them, all connected."""

    def __init__(self, num_peers, *, tcp=False):
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["crowd_peers"])
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
def crowd():
    crowd = Crowd(512)
    yield crowd
    crowd.close()


def test_512_peers_on_one_channel_take_a_descriptor_each_and_no_thread(crowd):
    connected = crowd.usage()
    assert connected["peers"] == 512
    assert connected["threads"] == crowd.alone["threads"]
    assert connected["descriptors"] <= crowd.alone["descriptors"] + 512
    expected = [(number, 100 * (number % 128)) for number in range(512)]
    assert sorted(crowd.trade()) == expected
    after = crowd.usage()
    assert after["threads"] == crowd.alone["threads"]
    assert crowd.idle_share() < 0.02
    crowd.leave()
    assert crowd.usage()["descriptors"] <= crowd.alone["descriptors"]


def main():
    num_peers = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    tcp = sys.argv[2:] == ["tcp"]
    began = time.monotonic()
    crowd = Crowd(num_peers, tcp=tcp)
    connected = crowd.usage()
    print(f"{connected['peers']} peers connected in {time.monotonic() - began:.1f} s")
    for what in ("threads", "descriptors"):
        print(f"{what}: {crowd.alone[what]} alone, {connected[what]} with them")
    began = time.monotonic()
    assert len({number for number, _ in crowd.trade()}) == num_peers
    took_s = time.monotonic() - began
    spent_s = crowd.usage()["cpu_s"] - connected["cpu_s"]
    print(f"a put and a get by each: {took_s:.2f} s, of which the holder computes {spent_s:.2f} s")
    print(f"idle: {crowd.idle_share():.2%} of a core")
    print(f"all leave: noticed within {crowd.leave():.2f} s")
    crowd.close()


if __name__ == "__main__":
    main()
