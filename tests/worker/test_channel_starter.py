"""Processes for channels: shared, started, lost and ended; without Ray."""

import pickle
import threading
import time
from contextlib import nullcontext
from functools import partial

import pytest

from alarms import alarms
from local_channels import LocalStarter
from rlinf.scheduler import Channel
from rlinf_scheduler.channel import ChannelSpec, StartChannel, Starter, channels_of
from rlinf_scheduler.channel.starting import HOLD_CHANNEL, START_CHANNEL, HoldChannel
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ChannelError, ChannelExists, ChannelLost, LaunchError
from rlinf_scheduler.events import ChannelOpened, ChannelRestored, WorkerGivenUp, WorkerLost
from rlinf_scheduler.host.info import group_entry
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.session import Session, SideBySide, set_current
from scarce_threads import refuse_thread
from waits import DEADLINE_S, wait_until

__all__ = ["alarms"]


@pytest.fixture
def starter(session):
    """A driver's, with a session for every process."""
    session.provide(Topology, Topology.parse("2x4"))
    starter = session.service(LocalStarter)
    session.provide(Starter, starter)
    set_current(session)
    yield starter
    starter.may_start.set()
    for rank in starter.living():
        rank.kill()


@pytest.fixture
def events(session):
    heard = []
    session.bus.subscribe(heard.append)

    def of(kind):
        assert session.bus.flush(DEADLINE_S)
        return [event for event in heard if isinstance(event, kind)]

    return of


def works(channel):
    channel.put("item", timeout_s=DEADLINE_S)
    return channel.get(timeout_s=DEADLINE_S) == "item"


def test_channels_of_a_node_share_a_process_and_each_has_its_own_items(starter, events):
    first, second = Channel.create("first"), Channel.create("second", maxsize=2)
    first.put("a")
    second.put("b")
    assert (second.get(timeout_s=DEADLINE_S), first.get(timeout_s=DEADLINE_S)) == ("b", "a")
    assert len(starter.ranks) == 1
    assert [(event.name, event.process) for event in events(ChannelOpened)] == [
        ("first", "Channels:0"),
        ("second", "Channels:0"),
    ]


def test_a_channel_may_have_a_process_of_its_own_which_ends_with_it(starter):
    shared, own = Channel.create("shared"), Channel.create("hot", own_process=True)
    assert len(starter.ranks) == 2
    assert works(shared)
    own.delete(timeout_s=DEADLINE_S)
    assert starter.ranks[1].exited.result(DEADLINE_S) == "it was asked to end"
    assert works(shared)


def test_a_cluster_may_want_a_process_for_each_channel(session):
    session.provide(Topology, Topology.parse("1x4"))
    starter = session.service(partial(LocalStarter, shares=False))
    session.provide(Starter, starter)
    set_current(session)
    Channel.create("a")
    Channel.create("b")
    Channel.create("c", own_process=False)
    Channel.create("d", own_process=False)
    assert len(starter.ranks) == 3
    for rank in starter.living():
        rank.kill()


def test_a_deleted_channel_leaves_the_others_and_its_name_is_free_at_once(starter):
    stays, goes = Channel.create("stays"), Channel.create("goes")
    for _ in range(3):
        assert works(goes)
        goes.delete(timeout_s=DEADLINE_S)
        goes = Channel.create("goes")
    assert works(stays)
    assert len(starter.ranks) == 1


def test_a_process_is_kept_warm_when_its_last_channel_is_gone_and_then_ends(starter, monkeypatch):
    Channel.create("a").delete(timeout_s=DEADLINE_S)
    monkeypatch.setattr("rlinf_scheduler.worker.channel_starter.WARM_S", 0.05)
    again = Channel.create("b")
    assert works(again)
    assert len(starter.ranks) == 1
    again.delete(timeout_s=DEADLINE_S)
    assert starter.ranks[0].exited.result(DEADLINE_S) == "it was asked to end"
    assert works(Channel.create("c"))
    assert len(starter.ranks) == 2


