"""`rlinf plan --diff`: which ranks move, and the exit code that says whether any does."""

import json

import pytest

from plan_files import MIXED_FLEET, rlinf

OLD = "cluster: {component_placement: {actor: 0-7, env: 8-15, critic: '0'}}"
NEW = "cluster: {component_placement: {actor: 4-11, env: 8-11, judge: 0-1}}"


@pytest.fixture
def pair(conf):
    return conf(OLD, "old.yaml"), conf(NEW, "new.yaml")


def test_diff_lists_what_moves_and_exits_1(pair):
    result = rlinf("plan", "--diff", *pair, "--nodes", "2x8")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "component  rank  before          after",
        "actor      0-3   node 0 GPU 0-3  node 0 GPU 4-7",
        "actor      4-7   node 0 GPU 4-7  node 1 GPU 0-3",
        "env        4-7   node 1 GPU 4-7  -",
        "judge      0-1   -               node 0 GPU 0-1",
        "critic     0     node 0 GPU 0    -",
        "actor: 8 of 8 ranks move",
        "env: from 8 to 4 ranks; 0 of 8 ranks move",
        "judge: new, 2 ranks",
        "critic: gone, had 1 rank",
    ]


def test_diff_without_moves_exits_0(pair):
    result = rlinf("plan", pair[0], pair[0], "--diff", "--nodes", "2x8")
    assert result.exit_code == 0
    assert result.stdout == "nothing moves: 17 ranks of 3 components stay\n"


def test_nodes_that_move_alike_share_a_row(conf):
    old = conf("cluster: {component_placement: {actor: 0-63, env: '0:0'}}", "old.yaml")
    new = conf("cluster: {component_placement: {actor: 8-71, env: '1:0'}}", "new.yaml")
    assert rlinf("plan", "--diff", old, new, "--nodes", "10x8").stdout.splitlines()[1:] == [
        "actor      0-63  nodes 0-7 GPU 0-7  nodes 1-8 GPU 0-7",
        "env        0     node 0 GPU 0       node 0 GPU 1",
        "actor: 64 of 64 ranks move",
        "env: 1 of 1 rank moves",
    ]


def test_every_moving_rank_is_listed_when_asked(pair):
    result = rlinf("plan", "--diff", *pair, "--nodes", "2x8", "--ranks")
    assert result.stdout.splitlines()[1] == "actor      0     node 0 GPU 0  node 0 GPU 4"
    assert len(result.stdout.splitlines()) == 1 + 8 + 4 + 2 + 1 + 4


def test_diff_as_data_has_both_places_of_a_rank(pair):
    result = rlinf("plan", "--diff", *pair, "--nodes", "2x8", "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["moves"] is True
    assert data["components"]["actor"]["moves"][4] == {
        "rank": 4,
        "before": {"node_rank": 0, "node_id": "node0", "hardware_type": "GPU", "devices": [4]},
        "after": {"node_rank": 1, "node_id": "node1", "hardware_type": "GPU", "devices": [0]},
    }
    assert {name: part["change"] for name, part in data["components"].items()} == {
        "actor": "moved",
        "env": "resized",
        "judge": "added",
        "critic": "removed",
    }


def test_each_config_may_have_its_own_cluster(conf):
    file = conf("cluster: {component_placement: {actor: all}}")
    result = rlinf("plan", "--diff", file, file, "--nodes", "1x4", "--nodes", "1x6")
    assert result.stdout.splitlines()[-1] == "actor: from 4 to 6 ranks; 0 of 4 ranks move"


def test_diff_takes_fleets(conf):
    placement = MIXED_FLEET / "placement.yaml"
    fleet = (MIXED_FLEET / "fleet.yaml").read_text()
    changed = conf(fleet.replace("10.0.0.3,", "10.0.0.33,"), "fleet.yaml")
    result = rlinf(
        "plan", "--diff", placement, placement, "--fleet", MIXED_FLEET / "fleet.yaml", "--fleet", changed
    )
    assert result.exit_code == 1
    assert "actor: 8 of 64 ranks move" in result.stdout


def test_configs_that_say_their_own_cluster_need_no_option(conf):
    old = conf("cluster: {simulate: 1x2, component_placement: {actor: 0-1}}", "old.yaml")
    new = conf("cluster: {simulate: 2x1, component_placement: {actor: 0-1}}", "new.yaml")
    assert "actor: 1 of 2 ranks moves" in rlinf("plan", "--diff", old, new).stdout


@pytest.mark.parametrize(
    "options",
    [
        ("--diff", "OLD"),
        ("OLD", "NEW"),
        ("--diff", "OLD", "NEW", "OLD"),
        ("--diff", "OLD", "NEW", "--html", "x.html"),
        ("--diff", "OLD", "NEW", "--map"),
        ("--diff", "OLD", "NEW", "--tp", "actor=2"),
        ("--diff", "OLD", "nowhere.yaml"),
        ("--diff", "OLD", "NEW", "--nodes", "2x8"),
        ("--diff", "OLD", "NEW", "--fleet", "OLD"),
        ("OLD", "--nodes", "2x8"),
    ],
)
def test_wrong_question_about_two_plans_exits_2(pair, options):
    names = dict(zip(("OLD", "NEW"), pair, strict=True))
    result = rlinf(
        "plan", *(names.get(option, option) for option in options), "--nodes", "2x8", "--nodes", "2x8"
    )
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
