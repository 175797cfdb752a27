"""Groups that grow and shrink: real processes, without Ray."""

import os
import queue
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from ray_workers import NeverReady
from resized_workers import Eager, Member

from alarms import alarms
from rlinf.scheduler import (
    Channel,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
)
from rlinf_scheduler.errors import ConfigError, LaunchError, PlacementError, ResizeError, WorkerDied
from rlinf_scheduler.events import GroupLaunched, GroupResized, RankDrained, WorkerLost
from rlinf_scheduler.observe.why import why
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.worker import supervision
from rlinf_scheduler.worker.group_calls import FailFast
from rlinf_scheduler.worker.supervision import groups_of
from waits import seen, wait_until

__all__ = ["alarms"]
TWO = PackedPlacementStrategy(0, 1)


class Heard:
    """What is told of a group's resizes and losses, in order."""

    def __init__(self, job, group):
        self._events = queue.SimpleQueue()
        kinds = (GroupResized, RankDrained, WorkerLost)
        job.session.bus.subscribe(
            lambda event: isinstance(event, kinds) and event.group == group and self._events.put(event)
        )

    def next(self):
        return self._events.get(timeout=60)


def launch(job, name, *args, placement=TWO, **options):
    return Member.create_group(*args).launch(job, placement, name=name, **options)


def ranks_of(answers):
    return [who[0] for who in answers]


def test_a_group_grows_and_shrinks_and_numbers_are_not_used_twice(forked_job):
    heard = Heard(forked_job, "resized")
    group = launch(forked_job, "resized", 7)
    assert group.grow(2) == (2, 3)
    assert [who[::2] for who in group.who().wait(60)] == [(0, 7), (1, 7), (2, 7), (3, 7)]
    assert (group.world_size, group.ranks, group.members.epoch) == (4, (0, 1, 2, 3), 1)
    assert group.known().wait(60) == [((0, 1, 2, 3), 1)] * 4
    assert [place.local_hardware_ranks for place in group.placements] == [(0,), (1,), (0,), (1,)]
    assert [place.node_rank for place in group.placements] == [0, 0, 1, 1]
    assert [each["RANK"] for each in group.environment().wait(60)] == ["0", "1", "2", "3"]
    assert group.shrink(ranks=[1]) == (1,)
    assert ranks_of(group.who().wait(60)) == [0, 2, 3]
    assert group.known().wait(60) == [((0, 2, 3), 2)] * 3
    assert group.shrink(1) == (3,)
    assert group.grow(1) == (4,)
    assert group.grow(1, reuse=True) == (1,)
    assert ranks_of(group.who().wait(60)) == [0, 1, 2, 4]
    assert ranks_of(group[1].who().wait(60)) == [1]
    assert ranks_of(group[-1].who().wait(60)) == [4]
    assert ranks_of(group[1:3].who().wait(60)) == [1, 2]
    assert group[4].environment().wait(60)[0]["RANK"] == "3"
    with pytest.raises(PlacementError, match="has ranks 0, 1, 2, 4, not 3"):
        group.execute_on(3)
    told = [heard.next() for _ in range(7)]
    assert [type(each) for each in told] == [
        GroupResized,
        GroupResized,
        RankDrained,
        GroupResized,
        RankDrained,
        GroupResized,
        GroupResized,
    ]
    assert (told[1].old_ranks, told[1].new_ranks, told[1].why) == (
        (0, 1, 2, 3),
        (0, 2, 3),
        "shrink(ranks=[1])",
    )
    assert (told[2].rank, told[2].forced) == (1, False)
    group.shutdown()
    wait_until(lambda: forked_job.living == 0)


def test_a_rank_that_leaves_finishes_what_it_has(forked_job):
    group = launch(forked_job, "finishes")
    held, queued = group[1].hold(), group[1].who()
    assert group.shrink(1) == (1,)
    assert (held.wait(60), ranks_of(queued.wait(60))) == ([1], [1])


