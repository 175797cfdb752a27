"""A driver whose Ray does not start as it should; run as a program with the name of what goes wrong."""

import os
import signal
import sys
from pathlib import Path

import ray
from ray._private.node import Node

from rlinf.scheduler import Cluster
from rlinf_scheduler.session import current_or_none

START_LIMIT = "RAY_gcs_server_port_wait_time_s"
if sys.argv[1] == "silent":  # it is there, however long it takes to start
    os.environ[START_LIMIT] = "60"
real_init, real_nodes, real_service = ray.init, ray.nodes, Node.start_gcs_server


def children():
    """The names of this process's children that run."""
    found = Path("/proc/self/task").glob("*/children")
    pids = [pid for file in found for pid in file.read_text().split()]
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")") for pid in pids]
    return [name.partition("(")[2] for name, _, rest in stats if rest.split()[0] != "Z"]


def init(*args, **kwargs):
    """Is interrupted, if the test wants it."""
    if sys.argv[1] == "interrupted":
        os.kill(os.getpid(), signal.SIGINT)
    return real_init(*args, **kwargs)


def service(node):
    """Is stopped, if the test wants it: nothing answers where it listens."""
    real_service(node)
    if sys.argv[1] == "silent":
        (started,) = node.all_processes["gcs_server"]
        os.kill(started.process.pid, signal.SIGSTOP)


def nodes():
    """Fails as the test wants."""
    if sys.argv[1] == "nodes":
        raise RuntimeError("Ray's own")
    return real_nodes()


def late():
    """What a thread meets that asks for something of Ray's when that has been left."""
    try:
        ray.get_actor("late")
    except Exception as error:  # noqa: BLE001 - shown
        return type(error).__name__


ray.init, ray.nodes, Node.start_gcs_server = init, nodes, service
before = {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH")}
try:
    Cluster(simulate="1x1", start_timeout_s=3 if sys.argv[1] == "silent" else 120)
except BaseException as error:  # noqa: BLE001 - shown
    sys.stdout.write(f"{type(error).__name__}: {error}\n")
after = {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH")}
left = [late(), children(), ray.is_initialized(), current_or_none(), before == after]
sys.stdout.write(f"left: {left}\n")
