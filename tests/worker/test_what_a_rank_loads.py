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


def loaded_by(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_a_rank_loads_nothing_that_only_some_ranks_use():
    loaded = loaded_by(PROGRAM)
    assert "rlinf_scheduler.worker.worker" in loaded
    assert loaded.isdisjoint(NOT_NEEDED), sorted(loaded.intersection(NOT_NEEDED))


def test_what_ends_a_rank_from_another_machine_loads_nothing_of_a_job():
    """Ray runs it there in a process of its own, while somebody waits for the end of the rank."""
    loaded = loaded_by(
        "import sys; from rlinf_scheduler.host.processes import kill_process; print(*sys.modules)"
    )
    assert loaded.isdisjoint(["rlinf_scheduler.comm", "rlinf_scheduler.session", "numpy"])
