"""A Ray that does not start: the error is the library's, and nothing is left behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.scheduler.engine.engine import ray_errors
from rlinf.scheduler.errors import ClusterError, ClusterTimeout

PROGRAM = Path(__file__).with_name("ray_that_fails.py")


@pytest.mark.ray
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("init", "ClusterError: Ray did not start 1 simulated nodes: Ray's own"),
        ("nodes", "ClusterError: Ray does not say which nodes there are: Ray's own"),
        ("interrupted", "KeyboardInterrupt: "),
    ],
)
def test_a_start_that_fails_or_is_interrupted_leaves_nothing(what, told):
    done = subprocess.run(
        [sys.executable, PROGRAM, what], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.splitlines() == [told.rstrip("\n"), "left: [[], False, None, True]"], done.stderr


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
