"""Groups that grow and shrink while what can go wrong does: deaths, interruptions, numbers and devices used again."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from resized_workers import Caller, Follower, Member, Reluctant, Stubborn

from alarms import alarms
from detached_forked_job import DetachedForkedJob
from rlinf.scheduler import FlexiblePlacementStrategy, NodePlacementStrategy, PackedPlacementStrategy
from rlinf_scheduler.errors import CommError, ConfigError, PlacementError, ResizeError, WorkerDied
from rlinf_scheduler.worker import following, supervision
from rlinf_scheduler.worker.moves import Moves
from rlinf_scheduler.worker.resizable_group import ResizableGroup
from waits import wait_until

__all__ = ["alarms"]
DEADLINE_S = 60.0
TWO = PackedPlacementStrategy(0, 1)


def launch(job, name, worker_class=Member, *, placement=TWO, **options):
    return worker_class.create_group().launch(job, placement, name=name, **options)


def ranks_of(answers):
    return [who[0] for who in answers]


class Blocking:
    """An argument that is encoded only when `goes_on` is set."""

    def __init__(self):
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def __reduce__(self):
        self.begun.set()
        assert self.goes_on.wait(DEADLINE_S)
        return int, (5,)


@pytest.fixture
def taken(forked_job, monkeypatch):
    """The devices that are held for ranks, one entry for each time that they were taken."""
    held = []

    def reserve(group, devices, wait_s, given_up=None):
        mine = {(forked_job.topology.nodes[rank].node_id, name) for rank in devices for name in devices[rank]}
        held.append(mine)
        return lambda given=None: mine.difference_update(set(mine) if given is None else given)

    monkeypatch.setattr(forked_job.processes, "reserve", reserve)
    return held


def test_a_view_of_a_rank_that_has_left_says_so_whatever_it_is_asked(forked_job):
    group = launch(forked_job, "asked")
    view, argument = group[1], Blocking()
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(lambda: view.scatter([1]).echo(argument))
        assert argument.begun.wait(DEADLINE_S)
        group.shrink(1)
        argument.goes_on.set()
        with pytest.raises(PlacementError, match="has no rank 1: it left at"):
            calling.result(DEADLINE_S)
    for ask in (view.health, view.stack):
        with pytest.raises(PlacementError, match="has no rank 1: it left at"):
            ask()


@pytest.mark.parametrize("ranks", [1, "1", [True], [None]])
def test_what_is_no_list_of_ranks_is_refused(forked_job, ranks):
    group = launch(forked_job, "refused")
    with pytest.raises(ConfigError, match="these are numbers of ranks"):
        group.shrink(ranks=ranks)


def test_far_beyond_the_fleet_is_refused_without_counting_so_far(forked_job):
    group = launch(forked_job, "far")
    for reuse in (False, True):
        with pytest.raises(PlacementError, match=r"6 of 1,?000,?000,?000,?000 further processes"):
            group.grow(10**12, reuse=reuse)
    bare = launch(forked_job, "bare", placement=NodePlacementStrategy([0]))
    for count in (10**6, 10**7):
        with pytest.raises(PlacementError, match=f"19995 of {count} further processes would have a place"):
            bare.grow(count)
    assert bare.grow(1) == (1,)


def test_ranks_that_run_collectives_are_asked_however_little_time_there_is(forked_job):
    group = launch(forked_job, "hasty", Stubborn)
    with pytest.raises(ResizeError, match="its ranks run collectives"):
        group.shrink(1, drain_s=0)
    assert group.ranks == (0, 1)


def test_ranks_that_joined_keep_their_devices_when_not_all_have_followed(forked_job, taken):
    group = launch(forked_job, "followed", Reluctant)
    with pytest.raises(ResizeError, match=r"its members are ranks 0 to 2, and: rank \d of 'followed' raised"):
        group.grow(1)
    assert taken[-1] == {("second", "4")}
    with pytest.raises(ResizeError, match="it does not follow"):
        group.shrink(1)
    assert not taken[-1]


def test_a_device_that_ranks_share_is_held_until_the_last_of_them_has_left(forked_job, taken):
    group = launch(forked_job, "shared")
    group.grow(placement=FlexiblePlacementStrategy([[4], [4]]))
    group.shrink(1)
    assert taken[-1] == {("second", "4")}
    group.shrink(1)
    assert not taken[-1]
    assert not forked_job.session.service(Moves)._places


def test_what_a_rank_had_is_given_back_before_another_may_have_its_number(forked_job, monkeypatch):
    group, leave, taken_still = launch(forked_job, "numbered"), Moves.leave, []
    group.grow(1)

    def look(moves, name, number):
        taken_still.append(number in group._shared._resizing.leaving)
        leave(moves, name, number)

    monkeypatch.setattr(Moves, "leave", look)
    assert group.shrink(1) == (2,)
    assert taken_still == [True]


def test_a_rank_that_is_dead_leaves_and_others_follow(forked_job):
    placement = PackedPlacementStrategy(0, 2)
    group = launch(forked_job, "dead", Follower, placement=placement, on_failure="ignore")
    with pytest.raises(WorkerDied):
        group[1].die().wait(DEADLINE_S)
    assert group.grow(1) == (3,)
    assert group.shrink(ranks=[1]) == (1,)
    assert group[:2].told().wait(DEADLINE_S) == [((0, 1, 2, 3), (0, 2, 3), (0, 2, 3))] * 2


def test_a_rank_that_is_killed_as_it_is_asked_holds_up_no_resize(forked_job, monkeypatch):
    group, ask = launch(forked_job, "killed", on_failure="ignore"), ResizableGroup._ask_prepared
    pid = group.health()[1].pid
    os.kill(pid, signal.SIGSTOP)

    def kill(*args):
        os.kill(pid, signal.SIGKILL)
        return ask(*args)

    monkeypatch.setattr(ResizableGroup, "_ask_prepared", kill)
    monkeypatch.setattr(following, "PREPARED_S", 10 * DEADLINE_S)
    assert group.grow(1) == (2,)


def test_ranks_none_of_which_answers_in_time_follow_all_the_same(forked_job, monkeypatch):
    """As of a machine that stood still."""
    monkeypatch.setattr(following, "PREPARED_S", 0.0)
    group = launch(forked_job, "late", Follower)
    assert group.shrink(1) == (1,)
    assert group.told().wait(DEADLINE_S) == [((0, 1), (0,), (0,))]
    assert group.grow(1) == (2,)
    assert group[0].told().wait(DEADLINE_S) == [((0,), (0, 2), (0, 2))]


def test_all_come_back_together_although_some_were_to_leave(forked_job, monkeypatch):
    placement = PackedPlacementStrategy(0, 2)
    group = launch(forked_job, "together", Follower, placement=placement, on_failure="restart_group")
    prepared, pid = ResizableGroup._prepared, group.health()[0].pid

    def die_first(*args):
        monkeypatch.setattr(ResizableGroup, "_prepared", prepared)
        ways = prepared(*args)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: group.health()[2].state == "restarting")
        return ways

    monkeypatch.setattr(ResizableGroup, "_prepared", die_first)
    assert group.shrink(1) == (2,)
    assert ranks_of(group.who().wait(DEADLINE_S)) == [0, 1]
    wait_until(lambda: forked_job.living == 2)


def test_what_is_told_of_a_rank_is_of_the_process_that_has_its_number_now(forked_job):
    group = launch(forked_job, "again")
    stays = group[1].stay()
    group.shrink(1, drain_s=0.2)
    with pytest.raises(WorkerDied, match="into stay"):
        stays.wait(DEADLINE_S)
    assert group.grow(1, reuse=True) == (1,)
    with pytest.raises(WorkerDied) as died:
        group[1].die().wait(DEADLINE_S)
    assert "stay" not in str(died.value)


def test_who_was_sent_a_group_finds_the_process_that_has_a_number_now(forked_job):
    group = launch(forked_job, "sent", placement=NodePlacementStrategy([0, 0]))
    caller = Caller.create_group().launch(forked_job, NodePlacementStrategy([0]), name="caller")
    caller.keep(group).wait(DEADLINE_S)
    group.shrink(1)
    group.grow(1, reuse=True)
    assert caller.call_kept().wait(DEADLINE_S) == [group.who().wait(DEADLINE_S)]


def test_a_rank_that_cannot_be_ended_is_dead_for_all_and_its_number_is_free(forked_job, monkeypatch):
    group = launch(forked_job, "beyond")
    stays, process, pid = group[1].stay(), forked_job.processes.started[1], group.health()[1].pid
    monkeypatch.setattr(process, "kill", lambda: None)
    monkeypatch.setattr(supervision, "kill_process", lambda *_: None)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert group.shrink(1, drain_s=0.2) == (1,)
        with pytest.raises(WorkerDied, match="it left at"):
            stays.wait(DEADLINE_S)
        assert process._process.is_alive()
        assert group.grow(1, reuse=True) == (1,)
        assert ranks_of(group.who().wait(DEADLINE_S)) == [0, 1]
    finally:
        os.kill(pid, signal.SIGKILL)


def test_wherever_a_shrink_is_interrupted_it_has_happened_or_not(forked_job, alarms):
    bare = NodePlacementStrategy([0] * 6)
    group = launch(forked_job, "interrupted", placement=bare)
    num_raised = 0
    for max_delay_s in (0.002, 0.02, 0.2):
        made = alarms(seed=3, max_delay_s=max_delay_s)
        made.interrupt(lambda: group.shrink(1))
        num_raised += made.num_raised
    assert group.shrink(1)  # after all that were interrupted
    assert ranks_of(group.who().wait(DEADLINE_S)) == list(group.ranks)
    wait_until(lambda: forked_job.living == group.world_size)
    assert 2 <= group.world_size <= 5
    assert num_raised


def test_wherever_a_resize_by_wire_is_interrupted_it_has_happened_or_not(alarms):
    kept = DetachedForkedJob()
    try:
        driver = kept.attach()
        group = launch(driver, "by wire", placement=NodePlacementStrategy([0]))
        num_raised = 0
        for max_delay_s in (0.002, 0.1, 0.6):
            made = alarms(seed=5, max_delay_s=max_delay_s)
            made.interrupt(lambda: group.grow(1))
            made.interrupt(lambda: group.world_size > 1 and group.shrink(1))
            num_raised += made.num_raised
        (number,) = group.grow(1)  # after all that were interrupted
        assert number in group.ranks
        assert ranks_of(group.who().wait(DEADLINE_S)) == list(group.ranks)
        wait_until(lambda: kept.living == group.world_size)
        assert num_raised
    finally:
        kept.close()


def test_a_resize_whose_process_does_not_answer_says_so_and_changes_nothing(forked_job, monkeypatch):
    group, goes_on = launch(forked_job, "unanswered"), threading.Event()
    monkeypatch.setattr(following, "ANSWER_TIMEOUT_S", 0.2)
    whole = ResizableGroup._whole

    def hold_first(*args):
        forked_job.session.messenger.submit(lambda: goes_on.wait(DEADLINE_S))
        try:
            return whole(*args)
        finally:
            goes_on.set()

    monkeypatch.setattr(ResizableGroup, "_whole", hold_first)
    with pytest.raises(
        CommError, match="a resize of 'unanswered' ends in this process: its I/O thread has not"
    ):
        group.shrink(1)
    assert group.ranks == (0, 1)
