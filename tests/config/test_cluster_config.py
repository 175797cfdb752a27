"""The `cluster:` section: what it becomes, and what every mistake in it is told."""

import copy
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from effort import case, tries
from rlinf.scheduler import Cluster, ComponentPlacement, Topology
from rlinf_scheduler.config import ClusterConfig, RobotConfig, read_cluster_config
from rlinf_scheduler.config.net_emulation import LinkEnd
from rlinf_scheduler.config.nodes import NodeLimits
from rlinf_scheduler.errors import ConfigError, ConfigErrors
from rlinf_scheduler.planning import HardwareUnit, NodeEnvironment
from rlinf_scheduler.planning.environments import EnvironmentTable, ProcessEnvironment


def group(**other):
    return {"label": "a", "node_ranks": 0, **other}


def robot(**other):
    return group(hardware={"type": "Robot", "configs": [{"node_rank": 0, **other}]})


def section(**content):
    return {"cluster": content}


def failure(config):
    with pytest.raises(ConfigError) as caught:
        read_cluster_config(config)
    return caught.value


def test_section_becomes_the_planners_own_types():
    config = read_cluster_config(
        section(
            num_nodes=2,
            simulate="2x8",
            component_placement={"actor,critic": {"node_group": ["a", 4090], "placement": [0, "1-2:1-2"]}},
            node_groups=[robot(address="10.0.0.7"), {"label": 4090, "node_ranks": ["0-1", 3]}],
        )
    )
    assert (config.num_nodes, config.simulate) == (2, "2x8")
    first, second = config.node_groups
    assert first.hardware == (HardwareUnit("Robot", 0, RobotConfig(node_rank=0, address="10.0.0.7")),)
    assert (second.label, second.node_ranks) == ("4090", (0, 1, 3))
    (rule,) = config.rules
    assert rule.components == ("actor", "critic")
    assert (rule.text, rule.node_groups) == ("0,1-2:1-2", ("a", "4090"))
    assert rule.text_path == "cluster.component_placement.actor,critic.placement"


def test_empty_section_is_all_defaults():
    assert read_cluster_config({"cluster": {}}) == ClusterConfig()
    assert read_cluster_config({"num_nodes": None}) == ClusterConfig()


def test_nodes_that_come_and_go_have_a_least_and_a_largest_number():
    assert read_cluster_config(section(nodes={"min": 2, "max": "8"})).nodes == NodeLimits(2, 8)
    assert read_cluster_config(section(nodes={})).nodes == NodeLimits(1, None)


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        (4, "cluster.nodes: this must be a mapping, not 4"),
        ({"min": 0}, "cluster.nodes.min: this must be a whole number from 1, not 0"),
        ({"min": 4, "max": 2}, "cluster.nodes.max: max is 2, which is less than min, 4"),
        ({"maximum": 2}, "cluster.nodes.maximum: unknown key 'maximum'"),
        ({"min": 2}, "cluster.nodes: num_nodes is a number that stays"),
    ],
)
def test_what_cannot_be_a_number_of_nodes_is_told(nodes, problem):
    fixed = {"num_nodes": 2} if nodes == {"min": 2} else {}
    assert str(failure(section(nodes=nodes, **fixed))).startswith(problem)


def test_a_number_in_the_program_and_limits_in_the_config_are_two_numbers():
    with pytest.raises(ConfigError, match="num_nodes is a number that stays"):
        Cluster(section(nodes={"min": 2}), num_nodes=2)


def test_checked_config_is_taken_as_it_is():
    config = read_cluster_config(section(num_nodes=1))
    assert read_cluster_config(config) is config


def test_variables_are_a_mapping_or_a_list_of_mappings():
    entries = [
        {"node_ranks": 0, "env_vars": [{"A": 1}, {"B": "x"}], "python_interpreter_path": "/opt/python"},
        {"env_vars": {"C": "0.50"}},
        {},
    ]
    (only,) = read_cluster_config(
        section(node_groups=[group(node_ranks="0-1", env_configs=entries)])
    ).node_groups
    assert only.environments == (
        NodeEnvironment((0,), (("A", "1"), ("B", "x")), "/opt/python"),
        NodeEnvironment(None, (("C", "0.50"),)),
        NodeEnvironment(None),
    )


