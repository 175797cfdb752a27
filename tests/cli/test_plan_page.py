"""`rlinf plan --html`: one file that asks for nothing from outside, and in which a config's text stays text."""

import json
from html.parser import HTMLParser

import pytest

from plan_files import plan_mixed_fleet, rlinf
from rlinf_scheduler.cli.plan_page import page_data
from rlinf_scheduler.cli.planned import Planned, report_on
from rlinf_scheduler.planning import HardwareUnit, NodeGroup, PlacementRule, Topology, plan_components

VOID = {"meta", "input", "br", "link", "img"}


class Page(HTMLParser):
    """The elements of a page, with attributes and text; fails on elements that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.addresses = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "text": "", **{f"@{key}": value for key, value in attrs}}
        self.elements.append(element)
        self.addresses += [
            value for key, value in attrs if key in ("src", "href", "srcset", "action", "data")
        ]
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def by_tag(self, tag):
        return [element for element in self.elements if element["tag"] == tag]

    def by_id(self, wanted):
        (element,) = [element for element in self.elements if element.get("@id") == wanted]
        return element

    @property
    def data(self):
        return json.loads(self.by_id("plan")["text"])


@pytest.fixture
def written(tmp_path):
    return tmp_path / "plan.html"


def page_of(file):
    return Page(file.read_text(encoding="utf-8"))


def test_page_asks_for_nothing_from_outside(written):
    result = plan_mixed_fleet("--html", written)
    assert result.exit_code == 0
    assert result.stdout.startswith("component")
    assert result.stderr.startswith(f"wrote {written} (")
    text, page = written.read_text(), page_of(written)
    assert page.addresses == []
    assert not {element["tag"] for element in page.elements} & {
        "link",
        "img",
        "iframe",
        "object",
        "base",
        "form",
    }
    assert "url(" not in text
    assert "@import" not in text
    assert "//" not in text.replace("// ", "")
    (policy,) = [e for e in page.by_tag("meta") if e.get("@http-equiv") == "Content-Security-Policy"]
    assert policy["@content"].startswith("default-src 'none';")


def test_page_has_every_component_node_and_warning(written):
    plan_mixed_fleet("--html", written, "--tp", "actor=16")
    page = page_of(written)
    labels = [e["text"] for e in page.by_tag("label")]
    assert [text for text in labels if text.startswith("Drollout24 ranks on nodes 8-13")]
    assert len([e for e in page.by_tag("input") if e.get("@type") == "checkbox"]) == 7 + 1
    warnings = [e["text"] for e in page.by_tag("li") if e.get("@class") in ("warning", "note")]
    assert warnings[0].startswith("4 of 4 tensor-parallel groups of actor")
    assert len(warnings) == 5
    data = page.data
    assert len(data["nodes"]) == 18
    assert data["nodes"][17]["attached"] == [["Robot", 1]]
    assert [data["labels"][node["groups"]] for node in (data["nodes"][0], data["nodes"][16])] == [
        ["a800"],
        ["robot", "arms"],
    ]
    assert data["warnings"][0] == list(range(8))


def test_data_of_the_page_gives_every_rank_back(written):
    plan_mixed_fleet("--html", written)
    data = page_of(written).data
    expected = json.loads(plan_mixed_fleet("--json").stdout)
    for component in data["components"]:
        placements = iter(expected["components"][component["name"]]["placements"])
        for first, node, first_local, local_size, kind, group, shift, lists, in_group in component["runs"]:
            for at, own in enumerate(data["lists"][lists]):
                placement = next(placements)
                numbers = [index + shift for index in own] if in_group < 0 else data["lists"][in_group][at]
                assert placement["rank"] == first + at
                assert placement["node_rank"] == node
                assert (placement["local_rank"], placement["local_world_size"]) == (
                    first_local + at,
                    local_size,
                )
                assert (placement["local_hardware_ranks"], placement["hardware_ranks"]) == (own, numbers)
                assert placement["hardware_type"] == data["kinds"][kind][0]
                assert placement["node_group"] == data["groups"][group]
        assert next(placements, None) is None


def test_page_works_without_script_as_far_as_the_map_goes(written):
    plan_mixed_fleet("--html", written)
    (plain,) = page_of(written).by_tag("pre")
    assert "16-17  robot,arms  Robot    F" in plain["text"]


NASTY = """\
cluster:
  component_placement:
    "<script>alert(1)</script>": 0
    "</script><img src=x onerror=alert(1)>": {node_group: "<b>\\"'&", placement: 0}
    "@DATA@": 1
    "<!--": 1
  node_groups:
    - {label: "<b>\\"'&", node_ranks: 0}
"""


def test_text_of_a_config_stays_text(conf, written):
    result = rlinf("plan", conf(NASTY, "<i>.yaml"), "--nodes", "1x2", "--html", written)
    assert result.exit_code == 0
    page = page_of(written)
    assert len(page.by_tag("script")) == 2
    assert not page.by_tag("img")
    assert not page.by_tag("b")
    assert not page.by_tag("i")
    assert page.by_tag("h1")[0]["text"] == "Plan of <i>.yaml"
    shown = [label["text"] for label in page.by_tag("label")]
    names = ["<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "@DATA@", "<!--"]
    assert all(name in text for name, text in zip(names, shown, strict=False))
    assert [component["name"] for component in page.data["components"]] == names
    assert page.data["labels"] == [["<b>\"'&"]]


def test_half_a_character_in_a_name_is_no_trouble(conf, written):
    file = conf('cluster: {component_placement: {"a\\ud800b": 0}}')
    for options in (["--html", written], ["--json"], ["--map"]):
        assert rlinf("plan", file, "--nodes", "1", *options).exit_code == 0
    assert page_of(written).data["components"][0]["name"] == "a\ud800b"


def test_page_of_512_nodes_stays_small(conf, written):
    file = conf(
        "cluster: {component_placement: {actor: all, rollout: '0-4095:0-2047', env: '0-2047:0-8191'}}"
    )
    assert rlinf("plan", file, "--nodes", "512x8", "--html", written).exit_code == 0
    assert len(page_of(written).data["nodes"]) == 512
    assert written.stat().st_size < 150_000


def test_page_that_cannot_be_written_is_a_wrong_question(tmp_path):
    result = plan_mixed_fleet("--html", tmp_path / "nowhere" / "plan.html")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


@pytest.mark.parametrize(
    ("shape", "groups", "headings"),
    [
        ("8", [], [("node 0", "8 GPU")]),
        ("2x8", [], [("nodes 0-1", "16 GPU")]),
        ("0", [], [("node 0", "no accelerators")]),
        (
            "8,4,4,0",
            [NodeGroup("big", (0,)), NodeGroup("arms", (2,), (HardwareUnit("Robot", 2),))],
            [
                ("big", "node 0: 8 GPU"),
                ("in no node group", "nodes 1, 3: 4 GPU"),
                ("arms", "node 2: 4 GPU, 1 Robot"),
            ],
        ),
    ],
)
def test_sections_are_headed_by_their_nodes_and_what_these_have(shape, groups, headings):
    topology = Topology.parse(shape).with_node_groups(groups)
    plan = plan_components(topology, [PlacementRule(("actor",), "0", ("node",))])
    sections = page_data(report_on(Planned(plan), {}))["sections"]
    assert [(section["title"], section["text"]) for section in sections] == headings
