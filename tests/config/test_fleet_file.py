"""A fleet as a file: what is written is read back, and every mistake is told with its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.config.fleet import Fleet, FleetAccelerator, FleetInterface, FleetNode
from rlinf_scheduler.config.fleet_file import format_fleet, read_fleet
from rlinf_scheduler.config.yaml_file import parse_yaml, quoted
from rlinf_scheduler.errors import ConfigError, SchedulerError
from rlinf_scheduler.planning import Node

FLEET = Fleet(
    (
        FleetNode(
            "0a1b",
            "10.0.0.1",
            "gpu-1",
            (
                FleetAccelerator("NVIDIA", "4", "A800", "GPU-1", 85_899_345_920, 0),
                FleetAccelerator("NVIDIA", "5", "A800", "GPU-2", 85_899_345_920, 1),
            ),
            "/opt/venv/bin/python",
            (FleetInterface("eth0", "10.0.0.1"), FleetInterface("ib0", "fe80::1")),
        ),
        FleetNode("123e45", "10.0.0.2", accelerators=(FleetAccelerator("Ascend"),)),
        FleetNode(hostname="no"),
        FleetNode(),
    )
)


@pytest.fixture
def read(tmp_path):
    def write_and_read(text):
        file = tmp_path / "fleet.yaml"
        file.write_text(text, encoding="utf-8")
        return read_fleet(file)

    return write_and_read


@pytest.fixture
def mistakes(read, tmp_path):
    def read_and_fail(text):
        with pytest.raises(ConfigError) as caught:
            read(text)
        return str(caught.value).replace(f"{tmp_path}/", "")

    return read_and_fail


def test_written_fleet_is_read_back(read):
    assert read(format_fleet(FLEET)) == FLEET


def test_topology_has_masks_models_and_names():
    first, second, third, fourth = FLEET.topology.nodes
    uuids = "GPU-1", "GPU-2"
    assert first == Node(
        "0a1b", "10.0.0.1", 2, "NVIDIA", ("4", "5"), "gpu-1", "A800", uuids, memory_bytes=85_899_345_920
    )
    assert (second.accelerator_type, second.accelerator_names) == ("Ascend", ("0",))
    assert (third.node_id, third.hostname, third.num_accelerators) == ("node2", "no", 0)
    assert fourth.node_id == "node3"


def test_alike_nodes_and_accelerators_can_be_written_in_short(read):
    fleet = read(
        "version: 1\nnodes:\n- {count: 3, accelerators: {type: AMD, count: 4, model: MI300X}}\n- {}\n"
    )
    assert [node.num_accelerators for node in fleet.topology.nodes] == [4, 4, 4, 0]
    assert fleet.topology.nodes[2].accelerator_model == "MI300X"
    assert fleet.topology.nodes[2].node_id == "node2"


def test_numbers_are_the_text_they_are_written_as(read):
    (node,) = read("version: 1\nnodes: [{node_id: 7, accelerators: [{type: NVIDIA, visible: 4}]}]").nodes
    assert (node.node_id, node.accelerators[0].visible) == ("7", "4")


def test_all_mistakes_are_told_with_line_and_path(mistakes):
    text = """\
version: 2
nodez: 1
nodes:
- ip: 1.2.3.4
  hostnam: x
  accelerators: [{type: A, visable: 1}, {visible: 2}]
- {count: 0}
- {count: 2, ip: a}
- 7
- {accelerators: 8, interfaces: [{name: eth0}]}
- {accelerators: {type: A}}
"""
    told = mistakes(text)
    for part in (
        "fleet.yaml:1: version: 'version' is 2; this reads version 1",
        "fleet.yaml:2: nodez: unknown key 'nodez'",
        "fleet.yaml:5: nodes[0].hostnam: unknown key 'hostnam'",
        "did you mean 'hostname'?",
        "fleet.yaml:7: nodes[1].count",
        "fleet.yaml:8: nodes[2].count: 2 nodes that are alike cannot have one 'ip'",
        "fleet.yaml:9: nodes[3]",
        "fleet.yaml:10: nodes[4].accelerators",
        "fleet.yaml:10: nodes[4].interfaces[0]",
        "fleet.yaml:11: nodes[5].accelerators",
    ):
        assert part in told


def test_mistakes_between_values_are_told_too(mistakes):
    text = """\
version: 1
nodes:
- node_id: a
  accelerators:
  - {type: A, visible: 1, uuid: u}
  - {type: B, visible: 1, uuid: u}