def test_a_rank_that_does_not_finish_is_ended_by_force_and_its_call_says_so(forked_job):
    heard = Heard(forked_job, "late")
    group = launch(forked_job, "late")
    stays, view = group[1].stay(), group.execute_on(1)
    assert group.shrink(1, drain_s=0.5) == (1,)
    with pytest.raises(
        WorkerDied, match=r"rank 1 of 'late' died during stay\(\): it left at .* \(shrink\(1\)\); "
    ):
        stays.wait(60)
    assert isinstance(heard.next(), GroupResized)
    drained = heard.next()
    assert (drained.rank, drained.forced) == (1, True)
    with pytest.raises(PlacementError, match=r"has no rank 1: it left at .* \(shrink\(1\)\)"):
        view.who()
    assert ranks_of(group.who().wait(60)) == [0]


def test_a_call_of_a_rank_that_was_ended_by_force_says_so_though_nobody_tells_of_its_end(
    forked_job, monkeypatch
):
    monkeypatch.setattr(supervision, "STOP_GRACE_S", 0.0)
    forked_job.processes.watches = False
    group = launch(forked_job, "untold")
    stays = group[1].stay()
    assert group.shrink(1, drain_s=0.2) == (1,)
    told = r"died during stay\(\): it left at .* \(shrink\(1\)\); shrink\(1\) ended it after 0\.2 s"
    with pytest.raises(WorkerDied, match=told):
        stays.wait(60)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_killed_or_stopped_while_it_leaves_has_left(forked_job, how):
    heard = Heard(forked_job, "killed")
    group = launch(forked_job, "killed", on_failure="restart")
    stays, pid = group[1].stay(), group.health()[1].pid
    forked_job.session.bus.subscribe(lambda event: isinstance(event, GroupResized) and os.kill(pid, how))
    assert group.shrink(1, drain_s=2) == (1,)
    with pytest.raises(
        WorkerDied, match=r"rank 1 of 'killed' died during stay\(\): it left at .* \(shrink\(1\)\); "
    ):
        stays.wait(60)
    assert isinstance(heard.next(), GroupResized)
    drained = heard.next()
    assert (drained.rank, drained.forced) == (1, True)
    assert ranks_of(group.who().wait(60)) == [0]
    assert group.grow(1) == (2,)
    wait_until(lambda: forked_job.living == 2)


def test_a_rank_that_is_being_restarted_leaves(forked_job):
    group = launch(forked_job, "away", 0, 1 << 30, 60, on_failure="restart")
    with pytest.raises(WorkerDied):
        group[1].die().wait(60)
    waits, whole = group[1].who(), group.who()
    assert group.health()[1].state == "restarting"
    assert group.shrink(1) == (1,)
    with pytest.raises(PlacementError, match=r"has no rank 1: it left at .* \(shrink\(1\)\)"):
        waits.wait(60)
    assert ranks_of(whole.wait(60)) == ranks_of(group.who().wait(60)) == [0]
    wait_until(lambda: forked_job.living == 1)


def test_a_rank_that_does_not_start_leaves_nothing_behind_and_its_number_is_not_used_again(forked_job):
    group = launch(forked_job, "fails", 0, 3)
    assert group.grow(1) == (2,)
    with pytest.raises(
        LaunchError, match=r"rank [34] failed in __init__: ValueError: rank [34] is not wanted"
    ):
        group.grow(2)
    assert group.ranks == (0, 1, 2)
    assert ranks_of(group.who().wait(60)) == [0, 1, 2]
    wait_until(lambda: forked_job.living == 3)
    with pytest.raises(LaunchError, match="rank 5 failed"):
        group.grow(1)


def test_what_ready_when_names_runs_in_each_new_rank_before_it_is_called(forked_job):
    group = launch(forked_job, "ready")
    group.grow(1, ready_when="become_ready")
    assert group.ready().wait(60) == [False, False, True]
    with pytest.raises(ConfigError, match=r"ready_when='becom_ready': .* did you mean 'become_ready'"):
        group.grow(1, ready_when="becom_ready")


