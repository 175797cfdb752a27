"""Holds that Ray keeps for ever: it has recorded them after it cleaned up behind who took them."""

import os
import select
import signal

import pytest
import ray
from ray._private.state import actors, jobs
from ray.util import placement_group_table
from ray.util.placement_group import placement_group

from programs import run_program
from rlinf_scheduler.host.info import job_topology
from rlinf_scheduler.proc import living
from rlinf_scheduler.ray_backend.backend import on_node
from rlinf_scheduler.ray_backend.holds import (
    DeviceHold,
    DeviceHolds,
    NodeDevices,
    holds_in_cluster,
    resource_of,
)
from rlinf_scheduler.worker.processes import Processes
from waits import wait_until

DEADLINE_S = 60.0
HOLDER = "job 'dead'"
DRIVER = """
import sys, ray
from ray._private import ray_constants
ray_constants.ENABLE_RAY_CLUSTER = False  # else it takes another address than 127.0.0.1
ray.init(address=sys.argv[1], log_to_driver=False)
print(ray.get_runtime_context().get_job_id())
"""

# Devices are taken here that other tests keep.
pytestmark = [pytest.mark.ray(first=True), pytest.mark.system]


def job_server_class():
    class JobServer:  # Ray carries a local class by value
        def process(self):
            return os.getpid()

        def take_when_dead(self, wanted):
            own = ray.get_runtime_context().get_actor_id()
            while actors(own)["State"] != "DEAD":
                pass
            DeviceHolds("1234", HOLDER).take([wanted])

    return JobServer


def raylet_of(pid):
    parents = {process.pid: (process, parent) for process, parent in living().items()}
    process, parent = parents[pid]
    while process.name != "raylet":
        process, parent = parents[parent]
    return process.pid


def states_in_ray():
    table = placement_group_table().values()
    return [each["state"] for each in table if HOLDER in each["name"] and each["state"] != "REMOVED"]


@pytest.fixture
def node(ray_cluster):
    return job_topology(ray_cluster.session).nodes[1]


@pytest.fixture
def wanted(node):
    return NodeDevices(node.node_id, resource_of(node.accelerator_type), node.accelerator_names[:1])


@pytest.fixture
def of_an_actor(wanted):
    """Taken by one that Ray had declared dead, while its process had not been ended yet."""
    make = ray.remote(job_server_class()).options(
        num_cpus=0, lifetime="detached", scheduling_strategy=on_node(wanted.node_id)
    )
    job_server = make.remote()
    pid = ray.get(job_server.process.remote(), timeout=DEADLINE_S)
    raylet, descriptor = raylet_of(pid), os.pidfd_open(pid)
    job_server.take_when_dead.remote(wanted)
    os.kill(raylet, signal.SIGSTOP)  # who ends the process
    try:
        ray.kill(job_server, no_restart=True)
        wait_until(states_in_ray)
    finally:
        os.kill(raylet, signal.SIGCONT)
        ended = select.select([descriptor], [], [], DEADLINE_S)[0]
        os.close(descriptor)
    assert ended


@pytest.fixture
def of_a_driver(wanted, ray_address):
    """Recorded for one whose Ray job is over."""
    job = run_program("-c", DRIVER, ray_address, with_ray=True, timeout=DEADLINE_S).stdout.strip()
    wait_until(lambda: job in [each["JobID"] for each in jobs() if each["IsDead"]])
    hold = DeviceHold(job, "", wanted.node_id, wanted.names, 0.0, HOLDER)
    placement_group([{wanted.resource: 1}], name=hold.to_name())


@pytest.mark.parametrize("taken", ["of_an_actor", "of_a_driver"])
def test_what_a_dead_process_has_taken_is_given_back_by_who_looks(ray_cluster, node, wanted, taken, request):
    request.getfixturevalue(taken)
    wait_until(lambda: states_in_ray() == ["CREATED"])
    assert [hold for hold in holds_in_cluster() if HOLDER in hold.holder] == []
    assert states_in_ray() == []
    ray_cluster.session.service(Processes).reserve("rank", {1: node.accelerator_names}, 0.0)()