- {node_id: a}
"""
    told = mistakes(text)
    assert "fleet.yaml:4: nodes[0].accelerators: node 0 has accelerators of the types A and B" in told
    assert (
        "fleet.yaml:6: nodes[0].accelerators[1].visible: accelerators 0 and 1 of node 0 both say '1'" in told
    )
    assert "nodes[0].accelerators[1].uuid" in told
    assert "fleet.yaml:7: nodes[1].node_id: nodes 0 and 1 have the same id 'a'" in told


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is empty, not a mapping with the keys `version` and `nodes`"),
        ("[1]", "the file is a list"),
        (
            "cluster: {num_nodes: 2}",
            "the key 'nodes' is missing; a fleet's file lists the nodes of a cluster there",
        ),
        ("nodes: [{}]", "the key 'version' is missing; this reads version 1"),
        ("version: 1\nnodes: []", "there must be at least one node"),
        ("version: 1\nnodes:", "there must be at least one node"),
        ("version: 1\nnodes: 3", "this must be a list, not 3"),
        ("version: 1\nnodes: [{ip: true}]", "this must be text, not true"),
        ("version: 1\nnodes: [{accelerators: [{type: ''}]}]", "the type is empty"),
        ("version: 1\nnodes: [{accelerators: [{type: A, memory_bytes: -1}]}]", "memory_bytes"),
        ("version: 1\nnodes: [{1: 2}]", "nodes[0]"),
        ("version: 1\nnodes: [", "this is not YAML"),
    ],
)
def test_file_that_is_no_fleet_is_told_what_is_missing(mistakes, text, problem):
    assert problem in mistakes(text)


names = st.text(max_size=12).filter(lambda text: not any(0xD800 <= ord(c) <= 0xDFFF for c in text))
accelerators = st.lists(
    st.builds(
        FleetAccelerator,
        st.just("NVIDIA"),
        model=names,
        memory_bytes=st.none() | st.integers(0, 2**40),
        island=st.none() | st.integers(0, 3),
    ),
    max_size=3,
)
labels = st.dictionaries(
    st.sampled_from(["rack", "ray.io/zone", "no"]), st.sampled_from(["a", "12", "yes", "", "a-b.c"])
)
nodes = st.builds(
    FleetNode,
    ip=names,
    hostname=names,
    accelerators=accelerators.map(tuple),
    python=names,
    labels=labels.map(lambda found: tuple(sorted(found.items()))),
)


@given(st.lists(nodes, min_size=1, max_size=4))
def test_any_fleet_is_read_back(tmp_path_factory, found):
    fleet = Fleet(tuple(found))
    file = tmp_path_factory.getbasetemp() / "any-fleet.yaml"
    file.write_bytes(format_fleet(fleet).encode())
    assert read_fleet(file) == fleet


@given(names)
def test_quoted_text_is_read_back(text):
    assert parse_yaml(f"key: {quoted(text)}", "f").data == {"key": text}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-2, 9) | names,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["version", "nodes", "accelerators", "type", "count", "ip", "interfaces", "visible"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_any_data_is_a_fleet_or_an_error_of_ours(tmp_path_factory, value):
    import json

    file = tmp_path_factory.getbasetemp() / "any-data.yaml"
    data = {"version": 1, "nodes": value} if not isinstance(value, dict) else {"version": 1, **value}
    file.write_text(json.dumps(data))
    try:
        read_fleet(file)
    except SchedulerError as error:
        message = str(error)
    else:
        message = "a fleet"
    assert message


@pytest.mark.parametrize(
    ("text", "key", "meant"),
    [
        ("version: 1\nnods: [{}]", "nods", "nodes"),
        ("versoin: 1\nnodes: [{}]", "versoin", "version"),
        ("version: 1\nmachines: [{}]", "machines", "nodes"),
        ("version: 1\nnodes: [interfaces: [{name: eth0, adress: 10.0.0.1}]]", "adress", "address"),
    ],
)
def test_misspelt_key_is_one_mistake(mistakes, text, key, meant):
    told = mistakes(text)
    assert told.count("unknown key") == 1
    assert f"unknown key '{key}'" in told
    assert f"did you mean '{meant}'?" in told
    assert "mistakes" not in told
    assert "the key '" not in told


def test_a_fleet_has_the_bounds_of_a_shape(mistakes):
    entry = "{count: 65536, accelerators: {type: NVIDIA, count: 65536}}"
    said = mistakes(f"version: 1\nnodes: [{entry}, {entry}]\n")
    assert "at most 65536 nodes and 1048576 accelerators" in said
