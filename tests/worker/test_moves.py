"""What is kept of ranks that come back on other nodes: of each the last place, for as long as its group is there."""

from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest

from rlinf_scheduler.planning import PackedPlacementStrategy, Topology
from rlinf_scheduler.worker.moves import Moves
from rlinf_scheduler.worker.node_watch import NodeWatch
from rlinf_scheduler.worker.processes import Processes
from rlinf_scheduler.worker.supervision import groups_of

TOPOLOGY = Topology.parse("4x1")


class Reserved:
    """Nobody else has anything; `held` says how often which nodes' devices are held for a group."""

    def __init__(self):
        self.held = Counter()

    def held_elsewhere(self):
        return set()

    def reserve(self, group, devices, wait_s):
        (node,) = devices
        self.held[group, node] += 1
        return partial(self._give_back, (group, node))

    def _give_back(self, key, _devices=None):
        self.held -= Counter([key])


class OneRank:
    """A group of one rank, on the first node."""

    def __init__(self, name):
        self.name = name
        (placement,) = PackedPlacementStrategy(0, 0).get_placement(TOPOLOGY)
        self.ranks = {0: SimpleNamespace(placement=placement)}


@pytest.fixture
def processes(session):
    session.provide(Topology, TOPOLOGY)
    session.provide(Processes, Reserved())
    yield session.service(Processes)
    groups_of(session).clear()  # nobody is to end them


def add_group(session, name):
    group = OneRank(name)
    groups_of(session).add(group)
    return group


def move(session, group):
    (rank,) = group.ranks.values()
    session.service(NodeWatch).states.lost[rank.placement.node_rank] = "it is gone"
    rank.placement = session.service(Moves).begin(group.name, rank.placement, TOPOLOGY)
    return rank.placement.node_rank


def test_a_rank_that_moves_again_gives_back_what_it_had_where_it_was(session, processes):
    group = add_group(session, "actor")
    assert [move(session, group) for _ in range(3)] == [1, 2, 3]
    assert processes.held == {("actor", 3): 1}
    session.service(Moves).forget("actor")
    session.service(Moves).forget("actor")  # who ends it and who moves another one may both see to it
    assert not processes.held


def test_what_has_moved_is_forgotten_with_its_group(session, processes):
    for number in range(3):
        group = add_group(session, f"group {number}")
        assert move(session, group) == 1
        groups_of(session).discard(group)
        session.service(NodeWatch).states.lost.clear()
    assert processes.held == {("group 2", 1): 1}
    assert len(session.service(Moves)._places) == 1
