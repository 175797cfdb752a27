"""What the tests of weights share: a job of several members, on two machines if need be."""

import multiprocessing
import threading
import time

from rlinf_scheduler.comm import DirectoryServer
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.weights import Weights
from rlinf_scheduler.weights.index_service import IndexService
from rlinf_scheduler.weights.records import PublishingRank

DEADLINE_S = 60.0
VERSION_BYTES = 10 * 50_000 * 4


class Job:
    """A directory, and members of the job on any machine: here, or in processes of their own."""

    def __init__(self, secret, new_messenger, stack):
        self._secret = secret
        self._new_messenger = new_messenger
        self._stack = stack
        self._context = multiprocessing.get_context("forkserver")
        self.driver = new_messenger("driver", "here")
        DirectoryServer(self.driver)
        self.index = IndexService(self.driver)
        self.messengers = {}

    def member(self, name, machine="here", device=None, **options):
        """Weights of a process of its own; `device` is the driver of the device that it has."""
        messenger = self.messengers[name] = self._new_messenger(name, machine, **options)
        devices = None if device is None else of_room("devices:Devices")(messenger, lambda: device)
        return Weights(messenger, self.driver.endpoint, devices=devices)

    def rank(self, rank, world_size, *, launch=1, machine="here", name="", device=None):
        """Weights of a rank of the group of actors."""
        name = name or f"actor:{rank}"
        messenger = self.messengers[name] = self._new_messenger(name, machine)
        publisher = PublishingRank(messenger.endpoint, name, "actor", launch, rank, world_size)
        devices = None if device is None else of_room("devices:Devices")(messenger, lambda: device)
        return Weights(messenger, self.driver.endpoint, devices=devices, rank=publisher)

    def start(self, function, name, *args, machine="here"):
        """A process that runs a function of `weights_peers` or its like, and our end of its pipe; it has spoken."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=function,
            args=(theirs, self._secret, machine, self.driver.endpoint, name, *args),
            daemon=True,
        )
        process.start()
        theirs.close()
        self._stack.callback(ours.close)
        self._stack.callback(process.join, DEADLINE_S)
        self._stack.callback(process.kill)
        first = answer_of(ours)
        return process, ours, first

    def arena(self, name):
        return self.messengers[name].payloads.arena


def answer_of(pipe, deadline_s=DEADLINE_S):
    assert pipe.poll(deadline_s)
    return pipe.recv()


def settle(messenger):
    """Return when the I/O thread has done what it was given."""
    done = threading.Event()
    messenger.submit(lambda: messenger.submit(done.set))
    assert done.wait(DEADLINE_S)


def wait_until(condition, messenger):
    """Return when `condition()` holds; looked at whenever the I/O thread has had its turn."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        settle(messenger)


def parked(job):
    """The readers that wait at the index for a version."""
    return [reader for waiting in list(job.index._waiting.values()) for reader in list(waiting)]


def hold_up_copies(monkeypatch, weights, messenger):
    """Let a reader begin no copy from another machine until it is told; what tells that it is to, and what lets it."""
    begun, may_begin = threading.Event(), threading.Event()
    reserve = weights._replicas._reserve

    def later(*args, **options):
        begun.set()
        messenger.run_beside(
            lambda: may_begin.wait(DEADLINE_S) and messenger.submit(lambda: reserve(*args, **options))
        )

    monkeypatch.setattr(weights._replicas, "_reserve", later)
    return begun, may_begin.set


def count_replicas(monkeypatch, weights):
    """A list that grows by a process's name whenever the publisher sends weights to another machine."""
    made = []
    publisher = weights._versions._publisher
    send_to = publisher._send_to

    def count(published, question, process_id):
        if not process_id:
            made.append(question.request.peer_name)
        send_to(published, question, process_id)

    monkeypatch.setattr(publisher, "_send_to", count)
    return made