def test_the_death_of_a_process_is_the_end_of_each_of_its_channels_and_of_no_other(starter, events):
    both = [Channel.create("left"), Channel.create("right")]
    other = Channel.create("other", own_process=True)
    assert all(works(channel) for channel in both)
    starter.ranks[0].kill("process 7 was killed")
    for channel in both:
        with pytest.raises(ChannelLost, match=f"channel '{channel.name}': the process that held it is gone"):
            channel.get(timeout_s=DEADLINE_S)
    wait_until(lambda: len(events(WorkerLost)) == 2)
    reason = "process 7 was killed; it held 'left', 'right'"
    assert events(WorkerLost) == [WorkerLost("left", 0, reason), WorkerLost("right", 0, reason)]
    assert works(other)
    wait_until(lambda: set(channels_of(starter._session)) == {"other"})
    assert works(Channel.create("left"))
    assert len(starter.ranks) == 3


def test_channels_of_a_block_go_into_one_process_and_do_not_wait_in_line(starter):
    starter.may_start.clear()
    with starter._session.service(SideBySide).together():
        channels = [Channel.create(f"of-a-block-{number}", maxsize=number) for number in range(3)]
        assert [(channel.name, channel.maxsize) for channel in channels][2] == ("of-a-block-2", 2)
        put = threading.Thread(target=channels[0].put, args=("early",))
        put.start()
        assert put.is_alive()
        starter.may_start.set()
    assert channels[0].get(timeout_s=DEADLINE_S) == "early"
    put.join(DEADLINE_S)
    assert works(pickle.loads(pickle.dumps(channels[1])))
    assert len(starter.ranks) == 1


def test_a_name_that_is_taken_is_refused_at_once_also_in_a_block(starter):
    Channel.create("taken")
    starter._session.directory.register(group_entry("actor"), starter._session.messenger.endpoint)
    for name in ("taken", "actor"):
        with starter._session.service(SideBySide).together(), pytest.raises(ChannelExists, match=name):
            Channel.create(name)
        with pytest.raises(ChannelExists, match="a group or a channel of this name is there already"):
            Channel.create(name)


def begin(starter, name):
    started = Promise()
    starter.begin(StartChannel(ChannelSpec(name)), started)
    return started


def test_of_two_that_create_a_name_at_the_same_time_one_gets_it(starter):
    starter.may_start.clear()
    wanted = [begin(starter, "twice") for _ in range(2)]
    starter.may_start.set()
    assert all(started.wait(DEADLINE_S) for started in wanted)
    (error,) = (started.exception() for started in wanted if started.exception() is not None)
    assert isinstance(error, ChannelExists)
    assert works(Channel.connect("twice", timeout_s=DEADLINE_S))


def test_a_process_that_does_not_start_fails_every_channel_that_waits_for_it(starter):
    starter.may_start.clear()
    starter.problem = LaunchError("Channels", "no room")
    wanted = [begin(starter, name) for name in "ab"]
    starter.may_start.set()
    for name, started in zip("ab", wanted, strict=True):
        assert started.wait(DEADLINE_S)
        with pytest.raises(ChannelError, match=f"channel '{name}': its process did not start: .*no room"):
            started.result()
        assert started.exception().__cause__ is starter.problem
    starter.problem = None
    assert works(Channel.create("a"))


class DiesAtFirst(LocalStarter):
    """Its first process dies when it is to hold a channel."""

    def host(self, session):
        if self.ranks:
            super().host(session)
        else:
            session.messenger.serve(
                HOLD_CHANNEL, lambda _: threading.Thread(target=session.close).start(), HoldChannel
            )


def test_a_channel_whose_process_dies_before_it_holds_it_goes_to_another(session):
    session.provide(Topology, Topology.parse("1x4"))
    starter = session.service(DiesAtFirst)
    session.provide(Starter, starter)
    set_current(session)
    assert works(Channel.create("survives"))
    assert len(starter.ranks) == 2
    for rank in starter.living():
        rank.kill()


