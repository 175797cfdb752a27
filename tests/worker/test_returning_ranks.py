"""Ranks that come back: real processes, killed, without Ray."""

import gc
import queue
import re
import threading

import pytest
from returning_workers import Mortal, Peer

from rlinf.scheduler import PackedPlacementStrategy
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.requests import Peer as CommPeer
from rlinf_scheduler.errors import (
    CallCancelled,
    ChannelExists,
    ConfigError,
    LaunchError,
    LaunchTimeout,
    PlacementError,
    WorkerDied,
    WorkerError,
)
from rlinf_scheduler.events import WorkerGivenUp, WorkerLost, WorkerReturned
from rlinf_scheduler.worker import supervision
from rlinf_scheduler.worker.node_watch import NodeWatch
from rlinf_scheduler.worker.processes import LaunchedRank
from rlinf_scheduler.worker.supervision import groups_of
from scarce_threads import refuse_thread
from waits import seen, wait_until

TWO = PackedPlacementStrategy(0, 1)


class Heard:
    """What is told of a group's ranks, in order."""

    def __init__(self, job, group):
        self._events = queue.SimpleQueue()
        kinds = (WorkerLost, WorkerReturned, WorkerGivenUp)
        job.session.bus.subscribe(
            lambda event: isinstance(event, kinds) and event.group == group and self._events.put(event)
        )

    def next(self):
        return self._events.get(timeout=60)


def launch(job, name, *args, on_failure="restart", **options):
    return Mortal.create_group(*args).launch(job, TWO, name=name, on_failure=on_failure, **options)


# Who kills is named by Linux 6.15 and newer.
KILLED = "(SIGKILL|without a word)"


def kill(group, rank):
    """Let a rank die, and see its call end."""
    told = rf"rank {rank} of '{group.name}' died during die\(\): .*{KILLED}"
    with pytest.raises(WorkerDied, match=told):
        group.execute_on(rank).die().wait(60)


def test_calls_and_streams_that_stand_in_line_as_a_rank_ends_itself_are_its_successor_s(forked_job):
    group = launch(forked_job, "ended")
    ends, who, values = group[1].end(), group[1].who(), group[1].count(3)
    group[1].go().wait(60)
    with pytest.raises(WorkerError, match="SystemExit"):
        ends.wait(60)
    assert [answer[2] for answer in who.wait(60)] == [1]
    assert [value for (value,) in values] == [0, 1, 2]


def test_a_rank_comes_back_as_it_was_and_what_it_had_goes_on(forked_job):
    heard = Heard(forked_job, "back")
    group = launch(forked_job, "back", 7)
    environment = group.environment().wait(60)
    pids = [who[-1] for who in group.who().wait(60)]
    beside = group.execute_on(0).who()
    group.execute_on(1).put("item").wait(60)
    kill(group, 1)
    # A call that is made now waits for the successor.
    assert [who[:4] for who in group.who().wait(60)] == [(0, 2, 0, 7), (1, 2, 1, 7)]
    assert group.environment().wait(60) == environment
    assert group.execute_on(1).take().wait(60) == ["item"]
    assert beside.wait(60) == [(0, 2, 0, 7, pids[0])]
    lost, returned = heard.next(), heard.next()
    assert isinstance(lost, WorkerLost)
    assert (returned.rank, returned.num_restarts) == (1, 1)
    assert returned.pid not in pids
    assert [each.state for each in group.health()] == ["alive", "alive"]
    assert [each.num_restarts for each in group.health()] == [0, 1]
    group.terminate()
    wait_until(lambda: sum(process._process.is_alive() for process in forked_job.processes.started) == 1)
    assert {each.state for each in group.health()} == {"ended"}


def test_a_rank_comes_back_once_threads_can_be_had_again(forked_job, monkeypatch):
    group = launch(forked_job, "threadless")
    group.who().wait(60)
    refused = refuse_thread(monkeypatch, "_bring_back")
    kill(group, 1)
    assert refused.is_set()
    assert [who[0] for who in group.who().wait(60)] == [0, 1]


