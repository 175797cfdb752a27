"""Drivers that are not what most are: another thread opens the cluster, they fork, their shell hides all devices."""

import os

import pytest

from programs import run_program
from rlinf.scheduler.hardware.vendors import VENDORS

PROGRAM = """
import os, select, signal, sys, threading
from rlinf.scheduler import Cluster, Worker

class Rank(Worker):
    def devices(self):
        return os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("HIP_VISIBLE_DEVICES")

def serve():
    clusters.append(Cluster(**{sys.argv[1]: sys.argv[2]}))

clusters = []
thread = threading.Thread(target=serve)
thread.start()
thread.join()
with clusters[0] as cluster:
    child = os.fork()
    if child == 0:
        sys.exit(3)
    descriptor = os.pidfd_open(child)
    if not select.select([descriptor], [], [], 60)[0]:
        os.kill(child, signal.SIGKILL)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(*Rank.create_group().launch(cluster, name="rank").devices().wait())
print(repr(os.environ["CUDA_VISIBLE_DEVICES"]))
"""


@pytest.mark.ray(own=True)
@pytest.mark.parametrize(
    ("wanted", "seen"),
    [(("simulate", "1x2"), "('0', None) ('1', None)"), (("address", "local"), "('', '')")],
)
def test_a_thread_that_ends_opens_a_cluster_in_a_shell_that_hides_all_devices(wanted, seen, tmp_path):
    masks = {name: "" for vendor in VENDORS for name in vendor.variables}
    done = run_program(
        "-c", PROGRAM, *wanted, with_ray=True, env={**os.environ, **masks, "HOME": str(tmp_path)}, timeout=250
    )
    assert done.stdout.splitlines() == ["child 3", seen, "''"], done.stderr
