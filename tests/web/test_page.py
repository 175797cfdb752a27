"""The page of a job: one file that asks for nothing from outside, and its functions that need no browser."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from rlinf_scheduler.observe.status import (
    ChannelStatus,
    DeviceStatus,
    GroupStatus,
    JobStatus,
    NodeStatus,
    RankStatus,
    WaitingOperation,
    WeightsStatus,
)
from rlinf_scheduler.web.app import SCRIPTS, job_page, page_file

NODE = shutil.which("node")
# In the order of the page; they know nothing of the browser.
PURE = (*SCRIPTS[: SCRIPTS.index("elements.js")], "stream.js")
VOID = {"meta", "input", "br", "link"}


class Elements(HTMLParser):
    """The elements of a page; fails on elements that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def text():
    return job_page().html.decode()


def test_page_asks_for_nothing_from_outside(text):
    elements = Elements(text).found
    addresses = [
        each[key] for _, each in elements for key in ("src", "href", "srcset", "action") if key in each
    ]
    assert addresses == ["data:,"]
    assert not {tag for tag, _ in elements} & {"iframe", "object", "base", "form", "img"}
    assert not re.search(r"https?:|url\((?!#)|@import|\bimport\b|[\"'`]//", text)


def test_policy_lets_this_style_and_this_script_run_and_no_other(text):
    policy = job_page().policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    # What the policy would refuse without a word to the reader.
    assert not re.search(r"<[^>]+\s(style|on\w+)=", text)