def a_worker(starter, group):
    """The session of a rank on node 1."""
    session = starter._session
    worker = Session(session.secret, f"{group}:0", home=session.home)
    session.directory.register(group_entry(group), session.messenger.endpoint, {"world_size": 1}, again=True)
    about = {"placement": pickle.dumps(starter._anywhere_on(1))}
    worker.directory.register(worker.name, worker.messenger.endpoint, about)
    return worker


def test_a_worker_begins_several_channels_at_once_and_hears_which_name_is_taken(starter):
    Channel.create("taken")
    starter.may_start.clear()
    with a_worker(starter, "actor") as worker:
        block = worker.service(SideBySide)

        def begin_three():
            with block.together():
                good = [Channel.create(f"of-a-worker-{number}") for number in range(2)]
                bad = Channel.create("taken")
                with pytest.raises(ChannelExists, match="taken"):
                    bad.put("x")
                starter.may_start.set()
                assert all(works(channel) for channel in good)

        with pytest.raises(ChannelExists, match="taken"):
            begin_three()
        assert works(Channel.connect("of-a-worker-1", timeout_s=0))
    assert [placement.node_rank for placement in starter.placements] == [0, 1]


@pytest.mark.parametrize("block", ["alone", "together"])
def test_a_successor_has_its_predecessors_channel_and_is_told_of_options_that_differ(
    starter, block, tmp_path
):
    with a_worker(starter, "actor"):
        Channel.create("made", maxsize=4, successor_s=90).put("before")
        Channel.create("durable", durable=tmp_path / "journal")
        with pytest.raises(ChannelExists, match="a group or a channel of this name is there already"):
            Channel.create("made", maxsize=4, successor_s=90)
    with a_worker(starter, "actor") as successor:
        together = successor.service(SideBySide).together() if block == "together" else nullcontext()
        with together:
            told = "'actor:0' before this one created it with maxsize=4 and not 8, successor_s=90.0 and not 30.0: "
            with pytest.raises(ChannelExists, match=told):
                Channel.create("made", maxsize=8)
            with pytest.raises(ChannelExists, match="survives='machine' and not 'process'"):
                Channel.create("durable", durable=tmp_path / "journal", survives="process")
            made = Channel.create("made", maxsize=4, successor_s=90)
            durable = Channel.create("durable", durable=tmp_path / "journal")
            new = Channel.create("new")
        assert made.get(timeout_s=DEADLINE_S) == "before"
        assert works(durable)
        assert works(new)
    with a_worker(starter, "critic"), pytest.raises(ChannelExists, match="is there already"):
        Channel.create("made", maxsize=4, successor_s=90)


@pytest.mark.parametrize("step", ["_place_and_open", "_run"])
def test_a_channel_is_started_once_threads_can_be_had(starter, monkeypatch, step):
    asker = a_worker(starter, "actor")
    refused = refuse_thread(monkeypatch, step)
    asked = asker.messenger.request(
        starter._session.home, START_CHANNEL, StartChannel(ChannelSpec("rollouts"))
    )
    assert asked.wait(DEADLINE_S)
    assert asked.exception(0) is None
    assert refused.is_set()
    asker.close()