@pytest.mark.parametrize("everywhere", ["all", " ALL ", ["all"]])
def test_all_stands_for_every_node_in_groups_and_for_every_node_of_the_group_in_their_environments(
    everywhere,
):
    entries = [{"node_ranks": everywhere, "env_vars": {"OMP_NUM_THREADS": 32}}]
    groups = [
        group(node_ranks=everywhere, env_configs=entries),
        group(label="b", node_ranks="1-2", env_configs=entries),
    ]
    config = read_cluster_config(section(node_groups=groups))
    topology = Topology.parse("3x0").with_node_groups(config.node_groups)
    assert topology.group("a").node_ranks == (0, 1, 2)
    table = EnvironmentTable(topology.node_groups)
    expected = ProcessEnvironment((("OMP_NUM_THREADS", "32"),))
    assert [table.on_node("a", rank) for rank in range(3)] == [expected] * 3
    assert [table.on_node("b", rank) for rank in range(3)] == [ProcessEnvironment(), expected, expected]
    # With other nodes it is other ranks.
    assert topology.first_nodes(2).group("a").node_ranks == (0, 1)


def test_all_stands_alone():
    error = failure(section(node_groups=[group(node_ranks="all,3")]))
    assert error.path == "cluster.node_groups[0].node_ranks"
    assert "'all' stands alone" in error.problem


VALUES = {
    "plus": "+5",
    "minus": "-0",
    "octal": "010",
    "hex": "0x1F",
    "fraction": "2.10",
    "power": "1e3",
    "grouped": "1_000",
    "no": "no",
    "number": "32",
}


def test_values_of_variables_keep_the_text_that_stands_in_the_file(tmp_path):
    written = "\n".join(f"          - {name}: {value}" for name, value in VALUES.items())
    file = tmp_path / "config.yaml"
    file.write_text(
        f"""
threads: 7
cluster:
  num_nodes: +1
  node_groups:
    - label: a
      node_ranks: 0
      env_configs:
      - env_vars:
{written}
      - env_vars: {{flow: -0, before: &n +5, after: *n, known: "${{threads}}"}}
"""
    )
    config = read_cluster_config(file)
    listed, mapped = config.node_groups[0].environments
    assert dict(listed.env_vars) == VALUES
    assert dict(mapped.env_vars) == {"flow": "-0", "before": "+5", "after": "+5", "known": "7"}
    assert config.num_nodes == 1


@pytest.mark.parametrize(("written", "text"), [("2x8", "2x8"), (8, "8"), ([8, 4, 0], "8,4,0")])
def test_simulated_cluster_is_text_a_number_or_a_list(written, text):
    assert read_cluster_config(section(simulate=written)).simulate == text


def test_whole_config_keeps_the_users_own_sections():
    config = {"model": {"unknown": object()}, "cluster": {"num_nodes": 1}, "simulat": 3}
    before = copy.copy(config)
    assert read_cluster_config(config).num_nodes == 1
    assert config == before


def test_dictconfig_is_read_with_its_interpolations():
    config = OmegaConf.create(
        {
            "n": 2,
            "mine": "${nowhere}",
            "cluster": {"num_nodes": "${n}", "component_placement": {"a": "0-${n}"}},
        }
    )
    read = read_cluster_config(config)
    assert (read.num_nodes, read.rules[0].text) == (2, "0-2")
    assert read_cluster_config(config.cluster) == read
    assert read_cluster_config({"cluster": config.cluster}) == read


