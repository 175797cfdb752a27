"""Drivers that are not what most are: other threads open the cluster at once, they fork, their shell hides devices."""

import os

import pytest

from programs import run_program
from rlinf_scheduler.hardware.vendors import VENDORS

PROGRAM = """
import os, select, signal, sys, threading
from contextlib import ExitStack
from rlinf.scheduler import Cluster, Worker

class Rank(Worker):
    def devices(self):
        return os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("HIP_VISIBLE_DEVICES")

def serve():
    together.wait()
    clusters.append(Cluster(**{sys.argv[1]: sys.argv[2]}))

clusters, together = [], threading.Barrier(3)
threads = [threading.Thread(target=serve) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(clusters), len({id(cluster.session) for cluster in clusters}), flush=True)
with ExitStack() as stack:
    cluster, *_ = map(stack.enter_context, clusters)
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
def test_of_threads_that_end_the_first_opens_the_cluster_for_all_in_a_shell_that_hides_all_devices(
    wanted, seen, tmp_path
):
    masks = {name: "" for vendor in VENDORS for name in vendor.variables}
    done = run_program(
        "-c", PROGRAM, *wanted, with_ray=True, env={**os.environ, **masks, "HOME": str(tmp_path)}, timeout=250
    )
    assert done.stdout.splitlines() == ["3 1", "child 3", seen, "''"], done.stderr


SHUTS_RAY_DOWN = """
import ray
from rlinf.scheduler import Cluster, Worker

class Rank(Worker):
    def double(self, number):
        return 2 * number

for number in range(2):
    cluster = Cluster(simulate="1x1")
    print(Rank.create_group().launch(cluster, name="rank").double(number).wait())
    if number == 0:
        ray.shutdown()
cluster.close()
"""


@pytest.mark.ray(own=True)
def test_a_program_that_shuts_ray_down_itself_opens_another_cluster(tmp_path):
    done = run_program(
        "-c", SHUTS_RAY_DOWN, with_ray=True, env={**os.environ, "HOME": str(tmp_path)}, timeout=250
    )
    assert done.stdout.splitlines() == ["[0]", "[2]"], done.stderr
