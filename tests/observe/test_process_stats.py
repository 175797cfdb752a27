"""What a job does, as its processes measure it themselves: real ranks, without Ray."""

import os
import signal

import pytest
from hanging_workers import Hanging

from rlinf.scheduler import Channel, PackedPlacementStrategy
from rlinf.testing import LocalRuntime
from rlinf_scheduler.comm import ClusterSecret
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import CommError
from rlinf_scheduler.observe.own_stats import NOTE_S, PastStates
from rlinf_scheduler.observe.report import ask_report
from rlinf_scheduler.observe.status_service import ask_past, begin_status, received
from rlinf_scheduler.session import Session, current_session, set_current
from waits import seen

DEADLINE_S = 60.0


def status_of(job, max_age_s=0.0):
    return received(begin_status(job.session, max_age_s))


def seen_in(job, is_there):
    """Look until what was done shows; the status then."""
    return seen(lambda: status_of(job), is_there)


def rank_in(status, address):
    return next(rank for rank in status.ranks if rank.address == address)


def test_every_rank_tells_where_it_is_and_what_it_uses(job, groups):
    actor, rollout = groups
    names = ("actor:0", "actor:1", "rollout:0", "rollout:1")
    # One that does not get to answer in time is told of so, and the next look finds it.
    status = seen_in(job, lambda status: [rank_in(status, name).state for name in names] == ["idle"] * 4)
    assert [(group.name, group.kind) for group in status.groups][:3] == [
        ("driver", "driver"),
        ("actor", "workers"),
        ("rollout", "workers"),
    ]
    pids = [*actor.where().wait(DEADLINE_S), *rollout.where().wait(DEADLINE_S)]
    ranks = [rank_in(status, name) for name in names]
    assert [rank.pid for rank in ranks] == pids
    assert [(rank.state, rank.node_rank, rank.devices) for rank in ranks[:2]] == [
        ("idle", 0, (0,)),
        ("idle", 0, (1,)),
    ]
    assert all(rank.rss_bytes > 1 << 20 and rank.cpu_s > 0 for rank in ranks)
    assert [node.rank for node in status.nodes] == [0, 1]
    assert status.nodes[0].devices[1].holders == ("actor:1", "rollout:1")
    assert status.driver_pid == os.getpid()
    assert {"GroupLaunched"} <= {event.kind for event in status.events}


def test_channels_weights_and_waits_are_seen(job, groups):
    actor, rollout = groups
    trajectories = Channel.create("trajectories", maxsize=64)
    rollout.execute_on(1).put("trajectories", 5).wait(DEADLINE_S)
    trajectories.get()
    actor.execute_on(0).publish("policy", 2).wait(DEADLINE_S)
    rollout.execute_on(0).fetch("policy").wait(DEADLINE_S)
    actor.execute_on(0).publish("policy", 3).wait(DEADLINE_S)
    waiting = actor.execute_on(0).take_batch("trajectories", 64)
    try:
        status = seen_in(
            job, lambda status: "get_batch" in rank_in(status, "actor:0").wait and status.channels[0].waiting
        )
    finally:
        waiting.cancel()
    rank = rank_in(status, "actor:0")
    assert (rank.state, rank.method, rank.wait) == ("waiting", "take_batch", "get_batch('trajectories', 64)")
    (channel,) = (each for each in status.channels if each.name == "trajectories")
    assert (channel.depth, channel.num_put, channel.num_got) == (4, 5, 1)
    assert channel.putters.keys() == {"rollout:1"}
    assert channel.getters.keys() == {"driver"}
    assert channel.max.startswith("64 items a queue")
    assert (channel.queues[0].name, channel.queues[0].depth) == ("'default'", 4)
    assert [each.process for each in channel.waiting] == ["actor:0"]
    assert rank_in(status, channel.held_by).address == channel.held_by
    (weights,) = status.weights
    assert (weights.name, weights.version, weights.publisher) == ("policy", 3, "actor:0")
    assert (weights.readers, weights.lag) == ({"rollout:0": 2}, 1)


def calls_in(status, address):
    return [(call.method, call.wait, call.caller) for call in rank_in(status, address).calls]


@pytest.fixture(scope="module")
def several(launched):
    """A rank that runs three calls at a time, the first ones of which wait in different channels."""
    job = launched[0]
    set_current(job.session)
    group = Hanging.create_group().launch(
        job, PackedPlacementStrategy(0, 0), name="several", max_concurrency=3
    )
    channels, calls = [Channel.create("first"), Channel.create("second")], []
    for name in ("first", "second"):  # one after the other, so that it is known which one runs longer
        calls.append(group.take(name))
        seen_in(job, lambda status, name=name: f"get('{name}')" in str(calls_in(status, "several:0")))
    yield group
    set_current(job.session)
    for channel in channels:
        channel.put("a")
    for call in calls:
        call.wait(DEADLINE_S)