def test_whole_numbers_may_be_text_as_interpolations_of_variables_give_it(monkeypatch):
    monkeypatch.setenv("COUNT", "2")
    config = OmegaConf.create(
        section(num_nodes="${oc.env:COUNT}", node_groups=[group(node_ranks="${oc.env:COUNT}")])
    )
    read = read_cluster_config(config)
    assert (read.num_nodes, read.node_groups[0].node_ranks) == (2, (2,))
    (only,) = read_cluster_config(section(node_groups=[robot(node_rank="0", port="22")])).node_groups
    assert only.hardware == (HardwareUnit("Robot", 0, RobotConfig(node_rank=0, port=22)),)


def test_interpolations_in_a_dict_are_resolved_too():
    config = {"n": 2, "mine": "${nowhere}", "cluster": {"num_nodes": "${n}"}}
    assert read_cluster_config(config).num_nodes == 2


@pytest.mark.parametrize("value", ["${nowhere}", "???", "${"])
def test_value_that_cannot_be_resolved_is_a_config_error(value):
    section = {"cluster": {"component_placement": {"a": value}}}
    with pytest.raises(ConfigError):
        read_cluster_config(
            OmegaConf.create(section, flags={"allow_objects": True}) if value != "${" else section
        )


@pytest.mark.parametrize(
    ("written", "encrypts"),
    [
        (None, True),
        ({}, True),
        ({"encryption": None}, True),
        ({"encryption": True}, True),
        ({"encryption": "on"}, True),
        ({"encryption": "off"}, False),
        ({"encryption": False}, False),
    ],
)
def test_the_network_is_encrypted_unless_that_is_turned_off(written, encrypts):
    assert read_cluster_config(section(network=written)).network.encryption is encrypts


def test_the_ports_of_the_network_are_a_range():
    assert read_cluster_config(section(network={"ports": "20000-20999"})).network.ports == (20000, 20999)
    assert read_cluster_config(section(network={"encryption": "off"})).network.ports is None


@pytest.mark.parametrize(("written", "read"), [(None, "shared"), ("shared", "shared"), ("own", "own")])
def test_channels_share_processes_unless_each_is_to_have_its_own(written, read):
    assert read_cluster_config(section(channel_process=written)).channel_process == read