def test_what_a_launch_says_that_new_ranks_run_needs_no_restarts(forked_job):
    group = launch(forked_job, "ready as launched", ready_when="become_ready")
    group.grow(1)
    assert group.ready().wait(60) == [False, False, True]


def test_new_ranks_run_where_a_strategy_or_text_says(forked_job):
    group = launch(forked_job, "placed")
    assert group.grow(placement=FlexiblePlacementStrategy([[4], [0]])) == (2, 3)
    assert group.grow(placement="6-7") == (4, 5)
    places = [(place.node_rank, place.local_hardware_ranks) for place in group.placements]
    assert places == [(0, (0,)), (0, (1,)), (0, (0,)), (1, (0,)), (1, (2,)), (1, (3,))]
    assert [place.local_rank for place in group.placements] == [0, 1, 2, 0, 1, 2]
    masks = [each["CUDA_VISIBLE_DEVICES"] for each in group.environment().wait(60)]
    assert masks == ["0", "1", "0", "4", "6", "7"]


def test_a_rank_that_is_killed_as_it_starts_ends_the_growth(forked_job):
    group = launch(forked_job, "killed early")
    began = threading.Event()

    def kill():
        process = forked_job.processes.started[-1]
        process.kill()
        began.set()

    forked_job.processes.on_start = kill
    with pytest.raises(LaunchError, match="rank 2 died while"):
        group.grow(1)
    assert began.is_set()
    assert ranks_of(group.who().wait(60)) == [0, 1]
    forked_job.processes.on_start = lambda: None
    assert group.grow(1) == (3,)


def test_a_member_that_is_killed_while_others_start_comes_back_among_them(forked_job):
    group = launch(forked_job, "member", on_failure="restart")
    pid = group.health()[0].pid

    def kill():
        forked_job.processes.on_start = lambda: None
        os.kill(pid, signal.SIGKILL)

    forked_job.processes.on_start = kill
    assert group.grow(2) == (2, 3)
    wait_until(lambda: group.health()[0].num_restarts == 1)
    assert group.known().wait(60) == [((0, 1, 2, 3), 1)] * 4
    assert ranks_of(group.who().wait(60)) == [0, 1, 2, 3]


def test_a_node_that_joined_after_the_launch_has_new_ranks(forked_job):
    group = launch(forked_job, "joined")
    nodes = forked_job.topology.nodes
    joined = replace(forked_job.topology, nodes=(*nodes, replace(nodes[0], node_id="third")))
    forked_job.session.provide(Topology, joined)
    group.grow(3)
    assert [place.node_rank for place in group.placements] == [0, 0, 1, 2, 1]


def test_bare_ranks_grow_where_fewest_of_them_run(forked_job):
    group = launch(forked_job, "bare", placement=NodePlacementStrategy([0, 0]))
    group.grow(3)
    assert [place.node_rank for place in group.placements] == [0, 0, 1, 1, 0]


def test_beyond_the_fleet_nothing_changes_and_the_error_says_what_is_missing(forked_job):
    group = launch(forked_job, "beyond")
    other = launch(forked_job, "other", placement=PackedPlacementStrategy(6, 7))
    told = r"4 of 5 further processes would have a place; .* node 0: 0 of 4 are free; node 1: 0 of 4 are free"
    with pytest.raises(PlacementError, match=told):
        group.grow(5)
    assert group.grow(4) == (2, 3, 4, 5)
    other.terminate()


SENSELESS_GROWTHS = (
    ({}, ConfigError),
    ({"num_workers": 0}, ConfigError),
    ({"num_workers": True}, ConfigError),
    ({"num_workers": 1, "placement": "0"}, ConfigError),
    ({"num_workers": 1, "timeout_s": "soon"}, ConfigError),
    ({"placement": "0-"}, PlacementError),
    ({"placement": "0-99"}, PlacementError),
)
SENSELESS_SHRINKAGES = (
    ({}, ConfigError, "it takes `num_workers`, or `ranks`"),
    ({"num_workers": 1, "ranks": [1]}, ConfigError, "it takes"),
    ({"num_workers": 1.5}, ConfigError, "a whole number"),
    ({"ranks": []}, ConfigError, "numbers of ranks"),
    ({"ranks": ["1"]}, ConfigError, "numbers of ranks"),
    ({"ranks": [2]}, PlacementError, "has no rank 2 to let go"),
    ({"ranks": [1, 1]}, PlacementError, "name each rank once"),
    ({"num_workers": 2}, ResizeError, "of its 2 ranks 2 would leave, and one at least stays"),
    ({"ranks": [0, 1]}, ResizeError, "one at least stays"),
    ({"num_workers": 1, "drain_s": -1}, ConfigError, "drain_s"),
)


