"""What real worker processes see: isolated, all visible, hidden; with a mask that the node was started with."""

import sys

import pytest
from ray_workers import Probe

from rlinf.scheduler import Cluster, ComponentPlacement, FlexiblePlacementStrategy, NodePlacementStrategy
from rlinf.scheduler.errors import ConfigError

pytestmark = pytest.mark.ray
NAMES = ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "RANK")


def seen(cluster, strategy, *names, **options):
    group = Probe.create_group().launch(cluster, strategy, **options)
    try:
        return [tuple(e.values()) for e in group.environment(*(names or NAMES)).wait(30)]
    finally:
        group.terminate()


def test_isolated_workers_see_their_own_accelerators_under_the_names_of_the_nodes_mask(ray_cluster):
    strategy = FlexiblePlacementStrategy([[1], [4, 5]])
    assert seen(ray_cluster, strategy) == [("1", "0", "0"), ("4,5", "0", "1")]


def test_without_isolation_workers_see_all_of_the_node_and_their_true_index(ray_cluster):
    strategy = FlexiblePlacementStrategy([[1], [7]])
    assert seen(ray_cluster, strategy, isolate_gpu=False) == [("0,1,2,3", "1", "0"), ("4,5,6,7", "3", "1")]


def test_workers_on_bare_nodes_see_no_accelerator_unless_they_ask(ray_cluster):
    assert seen(ray_cluster, NodePlacementStrategy([1, 1])) == [("", "0", "0"), ("", "1", "1")]
    assert seen(ray_cluster, NodePlacementStrategy([1]), isolate_gpu=False) == [("4,5,6,7", "0", "0")]


def test_workers_on_robots_see_no_accelerator(ray_cluster):
    config = {
        "num_nodes": 2,
        "component_placement": {"env": {"node_group": "arms", "placement": "0-1:0-1"}},
        "node_groups": [
            {
                "label": "arms",
                "node_ranks": 1,
                "hardware": {
                    "type": "Robot",
                    "configs": [
                        {"node_rank": 1, "address": "127.0.0.1"},
                        {"node_rank": 1, "address": "127.0.0.2"},
                    ],
                },
            }
        ],
    }
    view = Cluster(config)
    strategy = ComponentPlacement({"cluster": config}, view).get_strategy("env")
    assert seen(view, strategy) == [("", "0", "0"), ("", "1", "1")]


def environments(**entries):
    return {
        "num_nodes": 2,
        "component_placement": {"env": {"node_group": "both", "placement": "0,4"}},
        "node_groups": [{"label": "both", "node_ranks": "0-1", "env_configs": [entries] if entries else []}],
    }


def test_variables_of_a_node_group_reach_its_processes_and_may_differ_between_nodes(ray_cluster):
    config = environments()
    config["node_groups"][0]["env_configs"] = [
        {"node_ranks": 0, "env_vars": [{"NCCL_IFNAME": "eth0"}, {"SHARED": "yes"}]},
        {"node_ranks": [1], "env_vars": {"NCCL_IFNAME": "ib1"}},
    ]
    view = Cluster(config)
    strategy = ComponentPlacement({"cluster": config}, view).get_strategy("env")
    assert seen(view, strategy, "NCCL_IFNAME", "SHARED", "RANK") == [("eth0", "yes", "0"), ("ib1", None, "1")]


def test_the_interpreter_of_a_node_group_runs_its_processes(ray_cluster, tmp_path):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nRUN_BY_WRAPPER=yes exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    config = environments(node_ranks="0", python_interpreter_path=str(wrapper))
    view = Cluster(config)
    strategy = ComponentPlacement({"cluster": config}, view).get_strategy("env")
    assert seen(view, strategy, "RUN_BY_WRAPPER", "RANK") == [("yes", "0"), (None, "1")]


def test_groups_of_one_node_that_contradict_each_other_are_an_error_before_anything_starts(ray_cluster):
    config = environments(node_ranks="0-1", env_vars={"MODE": "a"})
    config["node_groups"].append(
        {"label": "other", "node_ranks": 0, "env_configs": [{"node_ranks": 0, "env_vars": {"MODE": "b"}}]}
    )
    config["component_placement"]["env"] = "0"
    with pytest.raises(ConfigError, match="MODE"):
        ComponentPlacement({"cluster": config}, Cluster(config))