# Every row: the config, the path that the error names, a part of its problem, a part of its hint.
MISTAKES = [
    (3, "", "not int", ""),
    ({}, "", "there is no `cluster:` section", ""),
    ({"clutser": {}}, "", "there is no `cluster:` section", "is 'clutser' meant"),
    ({"cluster": None}, "cluster", "here it is empty", ""),
    ({"cluster": [1]}, "cluster", "here it is a list", ""),
    (section(num_node=1), "cluster.num_node", "unknown key 'num_node'", "'num_nodes'"),
    (section(num_nodes=0), "cluster.num_nodes", "a whole number from 1, not 0", ""),
    (section(num_nodes=True), "cluster.num_nodes", "not true", ""),
    (section(num_nodes="two"), "cluster.num_nodes", "not 'two'", ""),
    (section(simulate="2y8"), "cluster.simulate", "not a number of nodes", "2x8"),
    (section(simulate=1.5), "cluster.simulate", "text such as 2x8, not 1.5", ""),
    (section(simulate=[]), "cluster.simulate", "text such as 2x8, not []", ""),
    (section(channel_process="none"), "cluster.channel_process", "shared or own, not 'none'", ""),
    (section(channel_process=2), "cluster.channel_process", "shared or own, not 2", ""),
    (section(network=3), "cluster.network", "this must be a mapping, not 3", "encryption: off"),
    (section(network={"encrypt": "on"}), "cluster.network.encrypt", "unknown key 'encrypt'", "'encryption'"),
    (section(network={"encryption": 1}), "cluster.network.encryption", "on or off, not 1", ""),
    (
        section(network={"ports": 20000}),
        "cluster.network.ports",
        "a range such as 20000-20999, not 20000",
        "each",
    ),
    (
        section(network={"ports": "9-2000"}),
        "cluster.network.ports",
        "within 1024 and 65535, not 9-2000",
        "",
    ),
    (section(network={"ports": "3000-2000"}), "cluster.network.ports", "upwards", ""),
    (section(network={"encryption": "no"}), "cluster.network.encryption", "on or off, not 'no'", ""),
    (
        section(node_groups={}),
        "cluster.node_groups",
        "this must be a list of node groups",
        "begin every group",
    ),
    (section(node_groups=["a"]), "cluster.node_groups[0]", "this must be a mapping, not 'a'", ""),
    (section(node_groups=[{"node_ranks": 0}]), "cluster.node_groups[0]", "the key 'label' is missing", ""),
    (section(node_groups=[{"label": "a"}]), "cluster.node_groups[0]", "the key 'node_ranks' is missing", ""),
    (
        section(node_groups=[group(nodes=1)]),
        "cluster.node_groups[0].nodes",
        "unknown key 'nodes'",
        "'node_ranks'",
    ),
    (
        section(node_groups=[group(node_rank=1)]),
        "cluster.node_groups[0].node_rank",
        "unknown key",
        "'node_ranks'",
    ),
    (section(node_groups=[group(label=True)]), "cluster.node_groups[0].label", "a label must be text", ""),
    (
        section(node_groups=[group(node_ranks="0-")]),
        "cluster.node_groups[0].node_ranks",
        "neither a rank",
        "",
    ),
    (section(node_groups=[group(node_ranks="3-1")]), "cluster.node_groups[0].node_ranks", "backwards", "1-3"),
    (section(node_groups=[group(node_ranks=[0, 0])]), "cluster.node_groups[0].node_ranks", "twice", ""),
    (section(node_groups=[group(node_ranks=-1)]), "cluster.node_groups[0].node_ranks", "neither a rank", ""),
    (section(node_groups=[group(node_ranks=[])]), "cluster.node_groups[0].node_ranks", "here it is []", ""),
    (
        section(node_groups=[group(node_ranks=None)]),
        "cluster.node_groups[0].node_ranks",
        "here it is empty",
        "",
    ),
    (
        section(node_groups=[group(node_ranks=[[0]])]),
        "cluster.node_groups[0].node_ranks",
        "here it is [[0]]",
        "",
    ),
    (
        section(node_groups=[group(ignore_hardware="yes")]),
        "cluster.node_groups[0].ignore_hardware",
        "true or false",
        "write true",
    ),
    (
        section(node_groups=[group(hardware="Robot")]),
        "cluster.node_groups[0].hardware",
        "this must be a mapping",
        "",
    ),
    (
        section(node_groups=[group(hardware={"type": "Robt", "configs": [{}]})]),
        "cluster.node_groups[0].hardware.type",
        "there is no hardware type 'Robt'; there are: 'Robot'",
        "'Robot'",
    ),
    (
        section(node_groups=[group(hardware={"type": "Robot", "configs": []})]),
        "cluster.node_groups[0].hardware.configs",
        "there must be at least one",
        "",
    ),
    (
        section(node_groups=[group(hardware={"configs": [{"node_rank": 0}]})]),
        "cluster.node_groups[0].hardware",
        "the key 'type' is missing",
        "",
    ),
    (
        section(node_groups=[robot(adress="10.0.0.1")]),
        "cluster.node_groups[0].hardware.configs[0].adress",
        "unknown key 'adress'; there are node_rank, address",
        "'address'",
    ),
    (
        section(node_groups=[robot(node_rank=-1)]),
        "cluster.node_groups[0].hardware.configs[0].node_rank",
        "this must be at least 0, not -1",
        "",
    ),
    (
        section(node_groups=[robot(node_rank="0-1")]),
        "cluster.node_groups[0].hardware.configs[0].node_rank",
        "this must be a whole number, not '0-1'",
        "",
    ),
    (
        section(node_groups=[robot(address=10)]),
        "cluster.node_groups[0].hardware.configs[0].address",
        "this must be text, not 10",
        "",
    ),
    (
        section(node_groups=[group(env_configs=[{"env_var": {}}])]),
        "cluster.node_groups[0].env_configs[0].env_var",
        "unknown key 'env_var'",
        "'env_vars'",
    ),
    (
        section(node_groups=[group(env_configs=[{"env_vars": {"A": True}}])]),
        "cluster.node_groups[0].env_configs[0].env_vars.A",
        "the value of A is true: write it as text",
        "",
    ),
    (
        section(node_groups=[group(env_configs=[{"env_vars": [{"A": 1}, {"A": 2}]}])]),
        "cluster.node_groups[0].env_configs[0].env_vars[1].A",
        "the variable A stands here twice",
        "",
    ),
    (
        section(node_groups=[group(env_configs=[{"env_vars": "A=1"}])]),
        "cluster.node_groups[0].env_configs[0].env_vars",
        "a mapping or a list of mappings, not 'A=1'",
        "write A: '1'",
    ),
    (
        section(component_placement="0-3"),
        "cluster.component_placement",
        "mapping of components to placements",
        "",
    ),
    (section(component_placement={"a": None}), "cluster.component_placement.a", "the placement is empty", ""),
    (section(component_placement={"a": []}), "cluster.component_placement.a", "the placement is empty", ""),
    (section(component_placement={"a": True}), "cluster.component_placement.a", "here it is true", "0-1:0-3"),
    (section(component_placement={"a": 1.5}), "cluster.component_placement.a", "here it is 1.5", "0-1:0-3"),
    (section(component_placement={"a": [[0]]}), "cluster.component_placement.a", "here it is [0]", "0-1:0-3"),
    (
        section(component_placement={"a": 60}),
        "cluster.component_placement.a",
        "may have been written 1:0",
        "'1:0'",
    ),
    (section(component_placement={"a": [0, 75]}), "cluster.component_placement.a", "written 1:15", "'75'"),
    (
        section(component_placement={"a,,b": 0}),
        "cluster.component_placement.a,,b",
        "a component's name is empty",
        "",
    ),
    (
        section(component_placement={"a": 0, "b,a": 1}),
        "cluster.component_placement.b,a",
        "'a' is placed twice",
        "",
    ),
    (
        section(component_placement={"a": {}}),
        "cluster.component_placement.a",
        "the key 'placement' is missing",
        "",
    ),
    (
        section(component_placement={"a": {"nodegroup": "x", "placement": 0}}),
        "cluster.component_placement.a.nodegroup",
        "unknown key 'nodegroup'; there are node_group, placement",
        "'node_group'",
    ),
    (
        section(component_placement={"a": {"node_group": "x,", "placement": 0}}),
        "cluster.component_placement.a.node_group",
        "a name is missing",
        "",
    ),
    (
        section(component_placement={"a": {"node_group": {}, "placement": 0}}),
        "cluster.component_placement.a.node_group",
        "properties are for a place that is to be found",
        "",
    ),
    (
        section(component_placement={"a": {"placement": {}}}),
        "cluster.component_placement.a.placement",
        "here it is {}",
        "0-1:0-3",
    ),
]


