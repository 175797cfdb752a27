"""Topologies and node groups: short texts, what they refuse, and how groups lie over nodes."""

import pickle
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_scheduler.errors import ConfigError, ConfigErrors, PlacementError
from rlinf_scheduler.planning import HardwareUnit, Node, NodeEnvironment, NodeGroup, Topology


def sizes(topology):
    return [node.num_accelerators for node in topology.nodes]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2x8", [8, 8]),
        ("8", [8]),
        ("0", [0]),
        ("8,4,0", [8, 4, 0]),
        (" 2 x 8 ", [8, 8]),
        ("2X4, 0", [4, 4, 0]),
        ("3x0", [0, 0, 0]),
    ],
)
def test_short_text_stands_for_nodes(text, expected):
    assert sizes(Topology.parse(text)) == expected


@pytest.mark.parametrize(
    ("text", "caret"),
    [
        ("", "^"),
        ("x8", "^^"),
        ("2x", "^^"),
        ("0x8", "^^^"),
        ("8,,4", "  ^"),
        ("8, a", "   ^"),
        ("-1", "^^"),
        ("2x8x2", "^^^^^"),
    ],
)
def test_error_in_a_short_text_points_at_the_part(text, caret):
    with pytest.raises(ConfigError) as caught:
        Topology.parse(text)
    start, end = caught.value.span
    assert " " * start + "^" * (end - start) == caret
    assert "2x8" in caught.value.hint


@settings(deadline=None)  # a text may stand for 65536 nodes, which a busy machine takes a while to make
@given(st.text("0123456789xX, -a", max_size=10))
def test_any_text_is_a_topology_or_a_config_error(text):
    with suppress(ConfigError):
        assert Topology.parse(text).nodes


def test_topology_is_frozen_data_that_compares_and_pickles():
    topology = Topology.parse("2x2").with_node_groups([NodeGroup("a", (1,))])
    copy = pickle.loads(pickle.dumps(topology))
    assert copy == topology
    assert hash(copy) == hash(topology)
    with pytest.raises(AttributeError):
        topology.nodes = ()


def test_node_has_a_name_for_every_accelerator():
    assert Node(num_accelerators=2).accelerator_names == ("0", "1")
    assert Node(num_accelerators=2, visible=("4", "5")).accelerator_names == ("4", "5")
    assert Node(num_accelerators=2, visible=None).visible == ("0", "1")


@pytest.mark.parametrize("node", [{"num_accelerators": -1}, {"num_accelerators": 2, "visible": ("4",)}])
def test_node_refuses_what_cannot_be(node):
    with pytest.raises(ConfigError):
        Node(**node)


def test_nodes_without_a_name_get_one_from_their_rank():
    assert [node.node_id for node in Topology((Node("head"), Node())).nodes] == ["head", "node1"]


def test_topology_needs_a_node():
    with pytest.raises(ConfigError, match="at least one node"):
        Topology(())


def test_two_groups_always_exist():
    topology = Topology.parse("2x8")
    assert topology.group_labels == ("cluster", "node")
    assert topology.group("cluster").node_ranks == (0, 1)
    assert topology.group("node").ignore_hardware


def test_unknown_group_names_the_nearest():
    topology = Topology.parse("2x8").with_node_groups([NodeGroup("a800", (0,))])
    with pytest.raises(PlacementError, match="'cluster', 'node', 'a800'") as caught:
        topology.group("a80")
    assert caught.value.hint == "did you mean 'a800'?"


def test_later_group_takes_the_place_of_one_with_its_label():
    first = Topology.parse("2x8").with_node_groups([NodeGroup("a", (0,)), NodeGroup("b", (1,))])
    second = first.with_node_groups([NodeGroup("a", (1,))])
    assert second.group("a").node_ranks == (1,)
    assert second.group("b").node_ranks == (1,)
    assert first.group("a").node_ranks == (0,)


@pytest.mark.parametrize(
    ("group", "problem"),
    [
        (NodeGroup("", (0,)), "label must be text"),
        (NodeGroup("a,b", (0,)), "without commas"),
        (NodeGroup(" a", (0,)), "without blanks"),
        (NodeGroup("cluster", (0,)), "always exists"),
        (NodeGroup("node", (0,)), "always exists"),
        (NodeGroup("a", ()), "no nodes"),
        (NodeGroup("a", (2,)), "has node 2, but there are only nodes 0-1"),
        (NodeGroup("a", (-1,)), "has node -1"),
        (NodeGroup("a", (0, 0)), "names a node twice"),
        (
            NodeGroup("a", (0,), (HardwareUnit("Robot", 1),)),
            "Robot 0 is on node 1, which is not in group 'a'",
        ),
        (NodeGroup("a", (0,), environments=(NodeEnvironment((1,)),)), "node 1 is not in group 'a'"),
    ],
)
def test_group_that_does_not_fit_is_refused(group, problem):
    with pytest.raises(ConfigError, match=problem):
        Topology.parse("2x8").with_node_groups([group])


def test_mistakes_of_several_groups_are_reported_together():
    groups = [NodeGroup("a", (9,)), NodeGroup("b", (0,)), NodeGroup("b", (1,))]
    with pytest.raises(ConfigErrors) as caught:
        Topology.parse("2x8").with_node_groups(groups)
    assert len(caught.value.errors) == 2


def test_first_nodes_leaves_the_rest_out():
    topology = Topology.parse("8,4,2")
    assert sizes(topology.first_nodes(2)) == [8, 4]
    with pytest.raises(ConfigError, match="num_nodes is 4, but there are only 3 nodes"):
        topology.first_nodes(4)