def test_a_channel_whose_asker_gave_up_while_it_was_started_is_held_by_nobody(starter, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.worker.channel_starter.WARM_S", 0.0)
    session = starter._session
    starter.may_start.clear()
    asker = a_worker(starter, "actor")
    asked = asker.messenger.request(session.home, START_CHANNEL, StartChannel(ChannelSpec("rollouts")))
    wait_until(lambda: starter.placements)
    assert starter.placements[0].node_rank == 1, "beside its asker"
    asked.cancel()
    asker.directory.list()  # answered after the cancellation was heard
    starter.may_start.set()
    wait_until(lambda: starter.ranks)
    assert starter.ranks[0].exited.result(DEADLINE_S) == "it was asked to end"
    assert channels_of(session) == {}
    asker.close()


@pytest.mark.interrupted
def test_a_create_that_is_interrupted_anywhere_leaves_a_channel_that_works_or_none(starter, alarms):
    created, num_raised = ["the-first", "the-second"], 0
    for name in created:
        began = time.monotonic()
        Channel.create(name)
    took_s = time.monotonic() - began
    names = [f"interrupted-{number}" for number in range(200)]
    # On a busy machine the first hardly let a call come to its end, on another one the last interrupt few.
    for begin, max_delay_s in ((0, 0.0015), (100, max(0.02, 4 * took_s))):
        alarm = alarms(begin, max_delay_s)
        for name in names[begin : begin + 100]:
            alarm.interrupt(lambda name=name: created.append(Channel.create(name).name))
        num_raised += alarm.num_raised
    assert num_raised > 20
    assert len(created) > 20
    directory = starter._session.directory
    # What was given up at the last moment is deleted a moment later, on both sides.
    wait_until(
        lambda: set(starter._names.values()) == set(channels_of(starter._session)) and not late(starter)
    )
    there = set(channels_of(starter._session))
    assert there >= set(created)
    # An interruption between the end of `create` and the next statement cannot be told from one after it.
    assert len(there) - len(created) <= 3
    assert all(works(Channel.connect(name, timeout_s=0)) for name in there)
    gone = [name for name in names if name not in there]
    assert all(works(Channel.create(name)) for name in gone[:20])
    assert not [entry.name for entry in directory.list(group_entry("")) if entry.name in gone[20:]]


def late(starter):
    """Channels that are still on their way, or on their way out."""
    return len(starter._pool._process_of) - len(starter._names)


def test_a_durable_channel_whose_process_dies_is_held_by_another_one(starter, events, tmp_path):
    channel = Channel.create("durable", durable=tmp_path / "journal")
    channel.put("item")
    waiting = channel.get(queue_name="later", async_op=True)
    starter.ranks[0].kill("process 7 was killed")
    channel.put("behind", queue_name="later", timeout_s=DEADLINE_S)
    assert waiting.wait(DEADLINE_S) == "behind"
    assert channel.get(timeout_s=DEADLINE_S) == "item"
    wait_until(lambda: events(ChannelRestored))
    (restored,) = events(ChannelRestored)
    assert (restored.name, restored.epoch) == ("durable", 2)
    assert starter.placements[1] == starter.placements[0]
    channel.delete(timeout_s=DEADLINE_S)
    assert starter.ranks[1].exited.result(DEADLINE_S) == "it was asked to end"
    assert not (tmp_path / "journal").exists()


def test_a_durable_channel_that_dies_again_and_again_is_given_up_and_its_journal_kept(
    starter, events, monkeypatch, tmp_path, caplog
):
    monkeypatch.setattr("rlinf_scheduler.worker.channel_starter.AGAIN_S", 0.01)
    channel = Channel.create("durable", durable=tmp_path / "journal")
    channel.put("item")
    starter.problem = LaunchError("Channels", "no room on the node")
    waiting = channel.get(queue_name="later", async_op=True)
    starter.ranks[0].kill("process 7 was killed")
    with pytest.raises(ChannelLost, match=r"died 5 times in 60 s; its journal is kept.*no room on the node"):
        waiting.wait(DEADLINE_S)
    with pytest.raises(ChannelLost, match="its journal is kept"):
        Channel.connect("durable", timeout_s=DEADLINE_S)
    wait_until(lambda: events(WorkerGivenUp))
    (given_up,) = events(WorkerGivenUp)
    assert given_up.group == "durable"
    assert "no room on the node" in given_up.reason
    assert "does not come back yet: channel 'durable': its process did not start" in caplog.text
    starter.problem = None
    assert Channel.create("durable", durable=tmp_path / "journal").get(timeout_s=DEADLINE_S) == "item"


def test_a_durable_channel_that_cannot_be_created_leaves_its_journal_as_it_was(starter, tmp_path):
    (tmp_path / "journal").write_bytes(b"somebody's file")
    with pytest.raises(ChannelError, match="is not the journal of a channel"):
        Channel.create("durable", durable=tmp_path)
    assert (tmp_path / "journal").read_bytes() == b"somebody's file"
    assert works(Channel.create("durable"))
