"""What the processes of ranks see: isolated, all visible, hidden; with a mask that the node was started with."""

import pytest
from ray_workers import Probe

from rlinf.scheduler import ComponentPlacement, FlexiblePlacementStrategy, NodePlacementStrategy

NAMES = ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "RANK")


def seen(job, strategy, **options):
    group = Probe.create_group().launch(job, strategy, **options)
    return [tuple(e.values()) for e in group.environment(*NAMES).wait(60)]


@pytest.mark.parametrize(
    ("strategy", "isolate", "expected"),
    [
        (FlexiblePlacementStrategy([[1], [4, 5]]), True, [("1", "0", "0"), ("4,5", "0", "1")]),
        (
            FlexiblePlacementStrategy([[1], [7]]),
            False,
            [("0,1,2,3", "1", "0"), ("4,5,6,7", "3", "1")],
        ),
        (NodePlacementStrategy([1, 1]), True, [("", "0", "0"), ("", "1", "1")]),
        (NodePlacementStrategy([1]), False, [("4,5,6,7", "0", "0")]),
    ],
    ids=["isolated", "all visible", "hidden", "on a bare node, all visible"],
)
def test_a_process_sees_what_its_placement_says_under_the_names_of_its_nodes_mask(
    forked_job, strategy, isolate, expected
):
    assert seen(forked_job, strategy, isolate_gpu=isolate) == expected


def test_workers_on_robots_see_no_accelerator(forked_job):
    robots = [{"node_rank": 1, "address": "127.0.0.1"}, {"node_rank": 1, "address": "127.0.0.2"}]
    group = {"label": "arms", "node_ranks": 1, "hardware": {"type": "Robot", "configs": robots}}
    config = {
        "num_nodes": 2,
        "component_placement": {"env": {"node_group": "arms", "placement": "0-1:0-1"}},
        "node_groups": [group],
    }
    view = forked_job.view(config)
    strategy = ComponentPlacement({"cluster": config}, view.topology).get_strategy("env")
    assert seen(view, strategy) == [("", "0", "0"), ("", "1", "1")]
