"""Groups whose ranks run collectives grow and shrink: all of them leave their process group, and meet in a new one."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from resized_workers import Collective, Follower, Fragile, Stubborn, Unhurried

from rlinf.scheduler import PackedPlacementStrategy
from rlinf_scheduler.errors import LaunchError, ResizeError, WorkerDied
from rlinf_scheduler.observe.why import why
from rlinf_scheduler.worker import resizable_group, successors, supervision
from waits import seen, wait_until

TWO = PackedPlacementStrategy(0, 1)


def launch(job, name, *args, kind=Collective, on_failure="restart_group", **options):
    return kind.create_group(*args).launch(job, TWO, name=name, on_failure=on_failure, **options)


def waits_for(job, what):
    """Return once a resize waits for that, in words."""
    seen(lambda: str(why(job.session, 60)), lambda text: what in text)


def totals(group):
    return group.total().wait(60)


@pytest.mark.parametrize("on_failure", ["fail", "restart_group"])
def test_two_ranks_become_three_and_two_again_and_meet_each_time(forked_job, on_failure):
    group = launch(forked_job, "gloo", on_failure=on_failure)
    assert totals(group) == [(1.0, 0, 2), (1.0, 1, 2)]
    assert group.grow(1, timeout_s=60) == (2,)
    assert totals(group) == [(3.0, 0, 3), (3.0, 1, 3), (3.0, 2, 3)]
    assert group.shrink(ranks=[0]) == (0,)
    assert totals(group) == [(3.0, 0, 2), (3.0, 1, 2)]
    assert group.grow(1, reuse=True, timeout_s=60) == (0,)  # it is the first of them, where they meet
    assert totals(group) == [(3.0, 0, 3), (3.0, 1, 3), (3.0, 2, 3)]
    ways = [((0, 1), (0, 1, 2)), ((0, 1, 2), (1, 2)), ((1, 2), (0, 1, 2))]
    assert group.followed().wait(60) == [[], ways, ways[1:]]


def test_a_call_that_goes_on_ends_before_its_rank_follows(forked_job):
    group = launch(forked_job, "ordered", kind=Follower, on_failure="fail")
    held = group[1].hold()
    released = group[1].release()
    assert group.grow(1) == (2,)
    released.wait(60)
    assert held.wait(60) == [1]
    assert group.told().wait(60) == [((0, 1), (0, 1, 2), (0, 1, 2))] * 2 + [None]


def test_ranks_that_cannot_follow_are_not_resized(forked_job):
    group = launch(forked_job, "stubborn", kind=Stubborn, on_failure="fail")
    for refused in (lambda: group.grow(1), lambda: group.shrink(1)):
        with pytest.raises(
            ResizeError, match=r"run collectives, and their class has no `on_resize\(old, new\)`"
        ):
            refused()
    assert group.members.epoch == 0
    assert totals(group) == [(1.0, 0, 2), (1.0, 1, 2)]


@pytest.mark.parametrize(("timeout_s", "args"), [(60, (2,)), (15, (1 << 30, "1")), (60, (1 << 30, "raises"))])
def test_after_a_growth_that_failed_all_come_back_as_they_were(forked_job, timeout_s, args):
    group = launch(forked_job, "failed", *args)
    before = group.pid().wait(60)
    with pytest.raises((ResizeError, LaunchError), match="they have been ended"):
        group.grow(1, timeout_s=timeout_s)
    assert totals(group) == [(1.0, 0, 2), (1.0, 1, 2)]
    assert not set(group.pid().wait(60)) & set(before)
    wait_until(lambda: forked_job.living == 2)


def test_after_a_shrinkage_that_failed_those_that_stay_come_back(forked_job, monkeypatch):
    monkeypatch.setattr(resizable_group, "FOLLOW_S", 3.0)
    group = launch(forked_job, "stuck", 1 << 30, "0")
    with pytest.raises(ResizeError, match=r"in on_resize\(\) still: stuck:0"):
        group.shrink(1, drain_s=3)
    assert totals(group) == [(0.0, 0, 1)]
    wait_until(lambda: forked_job.living == 1)


def test_those_that_stay_have_time_to_meet_however_little_those_have_that_leave(forked_job):
    group = launch(forked_job, "at-once")
    (before, _), held = group.pid().wait(60), group[1].hold()
    assert group.shrink(1, drain_s=0.2) == (1,)
    with pytest.raises(WorkerDied, match=r"shrink\(1\) ended it after 0.2 s"):
        held.wait(60)
    assert totals(group) == [(0.0, 0, 1)]
    assert group.pid().wait(60) == [before]


@pytest.mark.parametrize("on_failure", ["fail", "restart_group"])
def test_a_rank_that_leaves_has_its_time_however_long_those_that_stay_take_to_follow(forked_job, on_failure):
    group = launch(forked_job, "unhurried", kind=Unhurried, on_failure=on_failure)
    held = group[1].hold()
    with ThreadPoolExecutor(1) as pool:
        shrinking = pool.submit(group.shrink, 1, drain_s=3)
        waits_for(forked_job, "on_resize() of its ranks")
        (resize,) = group._shared._resizes
        wait_until(lambda: not resize.until.left_s)
        group[0].follow()
        assert shrinking.result(60) == (1,)
    assert held.wait(60) == [1]


@pytest.mark.parametrize("on_failure", ["fail", "restart_group"])
def test_ranks_leave_at_once_and_those_that_stay_follow(forked_job, on_failure):
    group = launch(forked_job, "hurried", kind=Follower, on_failure=on_failure)
    before = group[0].who().wait(60)
    assert group.shrink(1, drain_s=0) == (1,)
    assert group.told().wait(60) == [((0, 1), (0,), (0,))]
    assert group.who().wait(60) == before


@pytest.mark.parametrize("resize", [lambda g: g.grow(1, timeout_s=12), lambda g: g.shrink(1, drain_s=2)])
def test_ranks_that_are_busy_are_not_resized_and_go_on(forked_job, monkeypatch, resize):
    monkeypatch.setattr(resizable_group, "FOLLOW_S", 2.0)
    group = launch(forked_job, "busy", on_failure="fail")
    held = group.hold()
    with pytest.raises(ResizeError, match="nothing has changed, as no rank has begun on_resize") as raised:
        resize(group)
    assert "ended" not in str(raised.value)
    group.release().wait(60)
    assert held.wait(60) == [0, 1]
    assert (group.members.ranks, group.members.epoch) == ((0, 1), 0)
    assert totals(group) == [(1.0, 0, 2), (1.0, 1, 2)]
    assert group.followed().wait(60) == [[], []]
    wait_until(lambda: forked_job.living == 2)


@pytest.mark.parametrize("resize", ["grow", "shrink"])
def test_what_on_resize_raises_is_told(forked_job, resize):
    group = launch(forked_job, "raising", 1 << 30, "raises")
    with pytest.raises(
        ResizeError, match=r"they have been ended: .* rank \d of 'raising' raised in on_resize\(\)"
    ) as raised:
        getattr(group, resize)(1)
    said = str(raised.value)
    assert "ValueError: it does not follow" in said
    # The others may not have come to that yet.
    still = re.search(r"on_resize\(\) still: ([^;]*);", said)
    first = re.search(r"rank (\d) of 'raising' raised", said)[1]
    assert still is None or f"raising:{first}" not in still[1]


def test_a_rank_that_leaves_knows_it_as_it_follows(forked_job):
    group = launch(forked_job, "leaving", kind=Follower, on_failure="fail")
    leaves = group.leaves()
    assert group.shrink(1) == (1,)
    assert leaves.wait(60) == [False, True]


def test_a_rank_that_dies_as_it_joins_ends_the_growth_and_the_others_come_back(forked_job):
    group = launch(forked_job, "joins", 1 << 30, "", 2)
    with pytest.raises(ResizeError, match="rank 2 died"):
        group.grow(1, timeout_s=60)
    assert totals(group) == [(1.0, 0, 2), (1.0, 1, 2)]


def test_a_group_that_comes_back_while_others_join_grows_all_the_same(forked_job):
    group = launch(
        forked_job, "anew", kind=Follower
    )  # without a collective's library, which nine processes would load
    pid = group.health()[0].pid
    killed = []

    def kill():
        if not killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    forked_job.processes.on_start = kill
    assert group.grow(1, timeout_s=60) == (2,)
    assert group.known().wait(60) == [((0, 1, 2), group.members.epoch)] * 3
    assert [each.num_restarts for each in group.health()] == [1, 1, 0]


@pytest.mark.parametrize("resize", ["grow", "shrink"])
def test_a_group_that_comes_back_as_it_follows_is_resized_all_the_same(forked_job, monkeypatch, resize):
    """Also where it shows late that a rank is gone."""
    monkeypatch.setattr(supervision, "UNSAID_GRACE_S", 3.0)
    monkeypatch.setattr(successors, "ENDED_WITHIN_S", 0.0)
    forked_job.processes.watches = False
    group = launch(forked_job, "fragile", kind=Fragile)
    (changed,) = getattr(group, resize)(1)
    assert (changed in group.ranks) == (resize == "grow")
    assert [who[0] for who in group.who().wait(60)] == list(group.ranks)


def test_a_group_is_resized_once_it_is_back(forked_job):
    group = launch(forked_job, "back")
    with pytest.raises(WorkerDied):
        group[0].die().wait(60)
    assert group.grow(1, timeout_s=60) == (2,)
    assert totals(group) == [(3.0, 0, 3), (3.0, 1, 3), (3.0, 2, 3)]
