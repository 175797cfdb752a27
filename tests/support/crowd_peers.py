"""The processes of crowds: those of `test_many_peers`, one that holds a channel and some with many messengers each, and
those of `crowds`, a home and some that have many identities each.
"""

import contextlib
import os
import resource
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

from rlinf_scheduler.channel import Channel, ChannelSpec, host_channel
from rlinf_scheduler.channel.connections import ChannelConnections
from rlinf_scheduler.comm.descriptors import allow_descriptors
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.loop import IoLoop
from rlinf_scheduler.comm.peers import Peers
from rlinf_scheduler.comm.transport.identity import Identity
from rlinf_scheduler.comm.transport.listener import RefusalLog
from rlinf_scheduler.comm.transport.sockets import Sockets
from rlinf_scheduler.session import Session

DEADLINE_S = 240.0
LOOK_EVERY_S = 0.1
CONNECTING, CONNECTED = "no end of it", ""


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


def be_home(pipe, secret, computes, descriptors, tcp):
    """Be who all connect to, and say how many have."""
    if descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    allow_descriptors()
    refused = []
    warn = RefusalLog.warn
    RefusalLog.warn = lambda *told: (refused.append(told), warn(*told))
    machine = "there" if tcp else None
    session = Session(secret, "home:0", machine_id=machine, tcp=tcp, encryption=False)
    messenger = session.messenger
    pipe.send(messenger.endpoint)
    ended = threading.Event()

    def answer():
        with contextlib.suppress(EOFError):
            while asked := pipe.recv():
                if asked == "register":
                    ids = [each for each in messenger.transports() if each != messenger.endpoint.process_id]
                    for number, process_id in enumerate(ids):
                        endpoint = Endpoint(process_id, "", "", "")
                        session.directory.register(f"member:{number}", endpoint)
                pipe.send(
                    {
                        "peers": len(messenger.transports()) - 1,
                        "names": len(session.directory.list("member:")),
                        "refused": [reason for _, _, _, reason in refused],
                    }
                )
        ended.set()

    threading.Thread(target=answer, daemon=True).start()
    while computes and not ended.is_set():
        sum(range(1000))
    ended.wait()


class _Deaf:
    """Takes no note of what a member hears."""

    def on_connected(self, endpoint):
        pass

    def on_messages(self, peer, messages):
        pass


def be_members(pipe, secret, home, num_peers, tcp, unreachable_after_s):
    """Be as many processes, each with a key and sockets of its own, that all connect to the home."""
    allow_descriptors()
    loop = IoLoop("crowd")
    machine = "here" if tcp else home.machine_id
    with tempfile.TemporaryDirectory(prefix="crowd-") as folder:
        everybody = [
            _one(loop, secret, Path(folder, str(number)), machine, unreachable_after_s)
            for number in range(num_peers)
        ]
        loop.start()
        pipe.send("ready")
        pipe.recv()
        for peers in everybody:
            loop.submit(partial(peers.at, home))
        ended = threading.Event()
        loop.submit(partial(_look, loop, everybody, home.process_id, ended))
        ended.wait(DEADLINE_S)
    pipe.send([state for state in _states(everybody, home.process_id) if state != CONNECTED])
    with contextlib.suppress(EOFError):
        pipe.recv()
    os._exit(0)


def _look(loop, everybody, home_id, ended):
    if CONNECTING in _states(everybody, home_id):
        loop.call_later(LOOK_EVERY_S, partial(_look, loop, everybody, home_id, ended))
    else:
        ended.set()


def _states(everybody, home_id):
    return [_state(peers, peers.transport_to(home_id), home_id) for peers in everybody]


def _state(peers, line, home_id):
    if line is None:
        return peers.why_lost(home_id)
    return CONNECTING if line.link is None else CONNECTED


def _one(loop, secret, unix_path, machine, unreachable_after_s):
    identity = Identity(secret, "member:0")
    sockets = partial(
        Sockets, loop, identity, unix_path, "127.0.0.1" if machine == "here" else None, encrypts=False
    )
    peers = Peers(loop, sockets, unreachable_after_s, _Deaf())
    identity.endpoint = Endpoint(identity.process_id, machine, str(unix_path), peers.sockets.tcp_address)
    return peers