def test_the_first_rank_comes_back_with_the_port_of_the_group(forked_job):
    group = launch(forked_job, "first")
    environment = group.environment().wait(60)
    kill(group, 0)
    assert group.environment().wait(60) == environment
    assert group.placements == [each.placement for each in groups_named(forked_job, "first").ranks.values()]


def num_kept():
    """How many records of processes there are: of ranks, and of those that this process talks with."""
    gc.collect()
    kinds = [type(each) for each in gc.get_objects()]
    return kinds.count(LaunchedRank), kinds.count(CommPeer)


def test_of_a_rank_that_comes_back_again_and_again_only_its_last_process_is_kept(forked_job, monkeypatch):
    # A process that has ended is kept for so long, and that is waited for.
    monkeypatch.setattr(supervision, "UNSAID_GRACE_S", 15.0)
    group = launch(forked_job, "often", max_restarts=4)

    def come_back():
        kill(group, 1)
        group.who().wait(60)

    come_back()  # what the rank had made is held elsewhere from now on
    before = num_kept()
    for _ in range(3):
        come_back()
    seen(num_kept, lambda kept: max(kept[0] - before[0], kept[1] - before[1]) <= 0)


def groups_named(job, name):
    return next(each for each in groups_of(job.session) if each.name == name)


def test_a_rank_whose_node_is_gone_comes_back_on_another_one_if_that_is_wanted(forked_job):
    heard = Heard(forked_job, "moves")
    group = launch(forked_job, "moves", restart_on="any")
    beside = Mortal.create_group().launch(forked_job, PackedPlacementStrategy(4, 4), name="beside")
    forked_job.session.service(NodeWatch).lose("first", "its raylet ended")
    lost = {heard.next().rank, heard.next().rank}
    returned = [heard.next(), heard.next()]
    assert lost == {each.rank for each in returned} == {0, 1}
    assert {each.node_rank for each in returned} == {1}
    places = [(each.node_rank, each.local_hardware_ranks) for each in group.placements]
    assert sorted(places) == [(1, (1,)), (1, (2,))]
    environments = group.environment().wait(60)
    assert {each["CUDA_VISIBLE_DEVICES"] for each in environments} == {"5", "6"}
    assert [each["RANK"] for each in environments] == ["0", "1"]
    assert [who[0] for who in beside.who().wait(60)] == [0]


def test_a_rank_for_which_no_other_node_has_room_is_given_up_and_it_says_what_was_missing(
    forked_job, monkeypatch
):
    monkeypatch.setattr("rlinf_scheduler.worker.deaths.FIRST_DELAY_S", 0.0)
    heard = Heard(forked_job, "stays")
    launch(forked_job, "stays", restart_on="any", max_restarts=2)
    Mortal.create_group().launch(forked_job, PackedPlacementStrategy(4, 7), name="in its place")
    forked_job.session.service(NodeWatch).lose("first", "its raylet ended")
    events = [heard.next() for _ in range(4)]
    given_up = [each for each in events if isinstance(each, WorkerGivenUp)]
    missing = "node 0: nothing can be started on it; node 1: 0 of 4 are free"
    assert missing in given_up[0].reason


def test_devices_on_a_node_that_is_lost_as_well_go_back(forked_job, monkeypatch):
    given_back, watch = queue.SimpleQueue(), forked_job.session.service(NodeWatch)
    launch(forked_job, "unlucky", restart_on="any")

    def reserve(group, _devices, _wait_s):
        watch.lose("second", "its raylet ended")
        wait_until(lambda: 1 in watch.states.lost)
        return lambda devices: given_back.put((group, devices))

    monkeypatch.setattr(forked_job.processes, "reserve", reserve)
    watch.lose("first", "its raylet ended")
    assert given_back.get(timeout=60) == ("unlucky", {("second", "4")})


