"""Calls of a group that grows and shrinks go to the members at the call, whoever calls; none fails for that."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace
from resized_workers import Caller, Member

from detached_forked_job import DetachedForkedJob
from effort import tries
from rlinf.scheduler import NodePlacementStrategy, PackedPlacementStrategy
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import PlacementError, WorkerError
from rlinf_scheduler.host import protocol
from rlinf_scheduler.worker.order import Shrinkage
from rlinf_scheduler.worker.remote_group import SentGroup
from rlinf_scheduler.worker.resizable_group import ResizableGroup
from rlinf_scheduler.worker.supervision import groups_of
from waits import wait_until

DEADLINE_S = 60.0
TWO = PackedPlacementStrategy(0, 1)


def launch(job, name, **options):
    return Member.create_group().launch(job, TWO, name=name, **options)


class Callers:
    """Threads that call until the block ends; each call ends well."""

    def __init__(self, *calls):
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(len(calls))
        self._begun = [threading.Event() for _ in calls]
        self._num_ended = [0] * len(calls)
        self._running = [
            self._pool.submit(self._run, number, call, begun)
            for number, (call, begun) in enumerate(zip(calls, self._begun, strict=True))
        ]
        self.results = []

    def _run(self, number, call, begun):
        results = []
        while not self._over.is_set():
            results.append(call())
            self._num_ended[number] += 1
            begun.set()
        return results

    def call_now(self):
        """Return when each has made a call that began after this."""
        before = [*self._num_ended]
        wait_until(lambda: all(now > then + 1 for now, then in zip(self._num_ended, before, strict=True)))

    def __enter__(self):
        for begun in self._begun:
            assert begun.wait(DEADLINE_S)
        return self

    def __exit__(self, *_):
        self._over.set()
        self.results = [each.result(DEADLINE_S) for each in self._running]
        self._pool.shutdown()


def numbers(answers):
    return tuple(who[0] for who in answers)


def test_calls_and_views_go_on_while_their_group_is_resized(forked_job):
    group = launch(forked_job, "called")
    sets = {(0, 1)}

    def whole():
        return numbers(group.who().wait(DEADLINE_S))

    def scattered():
        view = group[:2]
        return view.scatter("ab").echo("c").wait(DEADLINE_S)

    def streamed():
        return list(group[0].count(3))

    with Callers(whole, whole, scattered, streamed) as callers:
        for _ in range(tries(3)):
            group.grow(1)
            sets.add(group.ranks)
            callers.call_now()
            group.shrink(1)
    first, second, scattered_to, streams = callers.results
    assert {*first, *second} <= sets
    assert len({*first, *second}) > 1
    assert set(map(tuple, scattered_to)) == {((0, "a", "c"), (1, "b", "c"))}
    assert all(each == [[0], [1], [2]] for each in streams)


def test_a_group_that_was_sent_goes_to_the_members_that_there_are(forked_job):
    group = launch(forked_job, "sent")
    callers = Caller.create_group().launch(
        forked_job, NodePlacementStrategy([0, 0]), name="callers", max_concurrency=2
    )
    calling = callers.call(group)
    group.grow(2)
    group.shrink(ranks=[1])
    group.shrink(ranks=[3])
    assert group.ranks == (0, 2)
    assert numbers(group.who().wait(DEADLINE_S)) == (0, 2)
    callers.end().wait(DEADLINE_S)
    for seen, number in calling.wait(DEADLINE_S):
        assert set(seen) <= {(0, 1), (0, 1, 2, 3), (0, 2, 3), (0, 2)}
        assert number >= len(seen)
    fresh = Caller.create_group().launch(forked_job, NodePlacementStrategy([0]), name="fresh")
    problem, ranks = fresh.left(group, 0).wait(DEADLINE_S)[0]
    assert (problem, ranks) == ("", (0, 2))
    problem, ranks = fresh.left(group, 3).wait(DEADLINE_S)[0]
    assert "has ranks 0, 2, not 3" in problem


def test_a_group_that_is_sent_as_a_rank_leaves_has_the_members_that_stay(forked_job, monkeypatch):
    group, directory = launch(forked_job, "looked-up"), forked_job.session.directory
    listed = directory.list

    def shrink_first(prefix):
        monkeypatch.setattr(directory, "list", listed)
        group.shrink(1)
        return listed(prefix)

    monkeypatch.setattr(directory, "list", shrink_first)
    assert SentGroup(forked_job.session, group.name).members.ranks == (0,)


def test_what_the_io_thread_hears_of_a_sent_group_is_not_undone_by_a_caller_that_heard_less(
    forked_job, monkeypatch
):
    group, messenger = launch(forked_job, "heard"), forked_job.session.messenger
    sent, become, newest = SentGroup(forked_job.session, group.name), SentGroup._become, []

    def hear_more(self, members):
        monkeypatch.setattr(SentGroup, "_become", become)
        newest.append(replace(members, epoch=members.epoch + 1))
        noted = Promise()
        messenger.submit(lambda: noted.set_from(lambda: sent._note(newest[0])))
        if not messenger.on_io_thread():
            noted.wait(DEADLINE_S)
        become(self, members)

    monkeypatch.setattr(SentGroup, "_become", hear_more)
    group.grow(1)
    wait_until(lambda: sent.members in newest)


def test_a_view_keeps_its_ranks_and_says_that_one_has_left(forked_job):
    group = launch(forked_job, "viewed")
    view, scattered = group.execute_on(1, 0), group.scatter(["a", "b"])
    group.grow(1)
    assert numbers(view.who().wait(DEADLINE_S)) == (1, 0)
    assert scattered.echo("c").wait(DEADLINE_S) == [(0, "a", "c"), (1, "b", "c")]
    group.shrink(ranks=[1])
    for call in (view.who, lambda: scattered.echo("c")):
        with pytest.raises(PlacementError, match="has no rank 1: it left at"):
            call()
    assert group[-1].ranks == (2,)


@pytest.fixture
def shrinks_first(monkeypatch):
    """Has a group lose its last rank once its next call was made, before that begins."""

    def arm(group):
        begin = ResizableGroup.begin

        def shrink_first(*args):
            monkeypatch.setattr(ResizableGroup, "begin", begin)
            group.shrink(1)
            begin(*args)

        monkeypatch.setattr(ResizableGroup, "begin", shrink_first)

    return arm


@pytest.mark.parametrize("on_failure", ["fail", "restart"])
def test_a_call_that_begins_as_a_rank_leaves_is_of_those_that_stay(forked_job, shrinks_first, on_failure):
    group = launch(forked_job, f"asked-{on_failure}", on_failure=on_failure)
    shrinks_first(group)
    assert numbers(group.who().wait(DEADLINE_S)) == (0,)


def test_the_values_of_a_rank_that_left_before_it_began_are_no_empty_stream(forked_job, shrinks_first):
    group = launch(forked_job, "one-of-them")
    shrinks_first(group)
    with pytest.raises(ValueError, match=r"runs on ranks \[0\], not on rank 1"):
        list(group.count(3).rank(1))


@pytest.mark.parametrize("of_members", [True, False])
@pytest.mark.parametrize("rows", [list, lambda stream: [[value] for _, value in stream.as_ready()]])
def test_a_stream_that_begins_as_a_rank_leaves_is_of_those_that_stay(
    forked_job, shrinks_first, of_members, rows
):
    group = launch(forked_job, "streamed")
    view = group if of_members else group[1]
    shrinks_first(group)
    if of_members:
        assert rows(view.count(3)) == [[0], [1], [2]]
    else:
        with pytest.raises(PlacementError, match="has no rank 1: it left at"):
            rows(view.count(3))


def test_a_call_that_reaches_a_rank_only_when_that_has_left_is_of_those_that_stay(forked_job):
    group = launch(forked_job, "reached")
    callers = Caller.create_group().launch(forked_job, NodePlacementStrategy([0, 0]), name="late")
    callers.keep(group).wait(DEADLINE_S)
    calling = callers.scatter([None, 1]).call_before_it_hears()
    callers.begins().wait(DEADLINE_S)
    group.shrink(1)
    callers.end().wait(DEADLINE_S)
    whole, view = calling.wait(DEADLINE_S)
    assert whole == [0]
    assert "has no rank 1: it has left" in view


@pytest.fixture
def ends(forked_job):
    """Has the last rank of a group end in order, as where it moves or leaves, and wait once it begins nothing more."""
    told = Promise()
    forked_job.session.messenger.serve("test.ends", lambda request: told.set_result(request.head), int)

    def begin(group, end):
        (endpoint,) = group[-1].end_late().wait(DEADLINE_S)
        end(endpoint)
        assert told.wait(DEADLINE_S)
        return endpoint

    return begin


def drain(job):
    drained = protocol.Drain("its node is given back", DEADLINE_S)
    return lambda endpoint: job.session.messenger.notify(endpoint, protocol.DRAIN, drained)


@pytest.mark.parametrize("on_failure", ["restart", "restart_group"])
def test_a_call_that_comes_to_a_rank_as_it_moves_is_made_where_that_goes(forked_job, ends, on_failure):
    group = launch(forked_job, f"moved-{on_failure}", on_failure=on_failure)
    endpoint = ends(group, drain(forked_job))
    last, values = group[1].who(), group[1].count(2)
    everywhere = group.who() if on_failure == "restart" else None
    forked_job.session.messenger.notify(endpoint, "test.go", None)
    assert numbers(last.wait(DEADLINE_S)) == (1,)
    assert list(values) == [[0], [1]]
    assert everywhere is None or numbers(everywhere.wait(DEADLINE_S)) == (0, 1)


def test_a_call_of_another_process_that_comes_to_a_rank_as_it_moves_is_made_where_that_goes(forked_job, ends):
    group = launch(forked_job, "moved", on_failure="restart")
    caller = Caller.create_group().launch(forked_job, NodePlacementStrategy([0]), name="caller")
    caller.keep(group).wait(DEADLINE_S)
    endpoint = ends(group, drain(forked_job))
    assert caller.call_and_let_go(endpoint, None).wait(DEADLINE_S) == [([0, 1], [[0, 0], [1, 1]])]


@pytest.mark.parametrize("of_members", [True, False])
def test_a_caller_that_has_not_heard_that_a_rank_has_left_asks(forked_job, of_members):
    group = launch(forked_job, "left-unheard")
    callers = Caller.create_group().launch(forked_job, NodePlacementStrategy([0]), name="deaf")
    callers.keep(group if of_members else group[1]).wait(DEADLINE_S)
    callers.call_kept().wait(DEADLINE_S)
    callers.hear_nothing().wait(DEADLINE_S)
    group.shrink(1)
    if of_members:
        assert callers.call_kept().wait(DEADLINE_S) == [group.who().wait(DEADLINE_S)]
    else:
        with pytest.raises(WorkerError, match="has no rank 1: it has left"):
            callers.call_kept().wait(DEADLINE_S)


def test_a_caller_that_has_not_heard_that_a_rank_leaves_asks(forked_job, ends):
    group = launch(forked_job, "leaves-unheard")
    caller = Caller.create_group().launch(forked_job, NodePlacementStrategy([0]), name="deaf")
    caller.keep(group).wait(DEADLINE_S)
    caller.hear_nothing().wait(DEADLINE_S)
    with ThreadPoolExecutor(1) as pool:
        shrinking = []
        endpoint = ends(group, lambda _: shrinking.append(pool.submit(group.shrink, 1)))
        assert caller.call_and_let_go(endpoint, None).wait(DEADLINE_S) == [([0], [[0], [1]])]
        assert shrinking[0].result(DEADLINE_S) == (1,)
    with pytest.raises(WorkerError, match="has rank 0 only, not 1"):
        caller.call_and_let_go(endpoint, 1).wait(DEADLINE_S)


def test_a_driver_that_hears_that_a_rank_left_after_its_goodbye_waits_for_that(monkeypatch):
    """As of one whose I/O thread had stood still: the rank's goodbye is looked at before the home's news."""
    kept = DetachedForkedJob()
    try:
        group, told, heard = launch(kept.attach(), "late-news"), Promise(), []
        kept.session.messenger.serve("test.ends", lambda request: told.set_result(request.head), int)
        (endpoint,) = group[1].end_late().wait(DEADLINE_S)
        (of_home,), shared = groups_of(kept.session), group._shared
        monkeypatch.setattr(shared, "on_update", heard.append)

        def hear(_):
            monkeypatch.undo()
            shared.session.messenger.submit(lambda: [shared.on_update(news) for news in heard])

        shared.session.messenger.on_peer_lost(hear)
        with ThreadPoolExecutor(1) as pool:
            shrinking = pool.submit(of_home.shrink, Shrinkage(1).checked())
            assert told.wait(DEADLINE_S)
            results = group.who(), group.count(2)
            shared.session.messenger.notify(endpoint, "test.go", None)
            assert numbers(results[0].wait(DEADLINE_S)) == (0,)
            assert list(results[1]) == [[0], [1]]
            assert shrinking.result(DEADLINE_S) == (1,)
    finally:
        kept.close()
