"""A Ray that does not start: the error is the library's, and nothing is left behind."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from programs import run_program
from rlinf.scheduler.engine import engine
from rlinf.scheduler.engine.engine import ray_errors
from rlinf.scheduler.errors import ClusterError, ClusterTimeout
from rlinf.scheduler.planning import Node

PROGRAM = Path(__file__).with_name("ray_that_fails.py")


@pytest.mark.ray(own=True)
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("nodes", "ClusterError: Ray does not say which nodes there are: Ray's own"),
        ("interrupted", "KeyboardInterrupt: "),
    ],
)
def test_a_start_that_fails_or_is_interrupted_leaves_nothing(what, told):
    done = run_program(PROGRAM, what, with_ray=True, timeout=240)
    assert done.returncode == 0, done.stderr
    left = "left: ['RaySystemError', [], False, None, True]"
    assert done.stdout.splitlines() == [told.rstrip("\n"), left], done.stderr


def test_what_was_started_is_taken_down_when_this_process_cannot_join_it(monkeypatch):
    done = []

    class Nodes:
        address = "127.0.0.1:1"

        def add_node(self, **_options):
            done.append("start")

        def shutdown(self):
            done.append("stop")

    def connect(address):
        raise AssertionError("Ray's own")

    # This process may have a Ray of the tests'.
    own_ray = SimpleNamespace(is_initialized=lambda: False, shutdown=lambda: done.append("leave"))
    monkeypatch.setattr(engine, "ray", own_ray)
    monkeypatch.setattr(engine, "use_fresh_token", lambda: lambda: done.append("old token"))
    monkeypatch.setattr(engine, "RayTestCluster", Nodes)
    monkeypatch.setattr(engine, "_connect", connect)
    # A real one would end that Ray too, which this very process has begun.
    guard = SimpleNamespace(marking=contextlib.nullcontext, stop=lambda: done.append("guard"))
    monkeypatch.setattr(engine, "Guard", lambda: guard)
    with pytest.raises(ClusterError, match="Ray did not start 2 simulated nodes: Ray's own"):
        engine.simulate_nodes([Node(), Node()])
    assert done == ["start", "start", "leave", "stop", "old token", "guard"]


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