def test_mistake_names_its_path_and_what_is_there():
    for config, path, problem, hint in MISTAKES:
        with case((path, problem)):
            error = failure(config)
            assert not isinstance(error, ConfigErrors)
            assert error.path == path
            assert problem in error.problem
            assert hint in error.hint
            assert bool(hint) == bool(error.hint)


def test_mistake_in_a_component_names_it():
    assert failure(section(component_placement={"a,b": None})).component == "a,b"


def test_several_mistakes_are_reported_together_in_the_order_of_the_section():
    error = failure(
        section(
            node_groups=[group(node_ranks="x"), {"lable": "b", "node_ranks": 1}],
            num_node=1,
            component_placement={"a": 60, "b": 0},
        )
    )
    assert isinstance(error, ConfigErrors)
    assert [e.path for e in error.errors] == [
        "cluster.node_groups[0].node_ranks",
        "cluster.node_groups[1].lable",
        "cluster.num_node",
        "cluster.component_placement.a",
    ]
    assert str(error).startswith("4 mistakes\n- cluster.node_groups[0].node_ranks: 'x' is neither a rank")


def test_value_that_holds_itself_is_a_config_error():
    looped = {"component_placement": {}}
    looped["component_placement"]["a"] = looped
    assert "holds itself" in failure({"cluster": looped}).problem


