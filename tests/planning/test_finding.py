"""Places that are found by properties: who gets what, why, and what is said where nothing fits."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import tries
from rlinf_scheduler.errors import ConfigError, PlacementError
from rlinf_scheduler.placement import ComponentPlacement
from rlinf_scheduler.planning import (
    Bound,
    HardwareUnit,
    Node,
    NodeGroup,
    PlacementRule,
    PlacementWish,
    Properties,
    Topology,
    find_places,
    try_plan_components,
)

GB = 10**9


def node(model="NVIDIA H100 80GB HBM3", count=8, memory_gb=85, **other):
    return Node(
        num_accelerators=count,
        accelerator_type="NVIDIA" if count else "",
        accelerator_model=model if count else "",
        memory_bytes=memory_gb * GB,
        **other,
    )


def wish(name, **asked):
    return PlacementWish((name,), **asked)


def texts(topology, *entries):
    found = find_places(topology, entries)
    assert not found.errors, found.errors
    return {rule.name: rule.text for rule in found.rules}


def error_of(topology, *entries):
    (error,) = find_places(topology, entries).errors
    return str(error)


FLEET = Topology(
    (
        node("NVIDIA A800-SXM4-80GB", labels=(("rack", "b"),)),
        node(labels=(("rack", "a"),), islands=(0, 0, 0, 0, 1, 1, 1, 1)),
        node(labels=(("rack", "a"),), islands=(0, 0, 0, 0, 1, 1, 1, 1)),
        node("NVIDIA A10", memory_gb=24, count=4),
        node(count=0, labels=(("rack", "a"),)),
    )
)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"properties": Properties(gpu="H100"), "count": 8}, "8-15"),
        ({"properties": Properties(gpu="h100"), "count": 8, "per_node": 4}, "8-11,16-19"),
        ({"properties": Properties(memory_gb=Bound.parse("<40"))}, "24-27"),
        ({"properties": Properties(label=(("rack", "b"),)), "count": 4, "processes": 2}, "0-3:0-1"),
        ({"properties": Properties(label=(("rack", "a"),)), "count": 16, "processes": 32}, "8-23:0-31"),
        ({"properties": Properties(accelerators=Bound.parse("<8")), "count": 2}, "24-25"),
        ({"properties": Properties(vendor="nvidia"), "count": 4}, "24-27"),  # where the fewest are left over
        ({"count": 4, "same": "island"}, "8-11"),
        ({"same": "node", "properties": Properties(gpu="A10")}, "24-27"),
        ({"same": "node"}, "0-7"),
        ({"count": 20}, "0-15,24-27"),
        ({"node_groups": ("node",), "count": 1, "processes": 16}, "0:0-15"),
    ],
)
def test_what_is_asked_for_becomes_numbers(asked, text):
    assert texts(FLEET, wish("actor", **asked)) == {"actor": text}


def test_a_model_is_compared_by_words():
    assert "A800" in error_of(FLEET, wish("actor", properties=Properties(gpu="A8")))
    assert texts(FLEET, wish("env", properties=Properties(gpu="A10"))) == {"env": "24-27"}
    assert Properties(gpu="A10").misfits(node("NVIDIA A100-SXM4-80GB")) != []


def test_what_is_written_keeps_its_place_and_nobody_else_s_devices_are_taken():
    found = texts(Topology.parse("2x4"), wish("rollout", count=4), PlacementRule(("actor",), "2-5"))
    assert found == {"rollout": "0-1,6-7", "actor": "2-5"}


def test_the_wish_that_the_fewest_fit_has_its_choice_first():
    anything = wish("rollout", count=8)
    choosy = wish("actor", properties=Properties(gpu="A800"), count=8)
    assert texts(FLEET, anything, choosy) == {"rollout": "8-15", "actor": "0-7"}


def test_neighbours_are_on_the_nodes_of_others_or_off_them_or_on_their_devices():
    found = texts(
        Topology.parse("3x4"),
        wish("actor", count=2, same="node"),
        wish("critic", count=2, beside=("actor",)),
        wish("rollout", count=4, not_with=("actor",)),
        wish("reward", sharing=("rollout",), count=2, processes=1),
    )
    assert found == {"actor": "0-1", "critic": "2-3", "rollout": "4-7", "reward": "4-5:0"}


def test_who_is_named_is_placed_before():
    found = texts(Topology.parse("4,8"), wish("critic", beside=("actor",), count=2), wish("actor", count=6))
    assert found == {"critic": "10-11", "actor": "4-9"}


def test_a_process_has_neighbours_only():
    taken = PlacementRule(("actor",), "1,4")
    found = texts(Topology.parse("1x8"), taken, wish("rollout", count=4, processes=2))
    assert found["rollout"] == "2-3:0,5-6:1"
    assert "2 neighbours for each process" in error_of(
        Topology.parse("1x8"), taken, wish("rollout", count=6, processes=3)
    )


def test_robots_are_found_too():
    arms = tuple(HardwareUnit("Robot", rank, f"arm{rank}") for rank in (0, 0, 1))
    topology = Topology.parse("2x0").with_node_groups([NodeGroup("arms", (0, 1), arms)])
    assert texts(topology, wish("env", node_groups=("arms",), count=2)) == {"env": "0-1"}


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([wish("a", count=99)], ["99 accelerators are needed", "of 28 accelerators", "28 are free"]),
        ([wish("a", count=9, same="node")], ["9 accelerators on one node", "at most 8 on one node, node 0"]),
        ([wish("a", count=5, same="island")], ["at most 4 on one island, node 1"]),
        (
            [wish("a", count=16, per_node=8), wish("b", count=16, per_node=8)],
            ["2 nodes with 8 free each", "16 are of 'a'"],
        ),
        ([PlacementRule(("a",), "all"), wish("b", count=1)], ["28 are of 'a'", "`with: a` shares"]),
        ([wish("a", properties=Properties(gpu="H200", memory_gb=Bound.parse("80")))], ["nearest is node 0"]),
        ([wish("a", properties=Properties(label=(("row", "1"),)))], ["it has no label row"]),
        ([wish("a", beside=("b",)), wish("b", beside=("a",))], ["'a', 'b' are placed by each other"]),
        ([wish("a", beside=("rolout",)), PlacementRule(("rollout",), "0")], ["did you mean 'rollout'?"]),
        ([wish("a", sharing=("a",))], ["placed by itself"]),
        ([wish("a", count=6, per_node=4)], ["not a multiple of 4", "4 or 8"]),
        ([wish("a", count=4, processes=3)], ["cannot share 4 resources evenly"]),
        ([wish("a", processes=3)], ["needs `count`"]),
        ([PlacementRule(("a",), "all"), wish("b", not_with=("a",))], ["on all of them"]),
        ([wish("a", node_groups=("arms",), count=1)], ["there is no node group 'arms'"]),
    ],
)
def test_what_cannot_be_had_is_told_with_what_is_missing(entries, said):
    text = error_of(FLEET, *entries)
    for each in said:
        assert each in text


def test_an_island_that_nobody_knows_of_is_told():
    assert "not known of any node" in error_of(Topology.parse("2x8"), wish("a", count=2, same="island"))


@st.composite
def problems(draw):
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    models = st.sampled_from(["NVIDIA H100", "NVIDIA A800"])
    topology = Topology(tuple(node(draw(models), size) if size else node(count=0) for size in sizes))
    wishes = []
    for index in range(draw(st.integers(1, 4))):
        width = draw(st.sampled_from([1, 1, 2]))
        count = draw(st.none() | st.integers(1, 6).map(lambda n, width=width: n * width))
        earlier = [f"c{before}" for before in range(index)]
        some = st.lists(st.sampled_from(earlier), max_size=1) if earlier else st.just([])
        wishes.append(
            wish(
                f"c{index}",
                properties=Properties(gpu=draw(st.sampled_from(["", "H100"]))),
                count=count,
                per_node=draw(st.none() | st.just(2)) if count and count % 2 == 0 else None,
                processes=count // width if count else None,
                beside=tuple(draw(some)),
                not_with=tuple(draw(some)),
                sharing=tuple(draw(some)),
            )
        )
    return topology, wishes


@given(problem=problems())
@settings(max_examples=tries(300), deadline=None)
def test_every_place_that_is_found_is_as_it_was_asked_for(problem):
    topology, wishes = problem
    found = find_places(topology, wishes)
    again = find_places(topology, wishes)
    assert (found.places, list(map(str, found.errors))) == (again.places, list(map(str, again.errors)))
    plan, errors = try_plan_components(topology, found.rules)
    assert not errors
    devices, nodes = {}, {}
    for name, component in plan.components.items():
        placements = component.placements()
        devices[name] = {(p.node_rank, d) for p in placements for d in p.local_hardware_ranks}
        nodes[name] = {p.node_rank for p in placements}
    for place in found.places:
        asked, name = place.wish, place.wish.name
        assert asked.count in (None, len(devices[name])) or not topology.num_accelerators
        assert asked.processes in (None, plan.components[name].world_size)
        assert all(not asked.properties.misfits(topology.nodes[rank]) for rank in nodes[name])
        assert all(nodes[name] <= nodes[other] for other in asked.beside)
        assert all(nodes[name].isdisjoint(nodes[other]) for other in asked.not_with)
        if asked.per_node and topology.num_accelerators:
            assert all(sum(rank == on for on, _ in devices[name]) == asked.per_node for rank in nodes[name])
        if asked.sharing:
            assert all(devices[name] <= devices[other] for other in asked.sharing)
        before = found.places[: found.places.index(place)]
        for other in (each.wish for each in before if not asked.sharing and not each.wish.sharing):
            assert devices[name].isdisjoint(devices[other.name])


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    count=st.integers(1, 30),
    each=st.integers(1, 4),
)
@settings(max_examples=tries(200), deadline=None)
def test_what_can_be_had_is_found(sizes, count, each):
    """A single component that could be placed by hand is placed."""
    topology = Topology(tuple(node(count=size) for size in sizes))
    free = find_places(topology, [wish("a", count=count)])
    assert bool(free.places) == (count <= sum(sizes))
    wide = find_places(topology, [wish("a", count=count * each, processes=count)])
    assert bool(wide.places) == (count <= sum(size // each for size in sizes))
    per_node = find_places(topology, [wish("a", count=count * each, per_node=each)])
    assert bool(per_node.places) == (count <= sum(size >= each for size in sizes))


def test_a_large_fleet_is_planned_in_a_moment():
    nodes = (node(labels=(("rack", str(rank % 64)),), islands=(0,) * 4 + (1,) * 4) for rank in range(8192))
    config = {
        "component_placement": {
            "actor": {"node_group": {"gpu": "H100", "memory_gb": ">=80"}, "count": 32768, "per_node": 8},
            "rollout": {"count": 16384, "processes": 4096},
            "critic": {"count": 4, "same": "island"},
            "env": {"node_group": {"label": {"rack": 3}}, "count": 64},
        }
    }
    topology = Topology(tuple(nodes))
    begun = time.process_time()
    placement = ComponentPlacement(config, topology)
    took_s = time.process_time() - begun
    assert [placement.get_world_size(name) for name in placement.components] == [32768, 4096, 4, 64]
    assert took_s < 2.0  # a third of a second where nothing else runs


# -- in a config -------------------------------------------------------------------------------------


def planned(entry, topology=FLEET):
    return ComponentPlacement({"component_placement": {"actor": "0-7", "rollout": entry}}, topology)


def test_a_config_says_what_a_place_must_be():
    entry = {
        "node_group": {"gpu": "H100", "memory_gb": ">=80", "label": {"rack": "a"}},
        "count": 8,
        "per_node": 4,
    }
    placement = planned(entry)
    assert placement.found["rollout"].rule.text == "8-11,16-19"
    assert [p.node_rank for p in placement.placements("rollout")] == [1] * 4 + [2] * 4
    assert placement.get_strategy("rollout").get_placement(FLEET) == placement.placements("rollout")
    assert "actor" not in placement.found
    assert (
        "nodes 0, 3-4" in " ".join(placement.found["rollout"].reasons) or placement.found["rollout"].reasons
    )


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"count": 0}, "whole number from 1, or all"),
        ({"node_group": {"gpo": "H100"}}, "did you mean 'gpu'?"),
        ({"node_group": {"memory_gb": "much"}}, "number"),
        ({"node_group": {"label": "a"}}, "mapping of labels"),
        ({"count": 4, "same": "rack"}, "node"),
        ({"placement": "0-3", "count": 4}, "leave one of them out"),
        ({"count": 4, "besides": "actor"}, "did you mean 'beside'?"),
        ({"count": 4, "with": ""}, "a name is missing"),
        ({"node_group": {"gpu": "B200"}, "count": 4}, "no node has gpu B200"),
    ],
)
def test_a_mistake_in_a_config_is_told_with_its_place(entry, said):
    with pytest.raises(ConfigError) as caught:
        planned(entry)
    assert said in str(caught.value)
    assert "component_placement.rollout" in str(caught.value)


def test_a_place_that_cannot_be_had_is_an_error_of_placement():
    with pytest.raises(PlacementError, match="component 'rollout'"):
        planned({"count": 99})


def test_what_is_in_two_node_groups_is_had_once():
    groups = NodeGroup("one", (0,)), NodeGroup("both", (0, 1))
    topology = Topology.parse("2x4").with_node_groups(groups)
    assert texts(topology, wish("a", node_groups=("one", "both"), count=6)) == {"a": "0-3,8-9"}


def test_who_takes_all_comes_after_those_that_say_how_many():
    assert texts(Topology.parse("1x4"), wish("a"), wish("b", count=1)) == {"a": "1-3", "b": "0"}


def test_a_node_of_two_models_is_neither():
    mixed = Topology((node("A800, H100"),))
    assert "its accelerators are A800, H100" in error_of(mixed, wish("a", properties=Properties(gpu="H100")))


def test_nodes_are_no_devices_to_share():
    topology = Topology.parse("1x4")
    env = PlacementRule(("env",), "0:0-3", ("node",))
    assert "'env' has none" in error_of(topology, env, wish("a", sharing=("env",)))
    actor = PlacementRule(("actor",), "0-3")
    assert "nodes are none" in error_of(topology, actor, wish("a", node_groups=("node",), sharing=("actor",)))
    bare = NodeGroup("bare", (0,))
    uneven = Topology((node(count=0), node(count=4))).with_node_groups([bare])
    both = wish("a", node_groups=("bare", "cluster"), count=1, sharing=("actor",))
    assert texts(uneven, actor, both)["a"] == "1"


def test_what_is_short_is_told_as_it_is():
    topology = Topology.parse("3x3")
    assert "9 are free" in error_of(topology, wish("a", count=8, processes=2))
    actor = PlacementRule(("actor",), "0-3")
    assert "4 are of 'actor'" in error_of(topology, actor, wish("a", count=6, sharing=("actor",)))
    assert "at most 1048576" in error_of(topology, wish("a", count=1, processes=10**9))


@pytest.mark.parametrize(
    "actor", ["0-x", {"node_group": "wrong", "placement": 0}, {"counts": 4, "beside": "b"}, "9"]
)
def test_who_names_a_component_with_a_mistake_adds_none(actor):
    cluster = {
        "node_groups": [{"label": "wrong", "node_ranks": 9}],
        "component_placement": {"actor": actor, "b": {"with": "actor"}},
    }
    with pytest.raises(ConfigError) as raised:
        ComponentPlacement({"cluster": cluster}, Topology.parse("1x4"))
    assert "no component" not in str(raised.value)


def test_properties_beside_a_placement_are_told():
    entry = {"node_group": {"gpu": "H100"}, "placement": "0-3"}
    with pytest.raises(PlacementError, match="leave one of them out"):
        ComponentPlacement({"component_placement": {"a": entry}}, Topology.parse("1x4"))


def test_what_was_found_is_not_put_on_nodes_that_are_otherwise():
    config = {"component_placement": {"a": {"node_group": {"gpu": "H100"}, "count": 4}}}
    h100, a10 = Topology((node(),)), Topology((node("NVIDIA A10", memory_gb=24),))
    strategy = ComponentPlacement(config, h100).get_strategy("a")
    assert len(strategy.get_placement(Topology((node(ip="10.0.0.1"),)))) == 4
    with pytest.raises(
        PlacementError, match=r"'a': these are not the nodes .* node 0 has not gpu H100: .* A10"
    ):
        strategy.get_placement(a10)


def test_a_fleet_s_file_is_a_place_to_plan_on(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text("version: 1\nnodes: [{accelerators: {type: NVIDIA, count: 4, model: A10}}]\n")
    config = {"component_placement": {"actor": {"node_group": {"gpu": "A10"}, "count": 2}}}
    for where in (file, str(file)):
        assert ComponentPlacement(config, where).get_world_size("actor") == 2
    with pytest.raises(ConfigError, match=r"Topology.parse\('2x8'\)"):
        ComponentPlacement(config, "2x8")
