"""How much of its devices' memory a process has."""

import sys
import threading
import types
from pathlib import Path

import pytest

from rlinf_scheduler.observe.own_stats import DeviceMemories, initialised_platform, measured
from rlinf_scheduler.observe.process_stats import DeviceMemory


class Platform:
    """Two devices, of which the process uses the second; what `torch.cuda` says of them."""

    def is_initialized(self):
        return True

    def device_count(self):
        return 2

    def memory_reserved(self, index):
        return 10 * index

    def mem_get_info(self, index):
        assert index == 1, "to ask about a device that it does not use would make it use that"
        return 50, 80


def test_only_devices_that_the_process_uses_are_asked_about():
    assert measured(Platform()) == (DeviceMemory(1, 10, 30, 80),)


def test_pytorch_is_not_loaded_for_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert initialised_platform() is None
    assert "torch" not in sys.modules


def test_a_pytorch_that_has_initialised_no_device_is_left_alone(monkeypatch):
    idle = types.SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=idle))
    assert initialised_platform() is None


def test_it_is_measured_beside_and_told_at_the_next_look(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=Platform()))
    noted, callbacks = threading.Event(), []

    def submit(callback):
        callbacks.append(callback)
        noted.set()

    memories = DeviceMemories(lambda _delay_s, callback: callback(), submit)
    assert memories.last() == ()
    assert memories.last() == ()  # one measurement at a time
    assert noted.wait(60)
    (callback,) = callbacks
    callback()
    assert memories.last() == (DeviceMemory(1, 10, 30, 80),)


def test_a_driver_that_fails_hides_nothing_else(monkeypatch):
    broken = Platform()
    broken.memory_reserved = lambda _index: 1 / 0
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=broken))
    noted, callbacks = threading.Event(), []

    def submit(callback):
        callbacks.append(callback)
        noted.set()

    memories = DeviceMemories(lambda _delay_s, callback: callback(), submit)
    memories.last()
    assert noted.wait(60)
    callbacks[0]()
    assert memories.last() == ()


@pytest.mark.gpu
def test_what_a_real_device_says_of_its_memory():
    if not Path("/dev/nvidiactl").exists():  # to load PyTorch takes seconds
        pytest.skip("there is no NVIDIA accelerator here")
    torch = pytest.importorskip("torch")
    held = torch.zeros(1 << 20, device="cuda")
    (first, *_) = measured(initialised_platform())
    assert held.nbytes <= first.reserved_bytes <= first.used_bytes <= first.total_bytes
