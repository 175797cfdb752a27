"""What a process starts with: the settings of the groups that placed it, and what contradicts itself."""

import pytest

from rlinf.scheduler import ComponentPlacement, Topology
from rlinf_scheduler.errors import ConfigError, ConfigErrors
from rlinf_scheduler.planning import (
    EnvironmentTable,
    NodeEnvironment,
    NodeGroup,
    ProcessEnvironment,
)
from rlinf_scheduler.planning.environments import PATH_MERGE_VARIABLE as PATH_MERGE
from rlinf_scheduler.planning.environments import path_merge_of

TRAIN_PYTHON, SIM_PYTHON = "/opt/train/bin/python", "/opt/sim/bin/python"


def entry(node_ranks=None, python=None, **env_vars):
    settings = {"env_vars": [{name: value} for name, value in env_vars.items()]}
    if node_ranks is not None:
        settings["node_ranks"] = node_ranks
    if python is not None:
        settings["python_interpreter_path"] = python
    return settings


def group(label, node_ranks, *env_configs, **other):
    return {"label": label, "node_ranks": node_ranks, "env_configs": list(env_configs), **other}


def place(component_placement, groups, topology="3x2"):
    section = {"component_placement": component_placement, "node_groups": groups}
    return ComponentPlacement({"cluster": section}, Topology.parse(topology))


def environments(placed, component):
    table = EnvironmentTable(placed.topology.node_groups)
    return [table.of(p) for p in placed.placements(component)]


def failure(component_placement, groups, topology="3x2"):
    with pytest.raises(ConfigError) as caught:
        place(component_placement, groups, topology)
    return caught.value


def test_variables_and_interpreter_hold_for_their_nodes_only():
    train = group("train", "0-2", entry("0-1", TRAIN_PYTHON, NIC="eth0"), entry(2, NIC="eth1"))
    placed = place({"actor": {"node_group": "train", "placement": "all:0-2"}}, [train])
    assert environments(placed, "actor") == [
        ProcessEnvironment((("NIC", "eth0"),), TRAIN_PYTHON),
        ProcessEnvironment((("NIC", "eth0"),), TRAIN_PYTHON),
        ProcessEnvironment((("NIC", "eth1"),)),
    ]


def test_entry_without_nodes_holds_for_the_whole_group():
    placed = place({"a": {"node_group": "g", "placement": "0-3"}}, [group("g", [2, 0], entry(A="1"))])
    assert set(environments(placed, "a")) == {ProcessEnvironment((("A", "1"),))}


def test_entries_of_a_group_add_up_on_a_node():
    both = group("g", "0-1", entry(A="1"), entry(1, SIM_PYTHON, B="2", A="1"))
    placed = place({"a": {"node_group": "g", "placement": "0-3:0-1"}}, [both])
    assert environments(placed, "a") == [
        ProcessEnvironment((("A", "1"),)),
        ProcessEnvironment((("A", "1"), ("B", "2")), SIM_PYTHON),
    ]


def test_two_groups_lay_different_software_over_one_node():
    groups = [group("train", 0, entry(None, TRAIN_PYTHON)), group("sim", 0, entry(None, SIM_PYTHON))]
    rules = {name: {"node_group": name, "placement": 0} for name in ("train", "sim")}
    placed = place(rules, groups)
    assert [environments(placed, name)[0].python_interpreter_path for name in rules] == [
        TRAIN_PYTHON,
        SIM_PYTHON,
    ]


def test_group_without_settings_takes_none_from_its_neighbours():
    placed = place(
        {"a": {"node_group": "bare", "placement": 0}}, [group("g", 0, entry(A="1")), group("bare", 0)]
    )
    assert environments(placed, "a") == [ProcessEnvironment()]


@pytest.mark.parametrize("rule", ["0", {"node_group": "node", "placement": "0"}])
def test_process_placed_by_a_group_that_always_exists_takes_what_its_node_is_given(rule):
    placed = place({"a": rule}, [group("g", 0, entry(A="1")), group("h", "0-1", entry(None, SIM_PYTHON))])
    assert environments(placed, "a") == [ProcessEnvironment((("A", "1"),), SIM_PYTHON)]


def test_component_of_several_groups_takes_each_process_its_groups_settings():
    groups = [group("a", 1, entry(N="a")), group("b", 0, entry(N="b"))]
    placed = place({"c": {"node_group": "a,b", "placement": "all"}}, groups)
    assert [dict(e.env_vars)["N"] for e in environments(placed, "c")] == ["a", "a", "b", "b"]


def test_contradiction_within_a_group_is_an_error_that_names_both_places():
    error = failure({"a": 0}, [group("g", "0-2", entry("0-1", NIC="eth0"), entry("1-2", NIC="eth1"))])
    assert error.path == "cluster.node_groups[0].env_configs[1].env_vars"
    assert error.problem == (
        "on node 1 NIC is 'eth1' here and 'eth0' in cluster.node_groups[0].env_configs[0].env_vars"
    )


