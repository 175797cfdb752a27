"""Thousands of real connections to one process, from few others."""

import contextlib
import multiprocessing
import time

import pytest

from crowd_peers import be_home, be_members
from rlinf_scheduler.comm import ClusterSecret

DEADLINE_S = 240.0
NUM_PROCESSES = 4


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
        self._members = [self._start(be_members, *args) for _ in range(NUM_PROCESSES)]
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
