"""Thousands of real connections to one process, from few others."""

import contextlib
import multiprocessing
import os
import resource
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from rlinf.scheduler.comm import ClusterSecret
from rlinf.scheduler.comm.descriptors import allow_descriptors
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.loop import IoLoop
from rlinf.scheduler.comm.peers import Peers
from rlinf.scheduler.comm.transport.identity import Identity
from rlinf.scheduler.comm.transport.refusals import RefusalLog
from rlinf.scheduler.comm.transport.sockets import Sockets
from rlinf.scheduler.session import Session

DEADLINE_S = 240.0
NUM_PROCESSES = 4
LOOK_EVERY_S = 0.1
CONNECTING, CONNECTED = "no end of it", ""


class Crowd:
    """A home, in a process of its own, and processes that stand for many.

    Args:
        computes: whether the home's main thread computes all the while, in Python.
        descriptors: how many the home may have; None: as many as this process.
        tcp: how they talk.
    """

    def __init__(self, *, computes=False, descriptors=None, tcp=False):
        self._context = multiprocessing.get_context("forkserver")
        self._stack = contextlib.ExitStack()
        self._secret = ClusterSecret.generate()
        self._tcp = tcp
        self._home = self._start(be_home, self._secret, computes, descriptors, tcp)
        self.endpoint = received(self._home)
        self._members = []

    def _start(self, function, *args):
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=function, args=(theirs, *args), daemon=True)
        process.start()
        theirs.close()
        self._stack.callback(process.join, DEADLINE_S)
        self._stack.callback(process.kill)
        self._stack.callback(ours.close)
        return ours

    def connect(self, num_peers, unreachable_after_s=30.0):
        """Let so many come at once; seconds until each is connected, and why those are lost that are not."""
        share = num_peers // NUM_PROCESSES
        args = (self._secret, self.endpoint, share, self._tcp, unreachable_after_s)
        self._members = [self._start(be_many, *args) for _ in range(NUM_PROCESSES)]
        for member in self._members:
            received(member)
        began = time.monotonic()
        for member in self._members:
            member.send("go")
        lost = [reason for member in self._members for reason in received(member)]
        return time.monotonic() - began, lost

    def leave(self):
        """Let all go at once, without a word."""
        for member in self._members:
            member.close()

    def register(self):
        """Let the home have a name for each."""
        self._home.send("register")
        received(self._home)

    def home(self):
        """What the home says of itself."""
        self._home.send("usage")
        return received(self._home)

    def close(self):
        """End all."""
        self._stack.close()


def received(pipe):
    """What comes next, in time."""
    assert pipe.poll(DEADLINE_S)
    return pipe.recv()


@pytest.fixture
def new_crowd():
    """Makes crowds."""
    with contextlib.ExitStack() as stack:

        def make(**options):
            crowd = Crowd(**options)
            stack.callback(crowd.close)
            return crowd

        yield make


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


def be_many(pipe, secret, home, num_peers, tcp, unreachable_after_s):
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
    return [_state(peers, peers.line_to(home_id), home_id) for peers in everybody]


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
