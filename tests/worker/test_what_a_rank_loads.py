"""What the process of a rank loads before its worker is there: many start at once, and each pays for all of it."""

import subprocess
import sys

PROGRAM = """
import sys
import rlinf.scheduler.host.host
from rlinf.scheduler import Worker
print(*sys.modules)
"""
# Each comes with its first use.
NOT_NEEDED = (
    "omegaconf",
    "pydantic",
    "ray.cluster_utils",
    "pdb",
    "rlinf.scheduler.channel.client",
    "rlinf.scheduler.channel.server",
    "rlinf.scheduler.config",
    "rlinf.scheduler.engine.engine",
    "rlinf.scheduler.events",
    "rlinf.scheduler.mailbox.mailbox",
    "rlinf.scheduler.planning.planner",
    "rlinf.scheduler.queueing",
    "rlinf.scheduler.session.hearts",
    "rlinf.scheduler.session.links",
    "rlinf.scheduler.weights",
    "rlinf.scheduler.worker.group",
    "rlinf.scheduler.worker.launch",
    "torch",
)


def test_a_rank_loads_nothing_that_only_some_ranks_use():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "rlinf.scheduler.worker.worker" in loaded
    assert loaded.isdisjoint(NOT_NEEDED), sorted(loaded.intersection(NOT_NEEDED))
