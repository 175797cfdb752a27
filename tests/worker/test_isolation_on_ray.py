"""What Ray lets real worker processes start with and see; the rule itself is tested without a process."""

import os
import queue
import signal
import sys
import threading
from functools import partial
from types import SimpleNamespace

import pytest
import ray
from ray._private.state import actors
from ray.exceptions import RpcError
from ray.experimental.internal_kv import _internal_kv_list, _internal_kv_put, internal_kv_get_gcs_client
from ray_workers import Probe

from rlinf.scheduler import Cluster, ComponentPlacement, FlexiblePlacementStrategy, NodePlacementStrategy
from rlinf_scheduler.comm import ClusterSecret
from rlinf_scheduler.errors import ClusterError, ConfigError, LaunchTimeout
from rlinf_scheduler.events import WorkerStarted
from rlinf_scheduler.host import actor_spec
from rlinf_scheduler.host.actor_spec import withdraw, withdraw_all, withdraw_of_the_dead
from rlinf_scheduler.proc import held, living, send
from rlinf_scheduler.ray_backend import backend, variables
from rlinf_scheduler.ray_backend.backend import variables_lacking
from rlinf_scheduler.ray_backend.raylets import nodes_like_here
from rlinf_scheduler.session import Session
from rlinf_scheduler.worker import processes
from rlinf_scheduler.worker.processes import Processes
from waits import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.system]


def seen(cluster, strategy, *names, **options):
    group = Probe.create_group().launch(cluster, strategy, **options)
    try:
        return [tuple(e.values()) for e in group.environment(*names).wait(60)]
    finally:
        group.terminate()


OWN_SETTING = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"


@ray.remote(num_cpus=0, max_retries=0)
def mask_setting():
    """What tells Ray to leave the mask of a task alone."""
    return os.environ.get(OWN_SETTING)


@ray.remote(num_cpus=0, max_retries=0)
def own_pid():
    """The number of its process."""
    return os.getpid()


@pytest.fixture(scope="module")
def all_visible(ray_cluster):
    """What two ranks that see all of their nodes find in their environments."""
    names = ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "RANK", OWN_SETTING, "GLIBC_TUNABLES")
    return seen(ray_cluster, FlexiblePlacementStrategy([[1], [7]]), *names, isolate_gpu=False)


@pytest.fixture(scope="module")
def started(ray_cluster):
    """What ranks report of the devices that they see, each on the node where it runs: isolated ones."""
    events = queue.SimpleQueue()
    ray_cluster.subscribe(events.put)
    seen(ray_cluster, FlexiblePlacementStrategy([[1, 2], [7]]), name="isolated")
    found = {}
    while len(found) < 2:
        event = events.get(timeout=60)
        if isinstance(event, WorkerStarted) and event.group == "isolated":
            found[event.rank] = event.devices
    return found


def test_ranks_report_the_accelerators_that_they_see_on_their_own_nodes(ray_cluster, started):
    first, second = ray_cluster.topology.nodes
    assert started == {0: first.uuids[1:3], 1: second.uuids[3:]}
    assert started == {0: ("SIMULATED-0-1", "SIMULATED-0-2"), 1: ("SIMULATED-1-7",)}


def test_without_isolation_workers_see_all_of_the_node_and_their_true_index(all_visible):
    assert [found[:3] for found in all_visible] == [("0,1,2,3", "1", "0"), ("4,5,6,7", "3", "1")]


def test_what_our_processes_start_with_is_not_forced_upon_the_users_own_ray_tasks(all_visible):
    assert [found[3] for found in all_visible] == ["1", "1"]
    assert ray.get(mask_setting.remote(), timeout=60) is None


def test_no_rank_lives_in_a_process_that_ran_a_task_of_the_users(ray_cluster):
    # What the task had imported would have seen other masks.
    pid_of_task = ray.get(own_pid.remote(), timeout=60)
    group = Probe.create_group().launch(ray_cluster, NodePlacementStrategy([0, 1]))
    pids = [found["real_pid"] for found in group.who().wait(60)]
    group.terminate()
    assert pid_of_task not in pids


def test_what_nodes_of_somebody_elses_do_not_start_with_is_given_to_each_process(ray_cluster, monkeypatch):
    node_ids = [node.node_id for node in ray_cluster.topology.nodes]
    assert variables_lacking() == {node_id: {} for node_id in node_ids}
    monkeypatch.setattr(variables, "LABELS", {"somebody": "else"})
    (name,) = variables.OF_A_PROCESS
    assert [list(lacking) for lacking in variables_lacking().values()] == [[name]] * 2
    monkeypatch.setattr(ray_cluster.session.service(Processes), "_lack", {})
    own = [found[0] for found in seen(ray_cluster, NodePlacementStrategy([0]), name)]
    assert own == [variables.OF_A_PROCESS[name].replace("${GLIBC_TUNABLES}", variables.of_a_node({})[name])]


def test_what_a_rank_is_to_host_stays_with_ray_neither_after_a_launch_nor_after_one_that_is_given_up(
    ray_cluster,
):
    left = partial(_internal_kv_list, "host:", namespace="rlinf")
    with Probe.create_group().launch(ray_cluster, NodePlacementStrategy([0])):
        assert left() == []
    with pytest.raises(LaunchTimeout):
        Probe.create_group().launch(ray_cluster, NodePlacementStrategy([0, 1]), launch_timeout_s=0.001)
    assert left() == []


def test_what_a_driver_left_that_was_killed_in_its_launch_goes_with_the_next_job(ray_cluster):
    of_living = f"host:{ray.get_runtime_context().get_job_id()}:a rank that is being started".encode()
    for key in (of_living, b"host:ffffff7f:a rank of a driver that is dead"):
        _internal_kv_put(key, b"its spec", namespace="rlinf")
    withdraw_of_the_dead()
    try:
        assert _internal_kv_list("host:", namespace="rlinf") == [of_living]
    finally:
        withdraw_all(ray.get_runtime_context().get_job_id())
    assert _internal_kv_list("host:", namespace="rlinf") == []