def test_contradicting_groups_are_an_error_where_a_process_belongs_to_both():
    groups = [group("train", 0, entry(None, TRAIN_PYTHON)), group("sim", "0-1", entry(None, SIM_PYTHON))]
    error = failure({"agent": {"node_group": "node", "placement": "0-1"}}, groups)
    assert error.component == "agent"
    assert error.path == "cluster.node_groups[1].env_configs[0].python_interpreter_path"
    assert "the interpreter" in error.problem
    assert "cluster.node_groups[0].env_configs[0].python_interpreter_path" in error.problem


def test_contradictions_are_reported_with_the_other_mistakes():
    groups = [group("g", 0, entry(A="1")), group("h", 0, entry(A="2"))]
    error = failure({"a": 0, "b": "9", "c": {"node_group": "g", "placement": 0}}, groups)
    assert isinstance(error, ConfigErrors)
    assert [e.component for e in error.errors] == ["b", "a"]  # in the order of the section


def test_groups_made_by_hand_name_themselves_in_a_contradiction():
    entries = (NodeEnvironment((0,), (("A", "1"),)), NodeEnvironment((0,), (("A", "2"),)))
    with pytest.raises(ConfigError, match="A is '2' here and '1' in entry 0 of node group 'g'"):
        Topology.parse("1x1").with_node_groups([NodeGroup("g", (0,), environments=entries)])


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("/opt/lib", "/opt/lib:${LD_LIBRARY_PATH}"),
        ("/a:/b", "/a:/b:${LD_LIBRARY_PATH}"),
        ("/a:${LD_LIBRARY_PATH}:/b", "/a:${LD_LIBRARY_PATH}:/b"),
        ("", "${LD_LIBRARY_PATH}"),
    ],
)
def test_path_is_put_in_front_of_what_the_node_has(written, value):
    entries = (NodeEnvironment((0,), (("LD_LIBRARY_PATH", written), ("NIC", "eth0"))),)
    table = EnvironmentTable([NodeGroup("g", (0,), environments=entries)])
    assert table.on_node("g", 0).env_vars == (("LD_LIBRARY_PATH", value), ("NIC", "eth0"))


def test_path_in_a_config_may_say_where_what_is_there_stands():
    groups = [group("g", 0, entry(PYTHONPATH=r"/a:\${PYTHONPATH}:/b", PATH="/bin/own"))]
    (environment,) = environments(place({"a": 0}, groups), "a")
    assert dict(environment.env_vars) == {"PYTHONPATH": "/a:${PYTHONPATH}:/b", "PATH": "/bin/own:${PATH}"}


def test_two_groups_that_set_a_path_differently_contradict_each_other():
    groups = [group("g", 0, entry(PYTHONPATH="/a")), group("h", 0, entry(PYTHONPATH="/b"))]
    assert "PYTHONPATH is '/b' here and '/a' in" in failure({"a": 0}, groups).problem


@pytest.mark.parametrize(
    ("merge", "value"),
    [("prepend", "/own:${PATH}"), ("append", "${PATH}:/own"), ("replace", "/own"), (None, "/own:${PATH}")],
)
def test_an_entry_says_where_the_folders_of_a_path_variable_go(merge, value):
    own = entry(PATH="/own", NIC="eth0") | ({} if merge is None else {"path_variables": merge})
    placed = place({"a": {"node_group": "g", "placement": "0"}}, [group("g", 0, own)])
    assert dict(environments(placed, "a")[0].env_vars) == {"PATH": value, "NIC": "eth0"}


def test_the_program_that_launches_says_it_for_who_does_not():
    entries = (
        NodeEnvironment(None, (("CPATH", "/own"),)),
        NodeEnvironment(None, (("PATH", "/b"),), "", "append"),
    )
    table = EnvironmentTable(
        [NodeGroup("g", (0,), environments=entries)], path_merge_of({PATH_MERGE: "override"})
    )
    assert table.on_node("g", 0).env_vars == (("CPATH", "/own"), ("PATH", "${PATH}:/b"))


@pytest.mark.parametrize(
    ("word", "merge"),
    [("", "prepend"), ("append", "prepend"), ("Override", "replace"), ("replace", "replace")],
)
def test_words_for_where_folders_go(word, merge):
    assert path_merge_of({PATH_MERGE: word}) == merge


def test_another_word_for_where_folders_go_is_a_mistake():
    with pytest.raises(ConfigError, match="RLINF_PATH_ENV_MERGE_MODE is 'behind'; it is one of"):
        path_merge_of({PATH_MERGE: "behind"})


def test_another_word_in_a_config_is_a_mistake_at_its_place():
    own = entry(PATH="/own") | {"path_variables": "behind"}
    error = failure({"a": {"node_group": "g", "placement": "0"}}, [group("g", 0, own)])
    assert "env_configs[0].path_variables" in str(error)
