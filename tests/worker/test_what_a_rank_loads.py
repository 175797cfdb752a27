"""What the process of a rank loads before its worker is there: many start at once, and each pays for all of it."""

import subprocess
import sys

PROGRAM = """
import sys
import rlinf_scheduler.host.host
from rlinf.scheduler import Worker
from rlinf_scheduler.rooms import of_room
of_room("profiling.sampled:serve_profiles"), of_room("tracing.tracer:Tracer")  # as `be_observed` does
print(*sys.modules)
"""
# Each comes with its first use.
NOT_NEEDED = (
    "_sysconfigdata__linux_x86_64-linux-gnu",
    "cryptography.x509",
    "omegaconf",
    "pydantic",
    "ray.cluster_utils",
    "pdb",
    "rlinf_scheduler.channel.channel",
    "rlinf_scheduler.channel.server",
    "rlinf_scheduler.config",
    "rlinf_scheduler.ray_backend.backend",
    "rlinf_scheduler.events",
    "rlinf_scheduler.hardware.reachability",
    "rlinf_scheduler.hardware.seen",
    "rlinf_scheduler.mailbox.mailbox",
    "rlinf_scheduler.observe.status",
    "rlinf_scheduler.planning.planner",
    "rlinf_scheduler.queueing.state",
    "rlinf_scheduler.session.heartbeat_monitor",
    "rlinf_scheduler.worker.node_watch",
    "rlinf_scheduler.weights",
    "rlinf_scheduler.worker.group",
    "rlinf_scheduler.worker.group_calls",
    "rlinf_scheduler.worker.launch",
    "torch",
)


def test_a_rank_loads_nothing_that_only_some_ranks_use():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "rlinf_scheduler.worker.worker" in loaded
    assert loaded.isdisjoint(NOT_NEEDED), sorted(loaded.intersection(NOT_NEEDED))
