"""The variables a rank starts with, for every way to place it: without a process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.scheduler import (
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Topology,
)
from rlinf_scheduler.planning import Node
from rlinf_scheduler.session.membership import GroupMembers
from rlinf_scheduler.worker.environment import rank_environment

VENDORS = {
    "nvidia": "CUDA_VISIBLE_DEVICES",
    "amd": "HIP_VISIBLE_DEVICES",
    "ascend": "ASCEND_RT_VISIBLE_DEVICES",
    "simulated": "CUDA_VISIBLE_DEVICES",
}
# The second node was started with a mask.
MASKED = Topology(nodes=(Node(num_accelerators=4), Node(num_accelerators=4, visible=("4", "5", "6", "7"))))


def environments(strategy, where=MASKED, vendor="simulated", **options):
    placements = strategy.get_placement(where, **options)
    return [
        rank_environment(
            placement,
            members=GroupMembers(
                "rollout", tuple(range(len(placements))), master_address="10.0.0.1", master_port=1234
            ),
            node=Node(num_accelerators=8, accelerator_type=vendor),
            seed=17,
        )
        for placement in placements
    ]


def seen(strategy, **options):
    return [
        (env["CUDA_VISIBLE_DEVICES"], env["LOCAL_RANK"], env["RANK"])
        for env in environments(strategy, **options)
    ]


def test_isolated_ranks_see_their_own_accelerators_under_the_names_of_the_nodes_mask():
    strategy = FlexiblePlacementStrategy([[1], [4, 5], [7]])
    assert seen(strategy) == [("1", "0", "0"), ("4,5", "0", "1"), ("7", "0", "2")]


def test_without_isolation_ranks_see_all_of_the_node_and_their_true_index():
    strategy = FlexiblePlacementStrategy([[1], [4, 5], [7]])
    assert seen(strategy, isolate_gpu=False) == [
        ("0,1,2,3", "1", "0"),
        ("4,5,6,7", "0", "1"),
        ("4,5,6,7", "3", "2"),
    ]


def test_ranks_on_bare_nodes_see_no_accelerator_unless_they_ask():
    strategy = NodePlacementStrategy([0, 1, 1])
    assert seen(strategy) == [("", "0", "0"), ("", "0", "1"), ("", "1", "2")]
    assert [visible for visible, _, _ in seen(strategy, isolate_gpu=False)] == [
        "0,1,2,3",
        "4,5,6,7",
        "4,5,6,7",
    ]


@pytest.mark.parametrize(("vendor", "variable"), VENDORS.items())
def test_the_variable_is_the_vendors(vendor, variable):
    (environment,) = environments(PackedPlacementStrategy(1, 1), vendor=vendor)
    assert environment[variable] == "1"


@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    per_rank=st.integers(1, 3),
    isolate=st.booleans(),
    data=st.data(),
)
def test_whatever_the_placement_torch_can_be_initialised_from_it(sizes, per_rank, isolate, data):
    nodes = tuple(Node(num_accelerators=size * per_rank) for size in sizes)
    topology = Topology(nodes=nodes)
    last = data.draw(st.integers(1, sum(sizes))) * per_rank - 1
    ranks = environments(PackedPlacementStrategy(0, last, per_rank), topology, isolate_gpu=isolate)
    assert [env["RANK"] for env in ranks] == [str(number) for number in range(len(ranks))]
    assert {env["WORLD_SIZE"] for env in ranks} == {str(len(ranks))}
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in ranks}) == 1
    for node in {env["NODE_RANK"] for env in ranks}:
        here = [env for env in ranks if env["NODE_RANK"] == node]
        assert {env["LOCAL_WORLD_SIZE"] for env in here} == {str(len(here))}
        assert [int(env["RLINF_WORKER_LOCAL_RANK"]) for env in here] == list(range(len(here)))
        visible = [env["CUDA_VISIBLE_DEVICES"].split(",") for env in here]
        if isolate:
            assert {env["LOCAL_RANK"] for env in here} == {"0"}
            assert len({device for mask in visible for device in mask}) == per_rank * len(here)
        else:
            own = [mask[int(env["LOCAL_RANK"])] for mask, env in zip(visible, here, strict=True)]
            assert len(set(own)) == len(here)


def test_renderers_use_the_ranks_own_accelerator_unless_its_node_group_says_otherwise():
    node = Node(num_accelerators=2, accelerator_type="NVIDIA", egl_devices=(1, 0))
    (_, second) = PackedPlacementStrategy(0, 1).get_placement(Topology((node,)))
    given = {
        "members": GroupMembers("env", (0, 1), master_address="10.0.0.1", master_port=1),
        "node": node,
        "seed": 1,
    }
    assert rank_environment(second, **given)["MUJOCO_EGL_DEVICE_ID"] == "0"
    own = rank_environment(second, **given, set_by_group=("MUJOCO_EGL_DEVICE_ID",))
    assert "MUJOCO_EGL_DEVICE_ID" not in own
    assert own["EGL_DEVICE_ID"] == "0"
