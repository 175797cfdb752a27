"""Fuzzing of placements and of whole configs: whatever is written is planned, or is a mistake that we name.

    python tests/fuzz/fuzz_configs.py SECONDS

Configs are made that plan, and then damaged: keys are lost, misspelt and doubled, values are replaced and swapped, and
characters of the file are changed. It fails at the first exception that is no `ConfigError`, at an error that cannot be
shown or sent to another process, and at a plan that breaks a rule; hypothesis then shrinks what caused it.
"""

import copy
import itertools
import pickle
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rlinf.scheduler import ComponentPlacement, Topology
from rlinf_scheduler.config.fleet_file import read_fleet
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware import HardwareTable
from rlinf_scheduler.planning import (
    EnvironmentTable,
    Node,
    format_segments,
    parse_ranks,
    parse_segments,
    plan_as_data,
)

EXAMPLES = 300
SHORT = settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=60_000,  # milliseconds: nothing that somebody types may take a minute
    suppress_health_check=list(HealthCheck),
    derandomize=False,
)
outcomes = Counter()

# Pieces of texts

NUMBERS = st.integers(0, 12).map(str) | st.sampled_from(["00", "63", "1048575", "1048576", "9" * 12])
RANGES = st.builds("{}-{}".format, NUMBERS, NUMBERS) | NUMBERS
SEGMENTS = st.builds("{}:{}".format, RANGES | st.just("all"), RANGES) | RANGES | st.just("all")
PLACEMENTS = st.lists(SEGMENTS, max_size=5).map(",".join)
NOISE = st.text("0123456789-:, \talAL~.+xX_\n\"'{}[]#&*!|>%@`$\\\0é\u2028", max_size=8)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | st.floats() | NOISE | PLACEMENTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NOISE, inner, max_size=3),
    max_leaves=4,
)
SHAPES = st.lists(st.builds("{}x{}".format, NUMBERS, NUMBERS) | NUMBERS | NOISE, max_size=4).map(",".join)


@st.composite
def damaged_text(draw, texts):
    """A text with some of its characters taken away, doubled or replaced."""
    text = draw(texts)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 3)))
        text = text[:at] + draw(NOISE | st.just(text[at:end] * 2)) + text[end:]
    return text


# Configs that plan


@st.composite
def ranks(draw, numbers):
    """Ranks as text, a number or a list."""
    forms = [list(numbers), ",".join(map(str, numbers)), [str(number) for number in numbers]]
    if len(numbers) == 1:
        forms += [numbers[0], str(numbers[0])]
    if list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        forms.append(f"{numbers[0]}-{numbers[-1]}")
    return draw(st.sampled_from(forms))


@st.composite
def environments(draw, members):
    entry = {}
    if draw(st.booleans()):
        entry["node_ranks"] = draw(ranks(draw(st.lists(st.sampled_from(members), min_size=1, unique=True))))
    names = draw(st.lists(st.sampled_from(["NIC", "EGL", "A"]), unique=True))
    values = st.sampled_from(["eth0", "eth1", 1, 0.5])
    if names:
        as_list = draw(st.booleans())
        variables = {name: draw(values) for name in names}
        entry["env_vars"] = [{name: value} for name, value in variables.items()] if as_list else variables
    if draw(st.booleans()):
        entry["python_interpreter_path"] = draw(st.sampled_from(["/a/python", "/b/python"]))
    return entry


@st.composite
def groups(draw, num_nodes, label):
    members = draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, unique=True))
    group = {"label": label, "node_ranks": draw(ranks(members))}
    if draw(st.booleans()):
        at_nodes = draw(st.lists(st.sampled_from(members), min_size=1, max_size=4))
        configs = [{"node_rank": rank, "address": draw(st.sampled_from(["a", "b"]))} for rank in at_nodes]
        group["hardware"] = {"type": "Robot", "configs": configs}
    if draw(st.integers(0, 4)) == 0:
        group["ignore_hardware"] = True
    if draw(st.integers(0, 2)) == 0:
        group["env_configs"] = draw(st.lists(environments(members), max_size=2))
    return group


@st.composite
def rules(draw, labels):
    each = draw(st.sampled_from(["", ":0-11", ":0-5", ":0"]))
    text = draw(st.sampled_from([f"all{each}", f"0{each}", f"0-1{each}", "0,1", "0-2", "0:0-1,1:2-3"]))
    if draw(st.integers(0, 3)) == 0:
        return text
    node_groups = draw(st.lists(st.sampled_from(labels), min_size=1, max_size=3, unique=True))
    written = draw(st.sampled_from([node_groups, ",".join(map(str, node_groups)), node_groups[0]]))
    return {"node_group": written, "placement": text}


@st.composite
def configs(draw):
    """A topology and a config, most of which plan."""
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    kinds = st.sampled_from(["NVIDIA", "AMD"])
    nodes = tuple(Node(num_accelerators=count, accelerator_type=draw(kinds)) for count in counts)
    labels = draw(st.lists(st.sampled_from(["a800", 4090, "arms", "cpu"]), unique=True))
    section = {
        "num_nodes": len(counts),
        "component_placement": {
            name: draw(rules([*labels, "cluster", "node"]))
            for name in draw(
                st.lists(st.sampled_from(["actor", "rollout", "env,critic", "a.b"]), min_size=1, unique=True)
            )
        },
        "node_groups": [draw(groups(len(counts), label)) for label in labels],
    }
    return Topology(nodes=nodes), {"cluster": section}


