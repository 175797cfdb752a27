"""Ranks leave nodes that are to be given back, in the time that is left, which may become less: without Ray."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Queue

import pytest
from resized_workers import Collective, Member, Unhurried

from rlinf.scheduler import Channel, FlexiblePlacementStrategy
from rlinf_scheduler.checks import FOREVER_S
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import WorkerDied
from rlinf_scheduler.events import GroupResized, RankDrained, WorkerReturned
from rlinf_scheduler.observe.why import why
from rlinf_scheduler.worker import deadline
from rlinf_scheduler.worker.leaving_nodes import LeavingNodes
from rlinf_scheduler.worker.node_watch import NodeWatch
from waits import seen, wait_until

DEADLINE_S = 60.0
# Of the two nodes with four devices each.
FIRST, SECOND = 0, 4
LONG_S, SHORT_S = 10 * DEADLINE_S, 1.0


class Nodes:
    """The nodes of a job, which are drained; and what is told of that."""

    def __init__(self, job):
        self.heard = Queue()
        self._session = job.session
        self._watch = job.session.service(NodeWatch)
        job.session.service(LeavingNodes)
        kinds = (GroupResized, RankDrained, WorkerReturned)
        job.session.bus.subscribe(lambda event: isinstance(event, kinds) and self.heard.put(event))

    def drain(self, left_s, node="second"):
        """It is to be given back in so many seconds, or (None) at some time; returns once that is known."""
        self.drain_until(0.0 if left_s is None else time.time() + left_s, node)

    def drain_until(self, until, node="second"):
        known = Promise()

        def drain():
            self._watch._drain(node, until)
            known.set_result(None)

        self._session.messenger.submit(drain)
        assert known.wait(DEADLINE_S)

    def next(self, kind):
        while not isinstance(event := self.heard.get(timeout=DEADLINE_S), kind):
            pass
        return event


@pytest.fixture
def nodes(forked_job):
    return Nodes(forked_job)


def launch(job, *devices, worker_class=Member, args=(), **options):
    strategy = FlexiblePlacementStrategy([[each] for each in devices])
    return worker_class.create_group(*args).launch(job, strategy, name="ranks", **options)


def waits_for(job, what):
    """Return once a resize waits for that, in words."""
    seen(lambda: str(why(job.session, DEADLINE_S)), lambda text: what in text)


@contextmanager
def growing(job, group):
    """A block in which the group grows by one rank, so that other resizes wait for their turn until it ends."""
    begun, goes_on = threading.Event(), threading.Event()

    def hold():
        begun.set()
        assert goes_on.wait(DEADLINE_S)

    job.processes.on_start = hold
    with ThreadPoolExecutor(1) as pool:
        grown = pool.submit(group.grow, 1)
        assert begun.wait(DEADLINE_S)
        yield
        goes_on.set()
        grown.result(DEADLINE_S)


def as_one_starts(job, nodes):
    """Drain the second node as soon as the next process starts."""

    def drain():
        job.processes.on_start = lambda: None
        nodes.drain(LONG_S)

    job.processes.on_start = drain


def test_a_rank_that_is_launched_on_a_node_as_that_is_drained_leaves_once_it_is_there(forked_job, nodes):
    as_one_starts(forked_job, nodes)
    launch(forked_job, FIRST, SECOND)
    assert nodes.next(GroupResized).new_ranks == (0,)
    assert nodes.next(RankDrained).forced is False


def test_a_rank_that_joins_on_a_node_as_that_is_drained_leaves_once_it_is_there(forked_job, nodes):
    group = launch(forked_job, FIRST)
    as_one_starts(forked_job, nodes)
    assert group.grow(placement=FlexiblePlacementStrategy([[SECOND]])) == (1,)
    assert [nodes.next(GroupResized).new_ranks for _ in range(2)] == [(0, 1), (0,)]


def test_a_rank_that_comes_back_to_a_node_as_that_is_drained_moves_once_it_is_there(forked_job, nodes):
    group = launch(forked_job, FIRST, SECOND, on_failure="restart", restart_on="any")
    as_one_starts(forked_job, nodes)
    os.kill(group.health()[1].pid, signal.SIGKILL)
    assert [nodes.next(WorkerReturned).node_rank for _ in range(2)] == [1, 0]


def test_a_rank_that_leaves_hears_of_less_time_and_is_ended_by_then(forked_job, nodes):
    group = launch(forked_job, FIRST, SECOND)
    stays = group[1].stay()
    nodes.drain(LONG_S)
    waits_for(forked_job, "what they have")
    nodes.drain(SHORT_S)
    assert nodes.next(RankDrained).forced
    with pytest.raises(WorkerDied, match="it is to be given back by"):
        stays.wait(DEADLINE_S)


def test_less_time_is_known_of_that_is_told_before_the_shrink_has_begun(forked_job, nodes):
    group = launch(forked_job, FIRST, SECOND)
    group[1].stay()
    with growing(forked_job, group):
        nodes.drain(LONG_S)
        nodes.drain(5 * SHORT_S)
    assert 1 in nodes.next(GroupResized).new_ranks
    assert nodes.next(GroupResized).new_ranks == (0, 2)
    assert nodes.next(RankDrained).forced


def test_less_time_ends_a_shrink_that_waits_for_ranks_with_collectives_to_follow(forked_job, nodes, caplog):
    group = launch(forked_job, FIRST, SECOND, worker_class=Collective)
    holds, until = group.hold(), time.time() + LONG_S
    nodes.drain_until(until)
    waits_for(forked_job, "on_resize() of its ranks")
    nodes.drain_until(until - 1e-6)  # hardly less, which is no other shrink
    nodes.drain(SHORT_S)
    wait_until(lambda: "ranks [1] of 'ranks' stay there: " in caplog.text)
    assert "nothing has changed, as no rank has begun on_resize()" in caplog.text
    group.release().wait(DEADLINE_S)
    assert holds.wait(DEADLINE_S) == [0, 1]
    assert group.total().wait(DEADLINE_S) == [(1.0, 0, 2), (1.0, 1, 2)]


def test_a_node_that_nobody_has_limited_gives_its_ranks_all_the_time_that_they_need(forked_job, nodes):
    left_s = launch(forked_job, FIRST, SECOND)[1].time_left()
    nodes.drain(None)
    assert left_s.wait(DEADLINE_S)[0] > FOREVER_S / 2


def test_a_rank_that_stays_and_does_not_come_to_follow_holds_up_none_that_leaves(forked_job, nodes):
    group = launch(forked_job, FIRST, SECOND, worker_class=Unhurried)
    held = group[1].hold()
    nodes.drain(None)
    assert nodes.next(RankDrained).forced is False
    assert held.wait(DEADLINE_S) == [1]
    group[0].follow().wait(DEADLINE_S)


class Clock:
    """An hour ahead, from when it is asked the second time."""

    def __init__(self):
        self.num_asked = 0

    def monotonic(self):
        self.num_asked += 1
        return time.monotonic() + (self.num_asked > 1) * 3600.0


def test_a_user_s_own_limit_is_not_cut_on_a_node_that_has_none(forked_job, nodes, monkeypatch):
    group, items = launch(forked_job, FIRST, SECOND), Channel.create("items")
    takes, clock = group[1].take_one("items"), Clock()
    with ThreadPoolExecutor(1) as pool:
        shrinking = pool.submit(group.shrink, ranks=[1], drain_s=7200)
        nodes.next(GroupResized)
        monkeypatch.setattr(deadline, "time", clock)
        nodes.drain(None)
        wait_until(lambda: clock.num_asked > 1)  # it is looked at how much time is left
        items.put("taken")
        assert takes.wait(DEADLINE_S) == ["taken"]
        assert shrinking.result(DEADLINE_S) == (1,)
    assert nodes.next(RankDrained).forced is False


def test_a_rank_that_was_given_more_time_than_its_node_has_is_ended_before_that(forked_job, nodes):
    group = launch(forked_job, FIRST, SECOND)
    group[1].stay()
    with ThreadPoolExecutor(1) as pool:
        with growing(forked_job, group):
            shrinking = pool.submit(group.shrink, ranks=[1], drain_s=7200)
            wait_until(lambda: len(group._shared._resizes) == 2)
            nodes.drain(5 * SHORT_S)
        assert shrinking.result(DEADLINE_S) == (1,)
    assert nodes.next(RankDrained).forced


def test_a_rank_that_was_given_more_time_than_its_node_has_is_told_of_less(forked_job, nodes):
    group = launch(forked_job, FIRST, SECOND)
    hears = group[1].hear_of_less(DEADLINE_S / 2)
    with ThreadPoolExecutor(1) as pool:
        shrinking = pool.submit(group.shrink, ranks=[1], drain_s=7200)
        waits_for(forked_job, "what they have")
        nodes.drain(DEADLINE_S / 2)
        assert shrinking.result(DEADLINE_S) == (1,)
    assert hears.wait(DEADLINE_S) == [1]


def test_all_leave_a_node_though_one_of_them_leaves_already_in_a_resize_that_goes_on(forked_job, nodes):
    group = launch(forked_job, FIRST, FIRST + 1, SECOND, SECOND + 1)
    with ThreadPoolExecutor(1) as pool:
        with growing(forked_job, group):
            shrinking = pool.submit(group.shrink, ranks=[2])
            wait_until(lambda: len(group._shared._resizes) == 2)
            nodes.drain(LONG_S)
            wait_until(lambda: len(group._shared._resizes) == 3)
        assert shrinking.result(DEADLINE_S) == (2,)
    assert [nodes.next(GroupResized).new_ranks for _ in range(3)] == [
        (0, 1, 2, 3, 4),
        (0, 1, 3, 4),
        (0, 1, 4),
    ]


def test_a_rank_that_may_move_hears_of_less_time_and_is_back_elsewhere(forked_job, nodes):
    options = {"on_failure": "restart", "restart_on": "any", "max_concurrency": 2}
    group = launch(forked_job, FIRST, SECOND, **options)
    group[1].stay()
    left_s = group[1].time_left()
    nodes.drain(LONG_S)
    assert left_s.wait(DEADLINE_S)[0] > LONG_S / 2
    nodes.drain(DEADLINE_S / 2)
    wait_until(lambda: group[1].time_left().wait(DEADLINE_S)[0] < DEADLINE_S / 2)
    nodes.drain(SHORT_S)
    returned = nodes.next(WorkerReturned)
    assert (returned.rank, returned.node_rank) == (1, 0)
