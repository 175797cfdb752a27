"""The page that compares strategies: the placements in YAML are the same ones."""

import re
from pathlib import Path

import pytest

import rlinf.scheduler
from rlinf.scheduler import ComponentPlacement, Topology

PAGE = (Path(__file__).parents[2] / "docs/how-to/choose-a-strategy.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| `(\w+Strategy\(.*\))` \| `([^`]+)`(, with `node_group: (\w+)`)? \|$", PAGE, re.MULTILINE
)


@pytest.mark.parametrize(("code", "text", "_with", "node_group"), ROWS)
def test_numbers_and_text_place_the_same(code, text, _with, node_group):
    topology = Topology.parse("2x4")
    strategy = eval(code, {name: getattr(rlinf.scheduler, name) for name in rlinf.scheduler.__all__})
    entry = {"node_group": node_group or "cluster", "placement": text}
    config = {"cluster": {"num_nodes": 2, "component_placement": {"rollout": entry}}}
    assert strategy.get_placement(topology) == ComponentPlacement(config, topology).placements("rollout")


def test_the_page_compares_every_kind_of_strategy():
    assert {row[0].split("(")[0] for row in ROWS} == {
        name
        for name in rlinf.scheduler.__all__
        if name.endswith("PlacementStrategy") and name != "PlacementStrategy"
    }
