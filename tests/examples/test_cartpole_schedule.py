import pytest

from rlinf_scheduler.planning import FlexiblePlacementStrategy, NodePlacementStrategy, Topology
from schedule import schedule_of


def on(topology, devices):
    return FlexiblePlacementStrategy([[device] for device in devices]).get_placement(topology)


@pytest.mark.parametrize(
    ("env", "rollout", "actor", "mode", "stages", "max_lag"),
    [
        ([0, 1], [0], [0], "collocated", 1, 0),
        ([0, 1], [1, 2], [1], "collocated", 1, 0),
        ([0, 1], [2], [2], "hybrid", 2, 0),
        ([0, 1], [2], [0], "hybrid", 2, 0),
        ([0, 1], [2], [3], "disaggregated", 2, 1),
        ([0, 1], [1], [2], "disaggregated", 1, 1),
    ],
)
def test_what_shares_a_device_takes_turns(env, rollout, actor, mode, stages, max_lag):
    topology = Topology.parse("4")
    places = {"env": env, "rollout": rollout, "actor": actor}
    schedule = schedule_of({name: on(topology, devices) for name, devices in places.items()})
    assert (schedule.mode, schedule.stages, schedule.max_lag) == (mode, stages, max_lag)
    assert schedule.describe().startswith(mode)


def test_equal_device_numbers_on_two_nodes_are_two_devices():
    topology = Topology.parse("2x1")
    places = {"env": on(topology, [0]), "rollout": on(topology, [1]), "actor": on(topology, [0])}
    schedule = schedule_of(places)
    assert schedule.pipelined_inference
    assert not schedule.pipelined_learning


def test_processes_on_bare_nodes_share_no_device():
    topology = Topology.parse("1")
    bare = NodePlacementStrategy([0]).get_placement(topology)
    schedule = schedule_of({"env": bare, "rollout": on(topology, [0]), "actor": on(topology, [0])})
    assert schedule.mode == "hybrid"