def test_streams_and_scattered_calls_wait_for_the_successor_too(forked_job):
    group = launch(forked_job, "streams")
    kill(group, 1)
    assert list(group.count(3)) == [[0, 0], [1, 1], [2, 2]]
    kill(group, 0)
    assert list(group.scatter([2, 2]).count()) == [[0, 0], [1, 1]]


def test_a_call_that_retries_is_made_again_on_the_successor_and_on_no_other_rank(forked_job):
    group = launch(forked_job, "retry")
    held = group.retrying().die_once()
    assert held.wait(60) == [(0, 0, 1), (1, 1, 1)]
    with pytest.raises(WorkerDied):  # without it, it is not
        group.execute_on(0).die().wait(60)


@pytest.mark.parametrize("options", [{"on_failure": "fail"}, {"on_failure": "ignore"}, {"max_restarts": 1}])
def test_a_call_that_retries_ends_when_nobody_comes_back(forked_job, options):
    group = launch(forked_job, "no retry", 0, 99, **options)
    with pytest.raises(WorkerDied, match=r"rank 1 of 'no retry' died during die\(\)"):
        group.execute_on(1).retrying().die().wait(60)


def test_a_call_that_retries_ends_with_its_group_and_when_it_is_cancelled(forked_job):
    group = launch(forked_job, "cancelled", 0, 99, max_restarts=99)
    calls = [group.retrying().execute_on(1).die() for _ in range(2)]
    wait_until(lambda: group.health()[1].state == "restarting")
    calls[0].cancel()
    with pytest.raises(CallCancelled):
        calls[0].wait(60)
    group.terminate()
    with pytest.raises(WorkerDied, match="the group was terminated"):
        calls[1].wait(60)


def test_what_waits_for_a_successor_can_be_given_up(forked_job):
    group = launch(forked_job, "given up", 0, 9, max_restarts=50)
    kill(group, 1)
    call = group.execute_on(1).who()
    call.cancel()
    with pytest.raises(CallCancelled):
        call.wait(60)
    stream = group.execute_on(1).count(3)
    stream.close()
    group.terminate()


def test_terminate_ends_what_is_being_started_and_what_waits_for_it(forked_job):
    group = launch(forked_job, "ended", 0, 99, max_restarts=99)
    kill(group, 1)
    call = group.execute_on(1).who()
    group.terminate()
    with pytest.raises(WorkerDied, match="the group was terminated"):
        call.wait(60)
    ranks = forked_job.processes.started
    wait_until(lambda: sum(process._process.is_alive() for process in ranks) == 1)  # the channels'
    with pytest.raises(WorkerDied, match="the group was terminated"):
        group.restart(1)


def test_a_rank_that_dies_again_and_again_is_given_up_with_all_causes_and_the_group_with_it(forked_job):
    heard = Heard(forked_job, "limit")
    group = launch(forked_job, "limit", 0, 99, max_restarts=2)
    kill(group, 1)
    call = group.who()
    cause = (
        r"rank 1 of 'limit' died: process \d+ on node 0 \(127.0.0.1\): .*(SIGKILL|without a word).*it is not started "
        r"again: it was started again 2 times in 60 s already \(max_restarts\); group 'limit': rank 1 died while still "
        r"in __init__"
    )
    with pytest.raises(WorkerDied, match=re.compile(cause, re.DOTALL)):
        call.wait(60)
    with pytest.raises(WorkerDied, match="on_failure='restart', the whole group ends with it"):
        group.execute_on(0).who()
    lost, given_up = heard.next(), heard.next()
    assert isinstance(lost, WorkerLost)
    assert isinstance(given_up, WorkerGivenUp)
    assert [each.state for each in group.health()] == ["alive", "dead"]


def test_no_work_is_done_before_what_ready_when_names_has_returned(forked_job):
    group = launch(forked_job, "weights", ready_when=Mortal.load_weights)
    assert group.loaded().wait(60)[1][0] == -1  # at first nobody has published any
    group.execute_on(0).publish(3).wait(60)
    kill(group, 1)
    assert group.execute_on(1).loaded().wait(60) == [(3, [3.0] * 4)]


