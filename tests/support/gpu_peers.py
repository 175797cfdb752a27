"""What other processes do with weights on a real device; functions that `Job.start` runs in one each."""

import hashlib
import os

import torch

from device_peers import idle_bytes
from rlinf_scheduler.comm import Messenger
from rlinf_scheduler.devices import Devices
from rlinf_scheduler.devices.cuda_driver import cuda_driver
from rlinf_scheduler.weights import Weights
from weights_peers import asked

NUM_TENSORS = 8


def on_device(number, *, mib=64, dtype=torch.bfloat16):
    """Tensors on the first device that all hold `number`, of so many MiB together."""
    elements = (mib << 20) // NUM_TENSORS // dtype.itemsize
    return {
        f"layer.{index}": torch.full((elements,), number, dtype=dtype, device="cuda:0")
        for index in range(NUM_TENSORS)
    }


def digest_of(state_dict):
    """What tells these bits from all others, computed from host memory."""
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(state_dict):
        digest.update(state_dict[key].contiguous().view(torch.uint8).cpu().numpy())
    return digest.hexdigest()


def member(secret, machine, name, directory, environment):
    os.environ.update(environment)
    torch.cuda.init()
    messenger = Messenger(secret, name=name, machine_id=machine, tcp=True)
    return messenger, Weights(messenger, directory, devices=Devices(messenger, cuda_driver))


def reader(_pipe, secret, machine, directory, name, environment):
    """Says version, digest, and how much is open; see `weights_peers.fetch_on_demand`.

    With `digest=False` it computes none: that takes longer than all else.
    """
    messenger, weights = member(secret, machine, name, directory, environment)
    into = on_device(-1)

    def fetch(digest=True, **options):
        version = weights.fetch("policy", into, **options).wait()
        return version, digest_of(into) if digest else "", len(weights._devices._imports)

    return messenger, fetch


def fetch_without_end(pipe, secret, machine, directory, name):
    """Fetches again and again, until it is killed."""
    _, weights = member(secret, machine, name, directory, {})
    into = on_device(-1)
    weights.fetch("policy", into, timeout_s=60).wait()
    pipe.send(None)
    while True:
        weights.fetch("policy", into, timeout_s=60).wait()


def publish_on_demand(pipe, secret, machine, directory, name, environment):
    """Publishes random bits as each version that comes; sends their digest, and how much of its buckets is idle."""
    messenger, weights = member(secret, machine, name, directory, environment)
    pipe.send(messenger.endpoint)
    for version in asked(pipe):
        bits = on_device(0, dtype=torch.int16)
        for tensor in bits.values():
            tensor.random_(-(1 << 15), 1 << 15)
        # Not every such bit is a number: bits have to arrive, not values.
        weights.publish("policy", {key: tensor.view(torch.bfloat16) for key, tensor in bits.items()}, version)
        staged = weights._versions._versions["policy"][version].staged is not None
        pipe.send((digest_of(bits), staged, idle_bytes(weights)))


def publish_without_end(pipe, secret, machine, directory, name):
    """Publishes again and again, until it is killed."""
    _, weights = member(secret, machine, name, directory, {})
    for version in range(1 << 30):
        weights.publish("policy", on_device(version % 128), version)
        if version == 1:
            pipe.send(None)