keys = st.sampled_from(
    [
        *(
            "num_nodes",
            "component_placement",
            "node_groups",
            "simulate",
            "label",
            "node_ranks",
            "hardware",
            "type",
        ),
        *("configs", "node_rank", "node_group", "placement", "env_configs", "env_vars", "actor", "a,b", "x"),
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 99) | st.floats() | st.text("0-3:,al${} x", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=tries(70))
@given(st.dictionaries(keys, values, max_size=4), st.sampled_from(["1x8", "2,0,4"]))
def test_any_config_is_placed_or_a_config_error(content, nodes):
    with suppress(ConfigError):
        placement = ComponentPlacement({"cluster": content}, Topology.parse(nodes))
        assert all(placement.placements(name) for name in placement.components)


def test_a_trace_of_the_whole_job_has_a_file():
    traced = {"enable": True, "output_file": "trace.jsonl"}
    assert read_cluster_config({"tracer": traced}).trace_file == "trace.jsonl"
    assert read_cluster_config({"tracer": {**traced, "enable": False}}).trace_file is None
    assert read_cluster_config({"tracer": {"enable": False, "output_file": None}}).trace_file is None
    assert read_cluster_config({"tracer": {"enable": True}}).trace_file == "trace_events.jsonl"
    with pytest.raises(
        ConfigError, match=r"cluster\.tracer\.enable: this must be true or false, not 'maybe'"
    ):
        read_cluster_config({"tracer": {"enable": "maybe"}})


def test_an_emulated_network_has_links_between_ranks_groups_nodes_and_node_groups():
    section = {
        "enabled": True,
        "symmetric": False,
        "crossdc_pairs": [{"src": ["Env:0-1", "node:1"], "dst": "far", "delay_ms": 10}],
        "bandwidth_groups": [{"members": "EnvGroup", "bandwidth_mbps": 8}],
    }
    groups = [{"label": "far", "node_ranks": "2-3"}]
    read = read_cluster_config({"net_emulation": section, "node_groups": groups}).net_emulation
    (delay,), (bandwidth,) = read.delays, read.bandwidths
    assert delay.sources == (LinkEnd("env", frozenset({0, 1})), LinkEnd("", frozenset({1})))
    assert (delay.targets, delay.delay_s) == ((LinkEnd("", frozenset({2, 3})),), 0.01)
    assert (bandwidth.members, bandwidth.bytes_per_s) == ((LinkEnd("env"),), 1e6)


def test_nodes_of_an_emulated_network_are_there(tmp_path):
    path = tmp_path / "far.yaml"
    path.write_text(
        "cluster:\n  net_emulation:\n    enabled: true\n    crossdc_pairs:\n"
        "      - {src: 'node:0', dst: 'node:2-3', delay_ms: 5}\n"
    )
    config = read_cluster_config(path)
    config.check_emulated_nodes(Topology.parse("4x8"))
    ClusterConfig().check_emulated_nodes(Topology.parse("1"))
    problem = r"far\.yaml:2: cluster\.net_emulation: there is no node 2; this cluster has 2 nodes, from 0 on"
    with pytest.raises(ConfigError, match=problem):
        config.check_emulated_nodes(Topology.parse("2x8"))


def test_a_network_that_is_not_enabled_is_checked_and_not_emulated():
    section = {"enabled": False, "crossdc_pairs": [{"src": "a:0", "dst": "b:0", "delay_ms": 1}]}
    assert read_cluster_config({"net_emulation": section}).net_emulation is None
    section["crossdc_pairs"][0]["delay_ms"] = "soon"
    with pytest.raises(ConfigError, match=r"crossdc_pairs\[0\]\.delay_ms: this must be a number"):
        read_cluster_config({"net_emulation": section})