def test_what_makes_no_sense_changes_nothing(forked_job):
    group = launch(forked_job, "senseless")
    for arguments, error in SENSELESS_GROWTHS:
        with pytest.raises(error):
            group.grow(**arguments)
    for arguments, error, told in SENSELESS_SHRINKAGES:
        with pytest.raises(error, match=told):
            group.shrink(**arguments)
    for refused in (lambda: group[1].grow(1), lambda: group[1].shrink(1)):
        with pytest.raises(PlacementError, match="this is a view of some"):
            refused()
    assert group.members.epoch == 0


def test_nothing_is_kept_for_a_rank_that_took_work_and_whose_start_failed_then(forked_job):
    channel = Channel.create("kept-for-nobody")
    for number in range(16):
        channel.put(number)
    group = Eager.create_group(channel, 2).launch(forked_job, TWO, name="eager")
    with pytest.raises(LaunchError, match="rank 2 is not wanted"):
        group.grow(1)
    assert (group.ranks, group.known().wait(60)) == ((0, 1), [((0, 1), 2)] * 2)
    # One step was divided among three; what was of the third is in the next ones.
    assert {item for part in group.take(3).wait(60) for item in part} == {*range(15)}
    for number in range(16, 20):
        channel.put(number)
    assert group.grow(1) == (3,)


def test_who_has_no_turn_in_time_is_told_so_and_nothing_changes(forked_job):
    group = launch(forked_job, "impatient")
    began, goes_on = threading.Event(), threading.Event()

    def hold():
        began.set()
        assert goes_on.wait(60)

    forked_job.processes.on_start = hold
    with ThreadPoolExecutor(1) as pool:
        growing = pool.submit(group.grow, 1)
        assert began.wait(60)
        with pytest.raises(
            ResizeError, match="it waited for its turn, as another resize goes on, until its deadline"
        ):
            group.shrink(1, drain_s=0.1)
        goes_on.set()
        assert growing.result(60) == (2,)
    assert group.ranks == (0, 1, 2)
    assert group.shrink(1) == (2,)


def test_a_group_that_ended_is_not_resized(forked_job):
    group = launch(forked_job, "over")
    group.terminate()
    for refused in (lambda: group.grow(1), lambda: group.shrink(1)):
        with pytest.raises((WorkerDied, ResizeError), match="the group was terminated"):
            refused()


def test_a_rank_that_leaves_by_force_is_no_failure_that_ends_the_driver(forked_job, monkeypatch):
    ended = queue.SimpleQueue()
    monkeypatch.setattr(FailFast, "_end_for", lambda _, result: ended.put(str(result.failure())))
    forked_job.session.provide(FailFast, FailFast(forked_job.session))
    group = launch(forked_job, "fast")
    stays = group[1].stay()
    assert group.shrink(1, drain_s=0.2) == (1,)
    with pytest.raises(WorkerDied):
        stays.wait(60)
    with pytest.raises(WorkerDied):
        group[0].die().wait(60)
    assert "died during die()" in ended.get(timeout=60)  # the first that is one
    assert [rank.rank for rank in group.placements] == [0]


def test_two_that_grow_at_once_take_turns(forked_job):
    group = launch(forked_job, "turns")
    with ThreadPoolExecutor(2) as pool:
        numbers = [each.result(60) for each in [pool.submit(group.grow, 1), pool.submit(group.grow, 2)]]
    assert sorted(number for each in numbers for number in each) == [2, 3, 4]
    assert (group.ranks, group.members.epoch) == ((0, 1, 2, 3, 4), 2)
    assert len({(place.node_rank, place.local_hardware_ranks) for place in group.placements}) == 5