def test_texts_of_a_job_never_become_markup(text):
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(", text)


def test_what_the_script_looks_for_is_on_the_page(text):
    wanted = set(re.findall(r'byId\("([^"]+)"\)', text))
    there = {attributes["id"] for _, attributes in Elements(text).found if "id" in attributes}
    assert wanted <= there
    assert len(wanted) > 20


SERVE = """
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  let answer;
  try { answer = { found: eval(JSON.parse(line)) }; } catch (error) { answer = { error: error.stack }; }
  process.stdout.write(JSON.stringify(answer) + "\\n");
});
"""


@pytest.fixture(scope="module")
def in_node():
    """Gives what an expression comes to where those of the page's scripts have run that need no browser."""
    if NODE is None:
        pytest.skip("there is no Node.js to run the page's functions")
    program = "\n".join(map(page_file, PURE)) + SERVE
    command = [NODE, "-e", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def evaluate(expression):
            process.stdin.write(json.dumps(expression) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert "error" not in answer, answer["error"]
            return answer["found"]

        yield evaluate
        process.stdin.close()


@pytest.fixture
def call(in_node):
    def called(function, *arguments):
        return in_node(f"{function}({', '.join(json.dumps(each) for each in arguments)})")

    return called


def test_numbers_are_written_as_people_read_them(in_node):
    cases = {
        "duration(0.04)": "0.0 s",
        "duration(9.96)": "10 s",
        "duration(119.4)": "119 s",
        "duration(121)": "2 min 1 s",
        "duration(7325)": "2 h 2 min",
        "duration(200000)": "2 d 7 h",
        "duration(null)": "–",
        "bytes(999)": "999 B",
        "bytes(1023)": "1.00 KiB",
        "bytes(123456)": "121 KiB",
        "bytes(1.5 * 2 ** 40)": "1.50 TiB",
        "rate(0)": "0/s",
        "rate(0.05)": "3/min",
        "rate(12.34)": "12.3/s",
        "rate(1234)": "1,234/s",
        "ranges([0, 1, 2, 5, 7, 8])": "0-2, 5, 7-8",
        'groupOf("a:b:12")': "a:b",
        'groupOf("driver")': "driver",
    }
    assert dict(zip(cases, in_node(f"[{', '.join(cases)}]"), strict=True)) == cases


def test_ranks_that_share_devices_stand_above_each_other(call):
    devices = [
        DeviceStatus(0, "GPU", holders=("actor:0", "rollout:0")),
        DeviceStatus(1, "GPU", holders=("actor:0", "rollout:1")),
        DeviceStatus(2, "GPU", holders=("rollout:0",)),
        DeviceStatus(3, "GPU"),
    ]
    node = NodeStatus(0, "n", "10.0.0.1", devices=tuple(devices))
    ranks = [{"address": name} for name in ("actor:0", "env:0", "rollout:0", "rollout:1")]
    found = call("standing", JobStatus(0, "", 1, nodes=(node,)).to_dict()["nodes"][0], ranks)
    assert found["without"] == ["env:0"]
    assert found["rows"] == 2
    assert [tuple(bar.values()) for bar in found["bars"]] == [
        ("actor:0", 0, 2, 0),
        ("rollout:0", 0, 1, 1),  # its devices do not lie side by side
        ("rollout:0", 2, 1, 1),
        ("rollout:1", 1, 1, 1),
    ]


def test_a_driver_stands_where_its_host_is_one_node_alone(call):
    def ranks(*hosts):
        workers = tuple(RankStatus(f"a:{i}", i, i, host=host) for i, host in enumerate(hosts))
        nodes = tuple(NodeStatus(i, str(i), "") for i in range(len(hosts)))
        driver = GroupStatus("driver", (RankStatus("driver", 0, host=hosts[0]),), "driver")
        status = JobStatus(0, "", 1, nodes=nodes, groups=(driver, GroupStatus("a", workers)))
        found = call("((status) => [...ranksByNode(status)])", status.to_dict())
        return {node: [rank["address"] for rank in there] for node, there in found}

    assert ranks("one", "two") == {0: ["driver", "a:0"], 1: ["a:1"]}
    assert ranks("one", "one") == {0: ["a:0"], 1: ["a:1"], -1: ["driver"]}


def test_what_processes_know_of_their_past_is_shown_before_what_the_page_has_seen(in_node):
    found = in_node(
        """(() => {
      const past = new StateHistory(8);
      past.add(20.5, [["a", "running"], ["b", "idle"]]);
      past.fill(20.9, 2, { a: ["lost", "lost", "idle", "", "waiting", "waiting"], c: ["running"] });
      past.add(21.5, [["a", "running"]]);
      past.fill(21.7, 2, { a: ["waiting", "waiting", "waiting", "waiting"] });
      const states = (name) => [...past.copy(name, new Uint8Array(8))].map((state) => STATES[state - 1] ?? "");
      return { a: states("a"), b: states("b"), c: states("c") };
    })()"""
    )
    assert found["a"] == ["idle", "waiting", "waiting", "waiting", "waiting", "waiting", "running", "running"]
    assert found["b"] == ["", "", "", "", "", "", "idle", ""]
    assert found["c"] == ["", "", "", "", "", "running", "running", ""]


def ring():
    """A loop as they all are: tasks go out, trajectories come back, weights go round."""
    groups = (
        GroupStatus("driver", (RankStatus("driver", 0),), "driver"),
        GroupStatus("actor", (RankStatus("actor:0", 0),)),
        GroupStatus("rollout", (RankStatus("rollout:0", 0), RankStatus("rollout:1", 1))),
    )
    channels = (
        ChannelStatus("tasks", "c:0", putters={"driver": 2.0}, getters={"rollout:0": 1.0, "rollout:1": 1.0}),
        ChannelStatus(
            "trajectories",
            "c:0",
            putters={"rollout:0": 1.5, "rollout:1": 1.0},
            waiting=(WaitingOperation("actor:0", "'default'", "get_batch of weight 8", 3.0),),
        ),
    )
    weights = (WeightsStatus("policy", 4, "actor:0", readers={"rollout:0": 4, "rollout:1": 3}, lag=1),)
    return JobStatus(0, "", 1, groups=groups, channels=channels, weights=weights).to_dict()


def test_flow_joins_the_processes_of_a_group_and_shows_who_waits(call):
    flow = call("flowOf", ring())
    edges = {(each["from"], each["to"]): (each["perSecond"], each["numWaiting"]) for each in flow["edges"]}
    assert edges == {
        ("group driver", "channel tasks"): (2.0, 0),
        ("channel tasks", "group rollout"): (2.0, 0),
        ("group rollout", "channel trajectories"): (2.5, 0),
        ("channel trajectories", "group actor"): (0, 1),
        ("group actor", "weights policy"): (0, 0),
        ("weights policy", "group rollout"): (0, 0),
    }


def test_of_many_channels_the_busiest_are_drawn(call):
    channels = tuple(
        ChannelStatus(f"c{i}", "c:0", puts_per_s=float(i), putters={"a:0": 1.0}) for i in range(40)
    )
    flow = call("flowOf", JobStatus(0, "", 1, channels=channels).to_dict())
    assert flow["numLeftOut"] == 16
    assert [node["name"] for node in flow["nodes"]] == ["a", *(f"c{i}" for i in range(16, 40))]


LAID_OUT = """(() => {
  const flow = flowOf(%s);
  const nodes = flow.nodes.map((node) => ({ id: node.id, along: 100, across: 50 }));
  const plan = layOut(nodes, flow.edges);
  return { at: Object.fromEntries(plan.at), routes: plan.routes, along: plan.along, across: plan.across };
})()"""


def test_a_ring_is_drawn_from_left_to_right_with_one_edge_back(in_node):
    expression = LAID_OUT % json.dumps(ring())
    plan = in_node(expression)
    order = sorted(plan["at"], key=lambda name: plan["at"][name]["along"])
    assert order == [
        "group driver",
        "channel tasks",
        "group rollout",
        "channel trajectories",
        "group actor",
        "weights policy",
    ]
    backward = [route for route in plan["routes"] if route[-1]["along"] < route[0]["along"]]
    assert len(backward) == 1
    # It goes round what stands in between.
    places = [plan["at"][name] for name in ("group actor", "channel trajectories")]
    for point, place in zip(backward[0][1:-1], places, strict=True):
        assert abs(point["across"] - place["across"]) >= 25
    assert in_node(expression) == plan


def test_boxes_never_lie_on_each_other(in_node):
    names = [f"g{i}" for i in range(12)]
    channels = tuple(
        ChannelStatus(
            f"c{i}",
            "h:0",
            putters={f"{names[i * 5 % 12]}:0": 1.0, f"{names[i * 7 % 12]}:1": 1.0},
            getters={f"{names[(i * 3 + 1) % 12]}:0": 1.0},
        )
        for i in range(20)
    )
    plan = in_node(LAID_OUT % json.dumps(JobStatus(0, "", 1, channels=channels).to_dict()))
    places = list(plan["at"].values())
    for number, one in enumerate(places):
        assert 50 <= one["along"] <= plan["along"] - 50 + 1e-6
        assert 25 - 1e-6 <= one["across"] <= plan["across"] - 25 + 1e-6
        for other in places[number + 1 :]:
            apart = abs(one["along"] - other["along"]), abs(one["across"] - other["across"])
            assert apart[0] >= 100 or apart[1] >= 50 - 1e-6


def test_history_keeps_what_was_seen_and_leaves_out_what_was_not(in_node):
    assert in_node("""(() => {
      const past = new StateHistory(6);
      past.add(10.02, [["a", "running"], ["b", "idle"]]);
      past.add(10.98, [["a", "lost"]]); // the same second
      past.add(12.01, [["a", "waiting"], ["b", "idle"]]); // a look came late
      past.add(15.0, [["a", "running"]]); // nobody looked
      const before = [...past.copy("a", new Uint8Array(6))], gone = [...past.copy("b", new Uint8Array(6))];
      past.add(100, [["b", "idle"]]);
      return { before, gone, shares: past.shares("a"), left: [...past.bands.keys()], last: past.at("b", 0) };
    })()""") == {
        "before": [1, 1, 2, 0, 0, 1],
        "gone": [3, 3, 3, 0, 0, 0],
        "shares": [],
        "left": ["b"],
        "last": 3,
    }


def test_history_goes_on_where_the_clock_was_set_back(in_node):
    assert in_node("""(() => {
      const past = new StateHistory(6);
      past.add(5000, [["a", "running"]]);
      past.add(1400, [["a", "lost"]]);
      past.add(1401, [["a", "idle"]]);
      return [...past.copy("a", new Uint8Array(6))];
    })()""") == [0, 0, 0, 0, 6, 3]


def test_who_is_refused_hears_that_it_is_not_tried_again(text):
    # Whatever calls it, also whether the stream was refused.
    (handed,) = re.findall(r"follow\(\(signal\) => .*, onEvent, (.+)\);", text)
    assert handed == "broken"
    assert "function broken(text, isRefused = false)" in text


def test_events_of_the_stream_come_in_any_pieces(in_node):
    pieces = ["event: sta", 'tus\ndata: {"a"', ": 1}\n", '\nevent: trouble\ndata: "x"\n\nevent: e']
    expression = f"""(() => {{
      let text = "";
      const found = [];
      for (const piece of {json.dumps(pieces)}) {{
        const {{ events, rest }} = splitEvents(text + piece);
        text = rest;
        found.push(...events);
      }}
      return {{ found, text }};
    }})()"""
    assert in_node(expression) == {
        "found": [{"kind": "status", "data": '{"a": 1}'}, {"kind": "trouble", "data": '"x"'}],
        "text": "event: e",
    }