def test_what_ready_when_names_may_run_on_the_loop_of_the_calls(forked_job):
    group = launch(forked_job, "weights", ready_when="load_weights_beside")
    group.execute_on(0).publish(3).wait(60)
    kill(group, 1)
    assert group.execute_on(1).loaded().wait(60) == [(3, [3.0] * 4)]
    assert group.execute_on(1).is_on_the_loop_that_made_it_ready().wait(60) == [True]


@pytest.mark.parametrize("method", ["refuse", "refuse_beside"])
def test_a_start_whose_ready_when_fails_is_no_return(forked_job, method):
    group = launch(forked_job, "never ready", ready_when=method, max_restarts=1)
    kill(group, 0)
    with pytest.raises(WorkerDied, match=rf"Mortal\.{method}\(\) returned False"):
        group.execute_on(0).who().wait(60)


@pytest.mark.parametrize("verdict", ["restart", "ignore", "fail", "pray", None])
def test_a_function_decides_what_a_death_means(forked_job, verdict, caplog):
    asked = []

    def decide(lost):
        asked.append(lost)
        if verdict is None:
            raise LookupError("no idea")
        return verdict

    group = launch(forked_job, "decided", on_failure=decide)
    kill(group, 1)
    ask = group.execute_on(1).who  # waits until it is decided
    if verdict == "restart":
        assert ask().wait(60)[0][:3] == (1, 2, 1)
    else:
        with pytest.raises(WorkerDied, match=KILLED):
            ask().wait(60)
    assert [(each.group, each.rank) for each in asked] == [("decided", 1)]
    if verdict in ("restart", "ignore"):
        assert group.execute_on(0).who().wait(60)[0][:3] == (0, 2, 0)
    else:
        with pytest.raises(WorkerDied):
            group.execute_on(0).who()
    assert ("no idea" in caplog.text) == (verdict is None)
    assert ("'pray'" in caplog.text) == (verdict == "pray")


def test_restart_brings_another_process_while_a_function_still_decides(forked_job):
    asked, may_answer = threading.Event(), threading.Event()

    def decide(_lost):
        asked.set()
        may_answer.wait(60)
        return "fail"

    group = launch(forked_job, "undecided", on_failure=decide)
    kill(group, 1)
    assert asked.wait(60)
    group.restart(1)
    may_answer.set()
    assert [each.num_restarts for each in group.health()] == [0, 1]
    # What it said came too late: it was about a death that is mended.
    assert [who[:3] for who in group.who().wait(60)] == [(0, 2, 0), (1, 2, 1)]


@pytest.mark.parametrize("on_failure", ["fail", "ignore", "restart"])
def test_restart_brings_another_process_whatever_the_policy(forked_job, on_failure):
    group = launch(forked_job, "again", on_failure=on_failure)
    held = group.execute_on(1).hold()
    group.restart(1)
    with pytest.raises(WorkerDied, match=r"died during hold\(\): group.restart\(\) ends it"):
        held.wait(60)
    assert [who[2] for who in group.who().wait(60)] == [0, 1]
    if on_failure != "restart":  # a dead one, too
        kill(group, 0)
        wait_until(lambda: group.health()[0].state == "dead")
        group.restart(0)
        assert [who[2] for who in group.who().wait(60)] == [1, 1]
    with pytest.raises(PlacementError):
        group.restart(2)


def test_a_restart_that_is_late_says_so_and_goes_on(forked_job):
    group, goes_on = launch(forked_job, "late back"), threading.Event()
    forked_job.processes.on_start = lambda: goes_on.wait(60)
    for timeout_s in (0, 0.01):  # the second one finds it under way
        with pytest.raises(LaunchTimeout, match=f"rank 1 is not back after {timeout_s} s"):
            group.restart(1, timeout_s=timeout_s)
    goes_on.set()
    assert group.execute_on(1).who().wait(60)[0][:3] == (1, 2, 1)


