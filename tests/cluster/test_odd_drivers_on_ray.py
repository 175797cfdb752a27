"""Drivers that are not what most are: other threads open the cluster at once, they fork, their shell hides devices."""

import os

import pytest

from programs import run_program
from rlinf_scheduler.hardware.vendors import VENDORS

PROGRAM = """
import os, select, signal, sys, threading
import ray
from rlinf.scheduler import Cluster, Worker

class Rank(Worker):
    def devices(self):
        return os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("HIP_VISIBLE_DEVICES")

def opened_by_three(**options):
    def serve():
        together.wait()
        clusters.append(Cluster(**options))

    clusters, together = [], threading.Barrier(3)
    threads = [threading.Thread(target=serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(clusters), len({id(cluster.session) for cluster in clusters}), flush=True)
    return clusters

for options in ({"simulate": "1x2"}, {"address": "local"}):
    clusters = opened_by_three(**options)
    child = os.fork()
    if child == 0:
        sys.exit(3)
    descriptor = os.pidfd_open(child)
    if not select.select([descriptor], [], [], 60)[0]:
        os.kill(child, signal.SIGKILL)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(*Rank.create_group().launch(clusters[0], name="rank").devices().wait())
    if "simulate" in options:
        ray.shutdown()
for cluster in clusters:
    cluster.close()
print(repr(os.environ["CUDA_VISIBLE_DEVICES"]))
"""


@pytest.mark.ray(own=True)
def test_of_threads_the_first_opens_the_cluster_for_all_also_where_devices_are_hidden_and_after_rays_shutdown(
    tmp_path,
):
    masks = {name: "" for vendor in VENDORS for name in vendor.variables}
    environment = {**os.environ, **masks, "HOME": str(tmp_path)}
    done = run_program("-c", PROGRAM, with_ray=True, env=environment, timeout=250)
    simulated = ["3 1", "child 3", "('0', None) ('1', None)"]
    assert done.stdout.splitlines() == [*simulated, "3 1", "child 3", "('', '')", "''"], done.stderr
