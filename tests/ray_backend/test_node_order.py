from dataclasses import replace

import pytest

from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.ray_backend.nodes import fleet_after, fleet_of, order_nodes
from rlinf_scheduler.ray_backend.probe import NodeReport


def report(ip, rank=None, head=False):
    return NodeReport(
        node_id=f"id-{ip}",
        ip=ip,
        hostname=f"host-{ip}",
        is_head=head,
        node_rank_setting=rank,
        num_accelerators=0,
        accelerator_type="",
        mask=None,
        machine_id="m",
        python="/usr/bin/python3",
    )


def ips(reports):
    return [r.ip for r in order_nodes(reports)]


def test_addresses_are_ordered_as_numbers_not_as_text():
    assert ips([report("10.0.0.10"), report("10.0.0.9"), report("10.0.0.100")]) == [
        "10.0.0.9",
        "10.0.0.10",
        "10.0.0.100",
    ]


def test_the_head_comes_first_where_nothing_is_set():
    assert ips([report("10.0.0.1"), report("10.0.0.7", head=True)]) == ["10.0.0.7", "10.0.0.1"]


def test_a_rank_that_is_set_wins_over_head_and_address():
    assert ips([report("10.0.0.1", head=True), report("10.0.0.7", rank=0)]) == ["10.0.0.7", "10.0.0.1"]


def test_the_others_fill_the_ranks_that_are_left():
    assert ips([report("10.0.0.3"), report("10.0.0.2"), report("10.0.0.1", rank=1)]) == [
        "10.0.0.2",
        "10.0.0.1",
        "10.0.0.3",
    ]


def test_two_nodes_with_one_rank_are_both_named():
    with pytest.raises(ClusterError, match=r"10\.0\.0\.2.*10\.0\.0\.1.*RLINF_NODE_RANK=0"):
        order_nodes([report("10.0.0.1", rank=0), report("10.0.0.2", rank=0)])


def test_a_rank_beyond_the_cluster_is_an_error_that_names_the_gap():
    with pytest.raises(ClusterError, match=r"RLINF_NODE_RANK=5.*none has rank 1"):
        order_nodes([report("10.0.0.1", rank=0), report("10.0.0.2", rank=5)])


def test_the_order_does_not_depend_on_the_order_of_discovery():
    nodes = [report("10.0.0.3"), report("10.0.0.2", rank=2), report("10.0.0.1", head=True)]
    assert ips(nodes) == ips(nodes[::-1])


def test_text_that_is_no_address_still_gives_a_stable_order():
    assert ips([report("node-b"), report("10.0.0.1"), report("node-a")]) == ["10.0.0.1", "node-a", "node-b"]


def test_ranks_of_nodes_that_are_gone_are_closed_up():
    living = [report("10.0.0.1", rank=1), report("10.0.0.3", rank=4)]
    assert [each.ip for each in order_nodes(living, num_lost=3)] == ["10.0.0.1", "10.0.0.3"]
    with pytest.raises(ClusterError, match="none has rank 3"):
        order_nodes(living, num_lost=2)


def ids(fleet):
    return [node.node_id for node in fleet.nodes]


def test_nodes_that_join_come_last_and_all_others_keep_their_ranks():
    before = fleet_of([report("10.0.0.1"), report("10.0.0.2"), report("10.0.0.3")])
    after = fleet_after(
        before, [report("10.0.0.9"), report("10.0.0.3"), report("10.0.0.0"), report("10.0.0.1")]
    )
    assert ids(after) == ["id-10.0.0.1", "id-10.0.0.2", "id-10.0.0.3", "id-10.0.0.0", "id-10.0.0.9"]


def test_of_nodes_that_join_so_many_are_taken_as_there_is_room_for_those_that_have_a_rank_first():
    before = fleet_of([report("10.0.0.1"), report("10.0.0.2", rank=1)])
    new = [report("10.0.0.5"), report("10.0.0.4"), report("10.0.0.9", rank=1)]
    there = report("10.0.0.1")
    assert ids(fleet_after(before, [there, *new], room=2)) == ["id-10.0.0.1", "id-10.0.0.9", "id-10.0.0.4"]
    assert ids(fleet_after(before, [there, *new], room=0)) == ids(before)
    drained = fleet_after(before, [there, *new], draining=["id-10.0.0.2"], room=1)
    assert ids(drained) == ["id-10.0.0.1", "id-10.0.0.2", "id-10.0.0.9"], "it is there as yet"


def test_a_node_that_joins_with_the_rank_of_one_that_is_gone_takes_its_place():
    before = fleet_of([report("10.0.0.1", rank=0), report("10.0.0.2", rank=1)])
    after = fleet_after(before, [report("10.0.0.1", rank=0), report("10.0.0.9", rank=1)])
    assert ids(after) == ["id-10.0.0.1", "id-10.0.0.9"]
    both = fleet_after(before, [report("10.0.0.1", rank=0), report("10.0.0.2"), report("10.0.0.9", rank=1)])
    assert ids(both) == ["id-10.0.0.1", "id-10.0.0.2", "id-10.0.0.9"], "its place is taken"


def test_a_node_of_the_topology_has_the_labels_that_the_cluster_gave_it():
    labelled = replace(report("10.0.0.1"), labels=(("rack", "a"),))
    assert fleet_of([labelled]).topology.nodes[0].labels == (("rack", "a"),)
