"""From a file's text to what every process sees: the file is read once, each placement parsed and planned once."""

import sys
from collections import Counter

import pytest

from rlinf.scheduler import ComponentPlacement, PackedPlacementStrategy, Topology
from rlinf_scheduler.config.yaml_file import parse_yaml
from rlinf_scheduler.hardware.vendors import visibility_settings
from rlinf_scheduler.planning.grammar import parse_segments
from rlinf_scheduler.planning.plan import number_runs

CONF = """\
cluster:
  component_placement:
    actor: 0-3
    rollout: {node_group: "second", placement: "0-1:0-3,2-3"}
  node_groups:
    - {label: second, node_ranks: 1}
"""


class Calls:
    """How often each of some functions is called while it is entered; the functions stay what they are."""

    def __init__(self, *functions):
        self._names = {function.__code__: function.__name__ for function in functions}
        self.counts = Counter()

    def __enter__(self):
        self._before = sys.getprofile()
        sys.setprofile(self._on_event)
        return self.counts

    def __exit__(self, *_):
        sys.setprofile(self._before)

    def _on_event(self, frame, event, _argument):
        if event == "call" and frame.f_code in self._names:
            self.counts[self._names[frame.f_code]] += 1


@pytest.fixture
def conf(tmp_path):
    file = tmp_path / "conf.yaml"
    file.write_text(CONF)
    return file


class Cluster:
    """A cluster that has the same nodes and knows nothing of the file's groups."""

    topology = Topology.parse("2x4")


def test_walk_from_text_to_visible_accelerators_parses_and_plans_once(conf):
    with Calls(parse_yaml, parse_segments, number_runs) as counts:
        placed = ComponentPlacement(conf, Cluster())
        seen = [
            visibility_settings("NVIDIA", placement.visible_accelerators)["CUDA_VISIBLE_DEVICES"]
            for name in placed.components
            for placement in placed.get_strategy(name).get_placement(Cluster())
        ]
    assert seen == ["0", "1", "2", "3", "0", "0", "1", "1", "2", "3"]
    # Ranks of node groups are lists of the same grammar: one text more.
    assert counts == {"parse_yaml": 1, "parse_segments": 2 + 1, "number_runs": 2}


def test_command_reads_its_file_once(conf):
    from rlinf_scheduler.cli.planned import Where, planned

    conf.write_text(CONF.replace("cluster:\n", "cluster:\n  simulate: 2x4\n"))
    with Calls(parse_yaml, parse_segments, number_runs) as counts:
        planned(conf, Where())
    assert counts == {"parse_yaml": 1, "parse_segments": 2 + 1, "number_runs": 2}


def test_strategy_plans_once_per_topology():
    strategy = PackedPlacementStrategy(0, 7)
    with Calls(number_runs) as counts:
        first = strategy.get_placement(Topology.parse("2x4"))
        assert strategy.get_placement(Topology.parse("2x4"), isolate_gpu=False) != first
        assert strategy.get_placement(Cluster()) == strategy.get_placement(4) == first
        assert counts["number_runs"] == 1
        assert [p.node_rank for p in strategy.get_placement(Topology.parse("4x2"))] == [
            0,
            0,
            1,
            1,
            2,
            2,
            3,
            3,
        ]
        assert counts["number_runs"] == 2


def test_strategy_of_a_component_plans_anew_only_for_other_nodes(conf):
    strategy = ComponentPlacement(conf, Cluster()).get_strategy("rollout")
    with Calls(parse_segments, number_runs) as counts:
        (first, *_) = strategy.get_placement(Topology.parse("2x5"))
        strategy.get_placement(Topology.parse("3x5"))
    assert (first.node_rank, first.node_group) == (1, "second")
    assert counts == {"number_runs": 1}
