"""A Ray that does not start: the error is the library's, and nothing is left behind."""

import contextlib
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from programs import run_program
from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.hardware.vendors import VENDORS
from rlinf_scheduler.planning import Node
from rlinf_scheduler.ray_backend import backend
from rlinf_scheduler.ray_backend.backend import ray_errors

PROGRAM = Path(__file__).with_name("ray_that_fails.py")


@pytest.mark.ray(own=True)
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("nodes", "ClusterError: Ray does not say which nodes there are: Ray's own"),
        ("interrupted", "KeyboardInterrupt: "),
        (
            "silent",
            "ClusterTimeout: what listens at 127.0.0.1:PORT does not answer as a Ray does, after SOME s",
        ),
    ],
)
def test_a_start_that_fails_or_is_interrupted_leaves_nothing(what, told):
    done = run_program(PROGRAM, what, with_ray=True, timeout=240)
    assert done.returncode == 0, done.stderr
    left = "left: ['RaySystemError', [], False, None, True]"
    said = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", done.stdout)
    said = re.sub(r"after [0-3]\.\d s", "after SOME s", said).splitlines()  # what is left of its 3 s
    assert said == [told.rstrip("\n"), left], done.stderr


def test_what_was_started_is_taken_down_when_this_process_cannot_join_it(monkeypatch):
    done = []

    class Nodes:
        address = "127.0.0.1:1"

        def __init__(self, **_options):
            pass

        def add_node(self, **_options):
            done.append("start")

        def shutdown(self):
            done.append("stop")

    def connect(address):
        raise AssertionError("Ray's own")

    # This process may have a Ray of the tests'.
    own_ray = SimpleNamespace(is_initialized=lambda: False, shutdown=lambda: done.append("leave"))
    monkeypatch.setattr(backend, "ray", own_ray)
    monkeypatch.setattr(backend, "use_fresh_token", lambda: lambda: done.append("old token"))
    monkeypatch.setattr(backend, "RayTestCluster", Nodes)
    monkeypatch.setattr(backend, "_connect", connect)
    # A real one would end that Ray too, which this very process has begun.
    guard = SimpleNamespace(marking=contextlib.nullcontext, stop=lambda: done.append("guard"))
    monkeypatch.setattr(backend, "Guard", lambda: guard)
    with pytest.raises(ClusterError, match="Ray did not start 2 simulated nodes: Ray's own"):
        backend.simulate_nodes([Node(), Node()])
    assert done == ["start", "start", "leave", "stop", "old token", "guard"]


@pytest.mark.parametrize("mask", ["", "0", "-1", "NoDevFiles", "GPU-1,GPU-2"])
def test_pretend_devices_are_started_without_the_masks_of_real_ones_which_stay_as_they_are(monkeypatch, mask):
    seen = []

    class Nodes:
        def __init__(self, **_options):
            pass

        def add_node(self, **_options):
            seen.extend(name for name in masks if name in os.environ)
            raise RuntimeError("enough is seen")

        def shutdown(self):
            pass

    masks = {name for vendor in VENDORS for name in vendor.variables}
    for name in masks:
        monkeypatch.setenv(name, mask)
    own_ray = SimpleNamespace(is_initialized=lambda: False, shutdown=lambda: None)
    monkeypatch.setattr(backend, "ray", own_ray)
    monkeypatch.setattr(backend, "use_fresh_token", lambda: lambda: None)
    monkeypatch.setattr(backend, "RayTestCluster", Nodes)
    monkeypatch.setattr(
        backend, "Guard", lambda: SimpleNamespace(marking=contextlib.nullcontext, stop=lambda: None)
    )
    with pytest.raises(ClusterError, match="enough is seen"):
        backend.simulate_nodes([Node(num_accelerators=2)])
    assert seen == []
    assert {os.environ[name] for name in masks} == {mask}


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, AssertionError, OSError, TypeError])
def test_whatever_ray_raises_is_a_cluster_error_with_it_as_its_cause(kind):
    with pytest.raises(ClusterError, match="no nodes: Ray's own") as caught, ray_errors("no nodes"):
        raise kind("Ray's own")
    assert type(caught.value.__cause__) is kind


def test_what_is_said_already_is_said_once():
    with pytest.raises(ClusterTimeout, match=r"^late$"), ray_errors("no nodes"):
        raise ClusterTimeout("late")
    with pytest.raises(KeyboardInterrupt), ray_errors("no nodes"):
        raise KeyboardInterrupt