def test_what_a_job_server_left_that_was_killed_in_a_launch_goes_with_the_next_look_at_jobs(ray_cluster):
    rank = Probe.create_group().launch(ray_cluster, NodePlacementStrategy([0]))
    (who,) = rank.who().wait(60)
    # Others may begin or end meanwhile, as of a launch that was given up.
    (living,) = (name for name, each in actors().items() if each["Pid"] == who["real_pid"])
    of_living, of_dead = (f"host:{'12' * 16}:{job_server}".encode() for job_server in (living, "ab" * 16))
    for key in (of_living, of_dead):
        _internal_kv_put(key, b"its spec", namespace="rlinf-kept")
    withdraw_of_the_dead()
    assert _internal_kv_list("host:", namespace="rlinf-kept") == [of_living]
    rank.terminate()
    wait_until(lambda: actors(living)["State"] == "DEAD")
    withdraw_of_the_dead()
    assert _internal_kv_list("host:", namespace="rlinf-kept") == []


def test_the_first_launch_of_a_job_waits_in_no_io_thread_for_a_head_that_does_not_answer(
    ray_cluster, monkeypatch
):
    begun, answers, looked = (threading.Event() for _ in range(3))

    def look():
        begun.set()
        answers.wait(60)
        looked.set()

    monkeypatch.setattr(processes, "withdraw_of_the_dead", look)
    with Session(ClusterSecret.generate(), "driver") as session:
        session.service(Processes)
        assert begun.wait(60)
        assert not looked.is_set()
        answers.set()
        assert looked.wait(60)


def test_a_head_that_does_not_answer_is_asked_for_job_servers_within_a_deadline(ray_cluster, monkeypatch):
    monkeypatch.setattr(actor_spec, "TIDY_S", 0.2)
    heads = [each for each, parent in living().items() if (each.name, parent) == ("gcs_server", os.getpid())]
    store = internal_kv_get_gcs_client()
    with held(heads) as descriptors:
        send(descriptors.values(), signal.SIGSTOP)
        try:
            with pytest.raises(RpcError, match="Deadline"):
                actor_spec._living(store, {"12" * 16})
        finally:
            send(descriptors.values(), signal.SIGCONT)
    monkeypatch.setattr(actor_spec, "TIDY_S", 30.0)
    assert actor_spec._living(store, {"12" * 16}) == set()


def test_without_a_ray_nothing_is_taken_back_and_nothing_raised(ray_cluster, monkeypatch):
    monkeypatch.setattr(actor_spec, "internal_kv_get_gcs_client", lambda: None)
    withdraw(["a rank"])
    withdraw_all("01000000")
    withdraw_of_the_dead()
    with pytest.raises(ClusterError, match="not connected to Ray"):
        actor_spec.hand_over("a rank", SimpleNamespace(detached_job=""))


def test_ranks_copy_large_memory_around_the_cache(all_visible):
    assert all("glibc.cpu.x86_non_temporal_threshold=4194304" in found[4] for found in all_visible)


def test_a_node_of_this_machine_says_of_itself_what_is_said_of_it_from_here(ray_cluster, monkeypatch):
    nodes = [node for node in ray.nodes() if node["Alive"]]
    assert len(nodes_like_here([node["NodeID"] for node in nodes])) == 2
    from_here = backend.probe_nodes(nodes, 60)
    monkeypatch.setattr(backend, "nodes_like_here", lambda _node_ids: {})
    assert backend.probe_nodes(nodes, 60) == from_here


def environments(*entries):
    return {
        "num_nodes": 2,
        "component_placement": {"env": {"node_group": "both", "placement": "0,4"}},
        "node_groups": [{"label": "both", "node_ranks": "0-1", "env_configs": list(entries)}],
    }


def test_variables_and_interpreter_of_a_node_group_reach_its_processes_and_may_differ_between_nodes(
    ray_cluster, tmp_path
):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nRUN_BY_WRAPPER=yes exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    config = environments(
        {
            "node_ranks": 0,
            "env_vars": [{"NCCL_IFNAME": "eth0"}, {"SHARED": "yes"}],
            "python_interpreter_path": str(wrapper),
        },
        {
            "node_ranks": [1],
            "env_vars": {
                "NCCL_IFNAME": "ib1",
                "GLIBC_TUNABLES": "glibc.malloc.arena_max=2",
                "PYTHONBREAKPOINT": "0",
            },
        },
    )
    view = Cluster(config)
    strategy = ComponentPlacement({"cluster": config}, view).get_strategy("env")
    names = "NCCL_IFNAME", "SHARED", "RUN_BY_WRAPPER", "GLIBC_TUNABLES", "PYTHONBREAKPOINT"
    first, second = seen(view, strategy, *names)
    assert first[:3] == ("eth0", "yes", "yes")
    # The user's own settings, alone; Ray puts its own over the last one.
    assert second == ("ib1", None, None, "glibc.malloc.arena_max=2", "0")


def test_groups_of_one_node_that_contradict_each_other_are_an_error_before_anything_starts(ray_cluster):
    config = environments({"node_ranks": "0-1", "env_vars": {"MODE": "a"}})
    config["node_groups"].append(
        {"label": "other", "node_ranks": 0, "env_configs": [{"node_ranks": 0, "env_vars": {"MODE": "b"}}]}
    )
    config["component_placement"]["env"] = "0"
    with pytest.raises(ConfigError, match="MODE"):
        ComponentPlacement({"cluster": config}, Cluster(config))
