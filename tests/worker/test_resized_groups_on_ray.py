"""A group that grows and shrinks, as processes of Ray's, with the devices that the job holds."""

import pytest
from resized_workers import Collective, Member

from rlinf.scheduler import NodePlacementStrategy, PackedPlacementStrategy
from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.proc import birth_of
from rlinf_scheduler.ray_backend.holds import holds_in_cluster
from waits import wait_until


def held(job):
    nodes = {node.node_id: rank for rank, node in enumerate(job.topology.nodes)}
    return {(nodes[hold.node_id], device) for hold in holds_in_cluster() for device in hold.devices}


@pytest.mark.ray
def test_a_group_grows_onto_free_devices_and_gives_them_back(ray_cluster):
    with Member.create_group(7).launch(ray_cluster, PackedPlacementStrategy(0, 1), name="growing") as group:
        launched = held(ray_cluster)
        assert group.grow(2) == (2, 3)
        grown = held(ray_cluster)
        new = {(each.node_rank, name) for each in group.placements[2:] for name in each.visible_accelerators}
        assert len(new) == 2
        assert grown == launched | new
        who = group.who().wait(60)
        assert [each[::2] for each in who] == [(0, 7), (1, 7), (2, 7), (3, 7)]
        births = {pid: birth_of(pid) for _, pid, _ in who[2:]}
        assert group.shrink(2) == (2, 3)
        wait_until(lambda: not any(birth and birth_of(pid) == birth for pid, birth in births.items()))
        assert held(ray_cluster) == launched
        assert [each[0] for each in group.who().wait(60)] == [0, 1]
        with pytest.raises(PlacementError, match="further processes would have a place"):
            group.grow(100)


@pytest.mark.ray
def test_ranks_that_run_collectives_meet_again_on_two_nodes(ray_cluster):
    where = NodePlacementStrategy([0, 1])
    with Collective.create_group().launch(
        ray_cluster, where, name="meeting", on_failure="restart_group"
    ) as group:
        assert group.total().wait(60) == [(1.0, 0, 2), (1.0, 1, 2)]
        assert group.grow(1) == (2,)
        assert group.total().wait(60) == [(3.0, place, 3) for place in range(3)]
        assert group.shrink(ranks=[0]) == (0,)
        assert group.total().wait(60) == [(3.0, place, 2) for place in range(2)]
