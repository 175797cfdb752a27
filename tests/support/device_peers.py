"""Weights on pretend devices, and what other processes do with them; functions that `Job.start` runs in one each."""

import contextlib
import time

import torch

from rlinf.testing.device_memory import PretendDevice
from rlinf_scheduler.comm import Messenger
from rlinf_scheduler.devices import Devices
from rlinf_scheduler.weights import Weights
from weights_peers import asked

DEVICE = "GPU-one"
A_DAY_S = 86_400.0


def tensors(number, *, num_tensors=4, elements=250_000):
    """Tensors that all hold `number`."""
    return {f"layer.{index}": torch.full((elements,), float(number)) for index in range(num_tensors)}


def values_in(state_dict):
    """One number if all tensors hold the same."""
    return {value for tensor in state_dict.values() for value in (tensor.min().item(), tensor.max().item())}


def idle_bytes(weights):
    """How much of its buckets a process could fill now."""
    devices = weights._devices
    staging = devices._staging

    def look():
        devices._messenger.payloads.see_released_now()
        staging.settle(devices._driver)
        return sum(pool._sizes[number] for pool in staging._pools.values() for number in pool._idle)

    return devices._thread.ask(look).result(60)


class StoppingDevice(PretendDevice):
    """A device that stops for ever in the middle of a copy, once it is told to, and says so."""

    pipe = None

    @contextlib.contextmanager
    def copying(self, device, mark=None):
        yield
        if self.pipe is not None:
            self.pipe.send("in the middle")
            time.sleep(A_DAY_S)


def member(secret, machine, name, directory, device):
    messenger = Messenger(secret, name=name, machine_id=machine, tcp=True)
    devices = Devices(messenger, lambda: device)
    return messenger, Weights(messenger, directory, devices=devices)


def publish_on_demand(pipe, secret, machine, directory, name):
    """Publishes each version that comes through the pipe, a negative one by half; or says how much of its is idle."""
    device = StoppingDevice(DEVICE)
    messenger, weights = member(secret, machine, name, directory, device)
    pipe.send(messenger.endpoint)
    for version in asked(pipe):
        if version == "idle?":
            pipe.send(idle_bytes(weights))
            continue
        device.pipe = pipe if version < 0 else None
        weights.publish("policy", tensors(abs(version)), abs(version))
        pipe.send(device.used_bytes)


def reader(pipe, secret, machine, directory, name):
    """Fetches on a device, and stops in the middle if it has no arguments; see `weights_peers.fetch_on_demand`."""
    device = StoppingDevice(DEVICE)
    messenger, weights = member(secret, machine, name, directory, device)
    into = tensors(-1)

    def fetch(**options):
        device.pipe = None if options else pipe
        version = weights.fetch("policy", into, **options).wait()
        return version, values_in(into), device.num_opened, device.num_open

    return messenger, fetch
