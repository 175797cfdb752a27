"""`rlinf plan --json`: every output fits the schema that is shipped, and the documents tell all of it."""

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

from plan_files import plan_mixed_fleet, rlinf
from rlinf_scheduler.planning import PlanWarning

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "plan-json.md"
PLACEMENTS = [
    ("2x8", "{actor: 0-7, critic: '2-3:0', env: {node_group: node, placement: '0-1:0-7'}}"),
    ("8,4,0", "{actor: 0-5, agent: {node_group: node, placement: 2}}"),
    ("4", "{actor: '0-3:0-7'}"),
    ("0", "{agent: all}"),
]


def schema(name):
    return json.loads(files("rlinf_scheduler.cli").joinpath("schemas", f"{name}.schema.json").read_text())


def check(data, name):
    jsonschema.Draft202012Validator.check_schema(schema(name))
    jsonschema.validate(data, schema(name), jsonschema.Draft202012Validator)


@pytest.mark.parametrize(("shape", "placement"), PLACEMENTS)
def test_plan_fits_its_schema(conf, shape, placement):
    result = rlinf("plan", conf(f"cluster: {{component_placement: {placement}}}"), "--nodes", shape, "--json")
    check(json.loads(result.stdout), "plan")


def test_plan_of_a_mixed_fleet_fits_its_schema():
    data = json.loads(plan_mixed_fleet("--json", "--tp", "actor=16").stdout)
    check(data, "plan")
    assert data["topology"]["nodes"][16]["hardware"] == {"Robot": 1}
    assert data["topology"]["nodes"][8]["accelerator_model"] == "RTX 4090"
    assert data["warnings"][0]["kind"] == "split-tensor-parallel"
    assert data["warnings"][0]["count"] == 4


def test_every_kind_of_warning_is_in_the_schema_and_on_the_page():
    kinds = schema("plan")["properties"]["warnings"]["items"]["properties"]["kind"]["enum"]
    assert all(f'"{kind}"' in PlanWarning.__doc__ for kind in kinds)
    assert all(f"`{kind}`" in PAGE.read_text() for kind in kinds)


def test_diff_fits_its_schema(conf):
    old = conf("cluster: {component_placement: {actor: 0-7, env: 8-15, critic: '0'}}", "old.yaml")
    new = conf("cluster: {component_placement: {actor: 4-11, env: 8-11, judge: 0-1}}", "new.yaml")
    for pair in ((old, new), (old, old)):
        check(json.loads(rlinf("plan", "--diff", *pair, "--nodes", "2x8", "--json").stdout), "plan-diff")


def keys(part):
    if isinstance(part, dict):
        yield from part.get("properties", {})
        for inner in part.values():
            yield from keys(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from keys(inner)


@pytest.mark.parametrize("name", ["plan", "plan-diff"])
def test_page_tells_every_key(name):
    text = PAGE.read_text()
    assert [key for key in keys(schema(name)) if f"`{key}`" not in text] == []


def test_what_is_left_fits_the_schema(conf):
    file = conf("cluster: {component_placement: {actor: 0-7, env: 8-15}}")
    data = json.loads(rlinf("plan", file, "--nodes", "2x8", "--without", "node1", "--json").stdout)
    check(data, "plan")
    assert data["without"]["components"]["env"] == {
        "world_size_before": 8,
        "world_size": 0,
        "lost_ranks": list(range(8)),
        "placement": "",
    }
    assert list(data["components"]) == ["actor"]