# Damage

KEYS = st.sampled_from(
    [
        "num_nodes",
        "component_placement",
        "node_groups",
        "simulate",
        "label",
        "node_ranks",
        "hardware",
        "type",
        "configs",
        "node_rank",
        "address",
        "port",
        "check",
        "env_configs",
        "env_vars",
        "python_interpreter_path",
        "ignore_hardware",
        "node_group",
        "placement",
        "nodegroup",
        "actor",
    ]
)


def places_in(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places_in(item, (*path, key))


def parent_of(value, path):
    for key in path[:-1]:
        value = value[key]
    return value


@st.composite
def damaged(draw, config):
    config = copy.deepcopy(config)
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from([path for path in places_in(config) if path]))
        parent, key = parent_of(config, path), path[-1]
        kind = draw(st.sampled_from(["replace", "lose", "rename", "add", "wrap"]))
        if kind == "replace":
            parent[key] = draw(JUNK)
        elif kind == "lose":
            del parent[key]
        elif kind == "wrap":
            parent[key] = [parent[key], draw(JUNK)]
        elif isinstance(parent, dict):
            name = draw(KEYS | NOISE | damaged_text(st.just(str(key))))
            parent[name] = parent.pop(key) if kind == "rename" else draw(JUNK)
        if not config:
            break
    return config


@st.composite
def damaged_configs(draw):
    topology, config = draw(configs())
    return topology, draw(damaged(config))


# What must hold


def check_error(error):
    text = str(error)
    assert text
    assert str(pickle.loads(pickle.dumps(error))) == text
    for each in error.each():
        if each.span is not None:
            start, end = each.span
            assert 0 <= start <= end
            assert "\n" not in each.text


def check_placed(placed):
    table, environments = HardwareTable(placed.topology), EnvironmentTable(placed.topology.node_groups)
    for name in placed.components:
        placements = placed.placements(name)
        assert [placement.rank for placement in placements] == list(range(placed.get_world_size(name)))
        for placement in placements[:50]:
            table.views_of(placement)
            environments.of(placement)
        assert placed.get_strategy(name).get_placement(placed.topology) == placements
    if sum(map(placed.get_world_size, placed.components)) < 1000:
        plan_as_data(placed.plan)


def attempt(target, call, check=lambda result: None):
    try:
        result = call()
    except ConfigError as error:
        check_error(error)
        outcomes[target, "mistake"] += 1
    else:
        check(result)
        outcomes[target, "accepted"] += 1


# Targets


@given(damaged_text(PLACEMENTS) | NOISE | PLACEMENTS)
def grammar(text):
    attempt("placement", lambda: parse_segments(text), lambda s: parse_segments(format_segments(s)))
    attempt("ranks", lambda: parse_ranks(text))


@given(damaged_text(SHAPES), PLACEMENTS)
def topologies(shape, placement):
    attempt("topology", lambda: Topology.parse(shape if len(shape) < 12 else shape[:12]))
    config = {"component_placement": {"a": placement}}
    attempt("short form", lambda: ComponentPlacement(config, Topology.parse("2x8,0,4")), check_placed)


@given(damaged_configs())
def dicts(case):
    topology, config = case
    attempt("dict", lambda: ComponentPlacement(config, topology), check_placed)


@given(damaged_configs())
def dictconfigs(case):
    topology, config = case
    try:
        read = OmegaConf.create(config)
    except Exception:  # noqa: BLE001 - what OmegaConf itself does not take never reaches us
        outcomes["DictConfig", "not taken by OmegaConf"] += 1
        return
    attempt("DictConfig", lambda: ComponentPlacement(read, topology), check_placed)


@given(damaged_configs(), st.data())
def files(case, data):
    topology, config = case
    text = yaml.safe_dump(
        config, sort_keys=False, default_flow_style=data.draw(st.sampled_from([None, False, True]))
    )
    content = data.draw(damaged_text(st.just(text))).encode("utf-8", errors="surrogatepass")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_bytes(content)
        attempt("file", lambda: ComponentPlacement(file, topology), check_placed)


FLEET = """\
version: 1
nodes:
  - ip: "10.0.0.7"
    accelerators:
      - {type: NVIDIA, visible: "4", memory_bytes: 68719476736}
      - {type: NVIDIA, visible: "5"}
  - ip: "10.0.0.8"
"""


@given(damaged_text(st.just(FLEET)))
def fleets(text):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        file.write_bytes(text.encode("utf-8", errors="surrogatepass"))
        attempt("fleet", lambda: read_fleet(file))


TARGETS = [SHORT(target) for target in (grammar, topologies, dicts, dictconfigs, files, fleets)]


def main(seconds):
    """Run all targets in turn, with a new seed each time, until the time is over."""
    end = time.monotonic() + seconds
    rounds = 0
    for number in itertools.count():
        for target in TARGETS:
            if time.monotonic() >= end:
                show(rounds)
                return
            seed(int(time.time()) * 1000 + number)(target)()
            rounds += 1


def show(rounds):
    sys.stdout.write(
        f"{rounds} rounds of {EXAMPLES} examples, and nothing but plans and mistakes with a name:\n"
    )
    for (target, outcome), count in sorted(outcomes.items()):
        sys.stdout.write(f"  {target:12} {outcome:24} {count:8}\n")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