def test_who_waits_for_no_time_is_told_that_the_rank_is_not_back(forked_job):
    group = launch(forked_job, "hasty")
    busy = Promise()
    forked_job.session.messenger.submit(lambda: busy.wait(60))
    try:
        with pytest.raises(LaunchTimeout, match="rank 1 is not back after 0 s"):
            group.restart(1, timeout_s=0.0)
    finally:
        busy.set_result(None)


def test_peers_get_peer_died_or_wait_for_the_return_if_they_want(forked_job):
    group = launch(forked_job, "talkers")
    peers = Peer.create_group().launch(forked_job, PackedPlacementStrategy(0, 2), name="peers")
    plain = peers.execute_on(0).receive("talkers", 1, False)
    patient = peers.execute_on(1).receive("talkers", 1, True)
    wait_until(lambda: all(peers.execute_on(0, 1).waits().wait(60)))  # else the first waits for the successor
    kill(group, 1)
    assert "'talkers:1' is gone" in plain.wait(60)[0]
    group.execute_on(1).send("from the successor", "peers", 1).wait(60)
    assert patient.wait(60) == ["from the successor"]


def test_what_is_sent_while_the_receiver_is_away_reaches_its_successor_if_that_is_wanted(forked_job):
    group = launch(forked_job, "away", on_failure=lambda lost: "restart")
    peers = Peer.create_group().launch(forked_job, PackedPlacementStrategy(0, 1), name="givers")
    kill(group, 1)
    impatient = peers.execute_on(0).give("nothing", "away", 1, False)
    patient = peers.execute_on(1).give("something", "away", 1, True)
    assert (
        "another process may take its place, and is not waited for without wait_for_return=True"
        in impatient.wait(60)[0]
    )
    assert patient.wait(60) == ["sent"]
    assert group.execute_on(1).recv("givers", 1).wait(60) == ["something"]


def test_who_waits_for_a_return_hears_that_there_is_none(forked_job):
    group = launch(forked_job, "hopeless", 0, 99, max_restarts=1)
    peers = Peer.create_group().launch(forked_job, PackedPlacementStrategy(0, 0), name="hopers")
    waiting = peers.receive("hopeless", 1, True)
    kill(group, 1)
    assert "it is not started again: it was started again 1 times" in waiting.wait(60)[0]


def test_nobody_waits_for_the_ranks_of_a_group_that_was_terminated(forked_job):
    group = launch(forked_job, "over")
    peers = Peer.create_group().launch(forked_job, PackedPlacementStrategy(0, 0), name="late")
    waiting = peers.receive("over", 1, True)
    group.terminate()
    assert "'over:1' is gone" in waiting.wait(60)[0]


def test_only_the_successor_of_its_creator_gets_a_channel_that_is_there(forked_job):
    launch(forked_job, "makers")
    with pytest.raises(LaunchError) as raised:
        launch(forked_job, "others", 0, 0, "made by 1 of makers")
    assert isinstance(raised.value.__cause__, ChannelExists)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_failure": "restrat"}, "did you mean 'restart'"),
        ({"on_failure": None}, "one of 'fail', 'restart', 'restart_group', 'ignore', or a function"),
        ({"max_restarts": -1}, "a whole number from 0"),
        ({"max_restarts": 1.5}, "a whole number from 0"),
        ({"restart_window_s": 0}, "a number of seconds"),
        ({"restart_window_s": float("nan")}, "a number of seconds"),
        ({"ready_when": "load_weigths"}, "load_weights"),
        ({"ready_when": Mortal.put}, "item"),
        ({"ready_when": Mortal.stream}, "it is a method that returns, and no generator"),
        ({"ready_when": 7}, "ready_when"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(forked_job, options, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        launch(forked_job, "bad", **options)
    assert not forked_job.processes.started