def test_each_call_that_runs_is_shown_with_its_own_wait(job, several, tmp_path):
    waiting = [("take", "get('first')", "driver"), ("take", "get('second')", "driver")]
    status = seen_in(job, lambda status: len(calls_in(status, "several:0")) == 2)
    rank = rank_in(status, "several:0")
    assert calls_in(status, "several:0") == waiting
    assert (rank.state, rank.method, rank.wait) == ("waiting", "take", "get('first')")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    standing = several.stand(str(gate))
    try:
        status = seen_in(job, lambda status: len(calls_in(status, "several:0")) == 3)
    finally:
        gate.open("wb").close()
    standing.wait(DEADLINE_S)
    rank = rank_in(status, "several:0")
    assert calls_in(status, "several:0") == [*waiting, ("stand", "", "driver")]
    assert (rank.state, rank.method, rank.wait) == ("running", "stand", "")


def test_each_call_that_runs_waits_for_itself_in_the_report_and_stands_where_it_stands(
    job, several, tmp_path
):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    standing = several.stand(str(gate))
    try:
        seen(lambda: several.stack()[0].at, lambda told: "several:0 runs stand()" in told)
        report = ask_report(job.session)
    finally:
        gate.open("wb").close()
    standing.wait(DEADLINE_S)
    (group,) = (each for each in report.groups if each.name == "several")
    waits = {method.method: {wait.operation for wait in method.waits} for method in group.methods}
    assert waits["stand"] == set()
    assert {"get('first')", "get('second')"} <= waits["take"]


def test_the_processes_know_in_which_states_they_were(job, groups):
    with job.starting():  # its first state is not forgotten yet, however long other tests took
        noted = Hanging.create_group().launch(job, PackedPlacementStrategy(0, 0), name="noted")
    seen(lambda: ask_past(job.session), lambda past: "idle" in past.states.get("noted:0", ()))
    waiting = noted.receive("rollout", 1)
    try:
        past = seen(
            lambda: ask_past(job.session),
            lambda past: (
                "waiting" in past.states.get("noted:0", ()) and "idle" in past.states.get("actor:1", ())
            ),
        )
    finally:
        waiting.cancel()
        noted.terminate()
    states = past.states["noted:0"]
    assert states[0] in ("starting", "idle")
    assert past.states["actor:1"][-1] == "idle"
    assert {"driver", "actor:0", "actor:1", "rollout:0", "rollout:1"} <= set(past.states)
    assert past.every_s * len(states) < 300 + past.every_s


def test_a_process_that_was_stopped_has_noted_nothing_then():
    with LocalRuntime():
        session, told = current_session(), Promise()
        past = session.service(PastStates)

        def stopped():  # on the thread that notes
            began = len(past.all().states)
            past._noted_at -= 3 * NOTE_S
            past.note()
            return past.all().states[began:][:3]

        session.messenger.submit(lambda: told.set_from(stopped))
        assert told.result(DEADLINE_S) in [("", "", ""), ("", "", past.state())]


def test_who_asks_within_a_second_gets_the_same_look(job):
    assert status_of(job, 60.0) == status_of(job, 60.0)


def test_a_rank_that_is_stopped_is_unresponsive_and_since_when(job, groups):
    _, rollout = groups
    (pid,) = rollout.execute_on(1).where().wait(DEADLINE_S)
    seen_in(job, lambda status: rank_in(status, "rollout:1").state == "idle")
    os.kill(pid, signal.SIGSTOP)
    try:
        status = seen_in(
            job,
            lambda status: (
                rank_in(status, "rollout:1").silent_s > 0.5
                and [each.address for each in status.silent] == ["rollout:1"]
            ),
        )
    finally:
        os.kill(pid, signal.SIGCONT)
    rank = rank_in(status, "rollout:1")
    assert (rank.state, rank.pid, rank.node_rank) == ("unresponsive", pid, 0)
    assert "SIGSTOP" in rank.detail
    seen_in(job, lambda status: rank_in(status, "rollout:1").state == "idle")


def test_a_rank_that_is_killed_is_lost_and_an_event_says_so(job):
    group = Hanging.create_group().launch(job, PackedPlacementStrategy(2, 2), name="victim")
    (pid,) = group.where().wait(DEADLINE_S)
    seen_in(job, lambda status: rank_in(status, "victim:0").state == "idle")
    os.kill(pid, signal.SIGKILL)
    status = seen_in(job, lambda status: status.event_counts.get("WorkerLost"))
    rank = rank_in(status, "victim:0")
    assert (rank.state, rank.pid, rank.devices) == ("lost", pid, (2,))
    assert rank.detail
    (lost,) = (event for event in status.events if event.kind == "WorkerLost")
    assert lost.level == "error"
    assert lost.text.startswith("victim:0 was lost: ")


def test_a_stranger_without_the_jobs_token_is_refused(job):
    home = job.session.messenger.endpoint
    member = Session(job.session.secret, "rlinf-top:1", home=home)
    stranger = Session(ClusterSecret.generate(), "rlinf-top:2", home=home)
    try:
        assert received(begin_status(member)).driver_pid == os.getpid()
        with pytest.raises(CommError):
            received(begin_status(stranger))
    finally:
        stranger.close()
        member.close()
