"""A small job of plain processes, over Unix sockets or TCP; each process is killed when the job ends.

A function that runs in a process of its own takes the pipe to the test and its `Member` first; what it returns, or
the exception that ended it, is what `Peer.result` gives.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import multiprocessing
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from rlinf.testing.local import HeldHere
from rlinf_scheduler.channel import Channel, Starter
from rlinf_scheduler.comm import ClusterSecret
from rlinf_scheduler.mailbox import open_mailbox
from rlinf_scheduler.session import Session, set_current
from rlinf_scheduler.weights import open_weights

DEADLINE_S = 60.0
HERE, THERE = "here", "there"

_numbers = itertools.count()


class Member(Session):
    """This process's place in a job: channels, mailbox and weights of one process, without Ray."""

    def __init__(self, secret, name, machine=None, directory=None):
        super().__init__(secret, name, home=directory, machine_id=machine, tcp=machine is not None)
        self.provide(Starter, HeldHere(self))
        self.weights = self.service(open_weights)
        self.mailbox = self.service(open_mailbox)
        if directory is not None:
            self.directory.register(name, self.messenger.endpoint)
        set_current(self)


class Peer:
    """Another process of the job."""

    def __init__(self, process, pipe, name):
        self.process = process
        self.pipe = pipe
        self.name = name
        self.pid = process.pid

    def receive(self, timeout_s=DEADLINE_S):
        """What it sends next; it must say something in time. Its stacks are printed if it does not."""
        if not self.pipe.poll(timeout_s):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR2)
            self.process.join(0.5)
            message = f"'{self.name}' has not answered after {timeout_s} s"
            raise TimeoutError(message)
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join(DEADLINE_S)
            message = f"'{self.name}' has ended without a word, with exit code {self.process.exitcode}"
            raise ChildProcessError(message) from None

    def result(self, timeout_s=DEADLINE_S):
        """What its function returned, or raised."""
        kind, value = self.receive(timeout_s)
        if kind == "raised":
            raise value
        return value

    def stop(self):
        """Return when the process does not run any more, but is still there."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + DEADLINE_S
        while not all(_is_stopped(thread) for thread in Path(f"/proc/{self.pid}/task").iterdir()):
            assert time.monotonic() < deadline
            os.sched_yield()

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)

    def resident_bytes(self):
        """How much memory it has, without what it shares through files."""
        fields = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")

    def kill(self):
        self.process.kill()
        self.process.join(DEADLINE_S)


def _is_stopped(thread):
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"


class Job:
    """The test's own process as its driver, and the others.

    Args:
        transport: "unix", or "tcp" between those that run `HERE` (the driver too) and those that run `THERE`.
    """

    def __init__(self, transport="unix"):
        self._tcp = transport == "tcp"
        self._secret = ClusterSecret.generate()
        self._context = multiprocessing.get_context("forkserver")
        self._peers = []
        self.driver = Member(self._secret, "driver", self._machine(HERE))

    def _machine(self, where):
        return where if self._tcp else None

    def start(self, function, *args, where=HERE, name=None):
        """Run `function(pipe, member, *args)` in a process of its own."""
        name = name or f"{function.__name__}-{next(_numbers)}:0"
        ours, theirs = self._context.Pipe()
        arguments = (
            self._secret,
            name,
            self._machine(where),
            self.driver.messenger.endpoint,
            theirs,
            function,
            args,
        )
        process = self._context.Process(target=_run, args=arguments, daemon=True)
        process.start()
        theirs.close()
        peer = Peer(process, ours, name)
        self._peers.append(peer)
        return peer

    def hold(self, maxsize=0, where=THERE):
        """A channel in a process of its own: (that process, the channel)."""
        name = f"channel-{next(_numbers)}"
        peer = self.start(hold_channel, name, maxsize, where=where)
        assert peer.receive() == "held"
        return peer, Channel.connect(name, timeout_s=DEADLINE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for peer in self._peers:
            peer.process.kill()
        self.driver.close()
        for peer in self._peers:
            peer.process.join(DEADLINE_S)
            peer.pipe.close()
            peer.process.close()


def _run(secret, name, machine, directory, pipe, function, args):
    faulthandler.register(signal.SIGUSR2, file=sys.__stderr__, all_threads=True)
    member = Member(secret, name, machine, directory)
    try:
        outcome = ("returned", function(pipe, member, *args))
    except BaseException as error:  # noqa: BLE001 - the test raises it
        error.add_note(f"in '{name}':\n{traceback.format_exc()}")
        outcome = ("raised", error)
    with contextlib.suppress(OSError):
        pipe.send(outcome)
        stay(pipe)


def stay(pipe):
    """Live until the test closes its end or kills the process."""
    with contextlib.suppress(EOFError):
        pipe.recv()


def hold_channel(pipe, _member, name, maxsize):
    channel = Channel.create(name, maxsize=maxsize)
    pipe.send("held")
    stay(pipe)
    del channel
