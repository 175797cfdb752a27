"""What the other processes of the tests of weights do; each function runs in one started by `start_process`."""

import contextlib
import os
import signal

import numpy as np

from rlinf_scheduler.comm import Messenger
from rlinf_scheduler.comm.replication.records import Copy
from rlinf_scheduler.errors import CommError
from rlinf_scheduler.weights import Weights
from rlinf_scheduler.weights.records import PublishingRank


def member(secret, machine, name, directory):
    messenger = Messenger(secret, name=name, machine_id=machine, tcp=True)
    return messenger, Weights(messenger, directory)


def state(number, *, num_tensors=10, elements=50_000):
    """Arrays that all hold `number`."""
    return {f"layer.{index}": np.full(elements, number, np.float32) for index in range(num_tensors)}


def numbers_in(state_dict):
    """The smallest and the largest value of each array: one number if all hold the same."""
    return {float(value) for array in state_dict.values() for value in (array.min(), array.max())}


def asked(pipe):
    """What comes through the pipe, until its other end is closed."""
    with contextlib.suppress(EOFError):
        while True:
            yield pipe.recv()


def publish_on_demand(pipe, secret, machine, directory, name):
    """Publishes each version that comes through the pipe."""
    messenger, weights = member(secret, machine, name, directory)
    pipe.send(messenger.endpoint)
    for version in asked(pipe):
        weights.publish("policy", state(version), version)
        pipe.send(version)


def publish_shard(pipe, secret, machine, directory, name, shard, version):
    """The second of two ranks of the actors, which publishes its shard of a version."""
    messenger = Messenger(secret, name=name, machine_id=machine, tcp=True)
    rank = PublishingRank(messenger.endpoint, name, "actor", 1, 1, 2)
    Weights(messenger, directory, rank=rank).publish("policy", shard, version)
    pipe.send(messenger.endpoint)
    pipe.recv()


def publish_large(pipe, secret, machine, directory, name):
    """Publishes one version that takes a while to cross a network."""
    messenger, weights = member(secret, machine, name, directory)
    weights.publish("policy", state(1, elements=2_000_000), 1)
    pipe.send(messenger.endpoint)
    pipe.recv()


def reader(_pipe, secret, machine, directory, name):
    """Fetches into arrays; see `fetch_on_demand`."""
    messenger, weights = member(secret, machine, name, directory)
    into = state(-1)

    def fetch(**options):
        return weights.fetch("policy", into, **options).wait(), numbers_in(into)

    return messenger, fetch


def fetch_on_demand(pipe, secret, machine, directory, name, reader=reader, *args):
    """Fetches with the arguments that come through the pipe; sends what came, or the error.

    Args:
        reader: gives the process's messenger, and what fetches and says what is there then.
        args: for it.
    """
    messenger, fetch = reader(pipe, secret, machine, directory, name, *args)
    pipe.send(messenger.endpoint)
    for options in asked(pipe):
        try:
            pipe.send(fetch(**options))
        except CommError as error:
            pipe.send(error)


def fetch_continually(pipe, secret, machine, directory, name, last):
    """Fetches until it has the last version; sends how often it did, and any state that was no version as a whole."""
    _messenger, weights = member(secret, machine, name, directory)
    into, version, num_fetches, broken = state(-1), -1, 0, []
    pipe.send(None)
    while version < last:
        wanted = version + 1 if num_fetches % 2 else None
        newer = weights.fetch("policy", into, min_version=wanted, timeout_s=60).wait()
        if numbers_in(into) != {float(newer)} or newer < version:
            broken.append((version, newer, numbers_in(into)))
        version, num_fetches = newer, num_fetches + 1
    pipe.send((num_fetches, broken))
    pipe.recv()


def hold_without_reading(pipe, secret, machine, directory, name):
    """Has a version fetched that it never copies."""
    _messenger, weights = member(secret, machine, name, directory)
    handle = weights.fetch("policy", state(-1), timeout_s=60)
    handle.settled.exception(60)
    pipe.send(None)
    pipe.recv()


def stop_when_it_is_replica(pipe, secret, machine, directory, name):
    """Dies of -9 as soon as it has the bytes that it should hand on."""
    messenger, weights = member(secret, machine, name, directory)
    weights._replicas.begin = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    pipe.send(messenger.endpoint)
    pipe.recv()
    weights.fetch("policy", state(-1), timeout_s=60).wait()


def signal_itself_when_it_is_asked(pipe, secret, machine, directory, name, number):
    """Is a replica that gets a signal as soon as another machine wants to copy from it."""
    messenger, weights = member(secret, machine, name, directory)
    weights.fetch("policy", state(-1), timeout_s=60).wait()
    messenger.unserve("weights.copy")
    messenger.serve("weights.copy", lambda _request: os.kill(os.getpid(), number), Copy)
    pipe.send(None)
    pipe.recv()


def signal_itself_after_pieces(pipe, secret, machine, directory, name, number, num_pieces):
    """Fetches a version of many pieces, and gets a signal when another machine has asked it for so many."""
    messenger, weights = member(secret, machine, name, directory)
    answer, asked = weights._replicas._on_copy, []

    def on_copy(request):
        asked.append(request)
        if len(asked) == num_pieces:
            os.kill(os.getpid(), number)
        answer(request)

    messenger.unserve("weights.copy")
    messenger.serve("weights.copy", on_copy, Copy)
    pipe.send(None)
    pipe.recv()
    weights.fetch("policy", state(-1, elements=200_000), timeout_s=60).wait()
    pipe.recv()


# Of many pieces, and in tensors that do not end where pieces do.
ELEMENTS = 400_000
SPARSITY = 64


def sparse(version):
    """Arrays of which each version changes a few values: each is the last version that has."""
    numbers = np.arange(ELEMENTS) % SPARSITY
    values = (version - (version - numbers) % SPARSITY).astype(np.float32)
    return {"w": values[:-77].reshape(-1, 1).copy(), "b": values[-77:].copy()}


def publish_sparse(pipe, secret, machine, directory, name):
    """Publishes each version that comes through the pipe; see `sparse`."""
    messenger, weights = member(secret, machine, name, directory)
    pipe.send(messenger.endpoint)
    for version in asked(pipe):
        weights.publish("policy", sparse(version), version, delta=True)
        pipe.send(version)


def fetch_sparse(pipe, secret, machine, directory, name):
    """Fetches each version that comes through the pipe."""
    messenger, weights = member(secret, machine, name, directory)
    pipe.send(messenger.endpoint)
    for version in asked(pipe):
        pipe.send(weights.fetch("policy", sparse(-1), min_version=version, timeout_s=60).wait())
