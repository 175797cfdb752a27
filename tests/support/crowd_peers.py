"""The processes of `test_many_peers`: one that holds a channel, and some with many messengers each."""

import os
import time
from pathlib import Path

from rlinf.scheduler.channel import Channel, ChannelSpec, host_channel
from rlinf.scheduler.channel.connections import ChannelConnections
from rlinf.scheduler.session import Session


def hold_channel(pipe, secret, tcp):
    """Hold the channel; answer questions about this process."""
    session = Session(secret, "holder:0", tcp=tcp, machine_id="there" if tcp else None)
    pipe.send(host_channel(session, ChannelSpec("crowd")).ref)
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        pipe.send(usage(session.messenger))


def usage(messenger):
    return {
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "peers": len(messenger.transports()) - 1,  # without itself
        "cpu_s": time.process_time(),
        "at_s": time.monotonic(),
    }


def be_many(pipe, secret, tcp, ref, first, count):
    """As many peers: when told so each puts an item, then gets one; then all stay connected."""
    peers = []
    machine = "here" if tcp else None
    for number in range(first, first + count):
        session = Session(secret, f"peer:{number}", home=ref.endpoint, tcp=tcp, machine_id=machine)
        peers.append(Channel(ref))
        peers[-1]._cached = session.service(ChannelConnections).to(ref)  # of its own, not of this process
    waiting = [peer.get("no such", async_op=True) for peer in peers]
    sizes = [peer.qsize() for peer in peers]
    pipe.send(sizes)
    pipe.recv()
    puts = [peer.put((first + i, b"x" * 100 * i), async_op=True) for i, peer in enumerate(peers)]
    for handle in puts:
        handle.wait(200)
    items = [handle.wait(200) for handle in [peer.get(async_op=True) for peer in peers]]
    pipe.send([(number, len(data)) for number, data in items])
    try:
        pipe.recv()
    except EOFError:
        return
    del waiting
