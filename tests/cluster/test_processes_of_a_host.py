"""Which of a host's processes is the one that makes it a node."""

import subprocess
import sys

import pytest

from machine_fixtures import made_or_skipped
from rlinf.testing.hosts import Host
from rlinf.testing.machines import MachineStar

# Forks a child, which bears its name until it is told to run a program of its own.
FORKS = """
import os, sys
if os.fork() == 0:
    sys.stdin.read()
    os.execl("/bin/true", "true")
print("forked", flush=True)
os.wait()
"""


@pytest.fixture
def host(tmp_path):
    with made_or_skipped(lambda: MachineStar(1)) as star:
        yield Host(star.machines[0], tmp_path, 0, 0)


def test_a_child_that_runs_no_program_of_its_own_yet_is_no_second_node(host, tmp_path):
    command = [str(tmp_path / "raylet"), "-c", FORKS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with host.start(command, executable=sys.executable, **pipes) as raylet:
        assert raylet.stdout.readline() == "forked\n"
        assert len(host.processes()) == 2
        assert host.raylet() == raylet.pid
        raylet.stdin.close()