def test_a_group_that_ends_while_it_grows_leaves_nothing_behind(forked_job):
    # The first that comes does not become ready before this test is over.
    group = NeverReady.create_group(2).launch(forked_job, TWO, name="ended")
    began = threading.Event()
    forked_job.processes.on_start = began.set
    with ThreadPoolExecutor(1) as pool:
        growing = pool.submit(group.grow, 2)
        assert began.wait(60)
        group.terminate()
        with pytest.raises(LaunchError):
            growing.result(60)
    wait_until(lambda: forked_job.living == 0)
    with pytest.raises(LaunchError, match="the group was terminated"):
        group.grow(1)


def test_wherever_a_growth_is_interrupted_it_has_happened_or_leaves_nothing_behind(forked_job, alarms):
    group = launch(forked_job, "interrupted", placement=NodePlacementStrategy([0]))
    ended, num_raised = 0, 0
    for max_delay_s in (0.05, 0.3, 1.0):
        made = alarms(seed=7, max_delay_s=max_delay_s)
        ended += sum(made.interrupt(lambda: group.grow(1)) for _ in range(3))
        num_raised += made.num_raised
    numbers = group.grow(1)  # after all that were interrupted
    assert ranks_of(group.who().wait(60)) == list(group.ranks)
    wait_until(lambda: forked_job.living == group.world_size)
    assert ended + 2 <= group.world_size <= 11
    assert numbers[0] == max(group.ranks)
    assert num_raised


def test_why_tells_for_whom_a_resize_waits(forked_job):
    group = launch(forked_job, "told of")
    stays = group[1].stay()
    with ThreadPoolExecutor(1) as pool:
        shrinking = pool.submit(group.shrink, 1)
        parts = "what they have", "shrink(1) of 'told of'", "told of:1", "stay()"
        seen(lambda: str(why(forked_job.session, 10)), lambda text: all(part in text for part in parts))
        group[0].release().wait(60)
        group.terminate()
        assert shrinking.result(60) == (1,)
    with pytest.raises(WorkerDied):
        stays.wait(60)


def test_a_group_is_known_when_its_launch_is_told(forked_job):
    """Who has ranks leave a node that was drained as they started finds them then."""
    session, known = forked_job.session, []

    def look(event):
        if isinstance(event, GroupLaunched):
            known.append({group.name for group in groups_of(session)})

    session.bus.tap(look)
    launch(forked_job, "told")
    assert "told" in known[0]


def test_a_rank_that_takes_long_to_finish_holds_up_no_other_resize(forked_job):
    heard = Heard(forked_job, "slow")
    group, items = launch(forked_job, "slow"), Channel.create("items")
    takes = group[1].take_one("items")
    with ThreadPoolExecutor(1) as pool:
        shrinking = pool.submit(group.shrink, ranks=[1], drain_s=600)
        assert heard.next().new_ranks == (0,)
        assert group.grow(1, timeout_s=60) == (2,)
        assert group.grow(1, timeout_s=60, reuse=True) == (3,)  # the one that leaves has its number still
        places = [(place.node_rank, place.local_hardware_ranks) for place in group.placements]
        assert places == [(0, (0,)), (1, (0,)), (0, (2,))]  # and its device
        assert group.shrink(ranks=[2], drain_s=60) == (2,)
        with pytest.raises(
            ResizeError, match="it waited for its devices, which a rank that leaves has still"
        ):
            group.grow(placement=FlexiblePlacementStrategy([[1]]), timeout_s=0.5)
        assert not shrinking.done()
        items.put("taken")
        assert takes.wait(60) == ["taken"]
        assert shrinking.result(60) == (1,)
    assert group.grow(1, reuse=True) == (1,)
    assert ranks_of(group.who().wait(60)) == [0, 1, 3]
