"""What other processes do with items on pretend devices, in the tests of channels."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import torch

from rlinf.testing.device_memory import PretendDevice
from rlinf_scheduler.devices import Devices
from rlinf_scheduler.devices.devices import open_devices
from rlinf_scheduler.session import current_session

DEVICE = "GPU-one"
DEADLINE_S = 60.0
ELEMENTS = 250_000
ITEM_BYTES = 4 * ELEMENTS
BUCKET_BYTES = 2 << 20
A_DAY_S = 86_400.0


class StoppingDevice(PretendDevice):
    """A device that stops for ever in the middle of a copy, once it is told to, and says so."""

    told = None

    @contextmanager
    def copying(self, device, mark=None):
        yield
        if self.told is not None:
            self.told()
            time.sleep(A_DAY_S)


def have(device, session=None, **options):
    """Let this process have a device; a driver, or None."""
    session = session or current_session()
    devices = Devices(session.messenger, lambda: device, **options)
    session.provide(open_devices, devices)
    return devices


def full_of(number):
    return torch.full((ELEMENTS,), float(number))


def number_in(item):
    low, high = item.min().item(), item.max().item()
    return low if low == high else (low, high)


def make_ready(channel):
    """Return when it is known whether the channel's process and this one read each other's shared memory."""
    channel.qsize()
    messenger, known = channel._connection()._messenger, threading.Event()
    messenger.payloads.when_ready(channel._ref.endpoint, known.set)
    return known.wait(DEADLINE_S)


def produce_and_stay(channel, numbers):
    have(PretendDevice(DEVICE))
    for number in numbers:
        channel.put(full_of(number), timeout_s=DEADLINE_S)
    channel.put(current_session().name, queue_name="told")
    channel.get("never")


def consume(channel, uuid, count):
    """What items hold, and how many buckets this process has opened."""
    device = PretendDevice(uuid)
    have(device)
    items = [channel.get(timeout_s=DEADLINE_S) for _ in range(count)]
    return [number_in(item) for item in items], device.num_opened


def take_one_and_stop_in_the_middle(channel):
    device = StoppingDevice(DEVICE)
    have(device)
    make_ready(channel)
    device.told = lambda: channel.put("in the middle", queue_name="told", async_op=True)
    channel.get()


def put_and_stop_in_the_middle(channel):
    device = StoppingDevice(DEVICE)
    have(device)
    device.told = lambda: channel.put("in the middle", queue_name="told", async_op=True)
    channel.put(full_of(1))
