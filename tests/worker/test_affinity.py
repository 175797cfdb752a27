"""Whom a channel may be placed beside."""

import signal
import threading

import pytest

from rlinf_scheduler.channel import ChannelSpec, StartChannel, Starter
from rlinf_scheduler.channel.starting import START_CHANNEL
from rlinf_scheduler.errors import ChannelError
from rlinf_scheduler.host.info import group_entry
from rlinf_scheduler.session import Session
from rlinf_scheduler.worker.channel_starter import ChannelStarter

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Who waits for a group does so for longer than a test may take."""
    monkeypatch.setattr("rlinf_scheduler.worker.channel_starter._AFFINITY_TIMEOUT_S", 600.0)


@pytest.fixture
def create(session):
    """Asks the driver for a channel's process beside a worker."""

    def ask(group, rank=None):
        session.service(ChannelStarter).start(StartChannel(ChannelSpec("rollouts"), group, rank))

    return ask


def begin_launch(session, name, **about):
    session.directory.register(group_entry(name), session.messenger.endpoint, about)


def test_a_group_that_nobody_launches_is_an_error_at_once(create):
    with pytest.raises(ChannelError, match="there is no group 'nope' of workers: none was launched"):
        create("nope")


def test_the_error_names_the_groups_there_are_and_the_nearest(session, create):
    begin_launch(session, "actor", world_size=2)
    begin_launch(session, "rollout", world_size=2)
    begin_launch(session, "rolouts")  # holds a channel
    with pytest.raises(ChannelError, match=r"there are 'actor', 'rollout'; did you mean 'rollout'\?"):
        create("rolout")


@pytest.mark.parametrize("rank", [2, -1])
def test_a_rank_that_the_group_has_not_is_an_error_at_once(session, create, rank):
    begin_launch(session, "actor", world_size=2)
    with pytest.raises(ChannelError, match=f"group 'actor' has ranks 0 to 1, not {rank}"):
        create("actor", rank)


def test_a_group_that_is_being_launched_is_waited_for(session, create, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.worker.channel_starter._AFFINITY_TIMEOUT_S", 0.3)
    begin_launch(session, "actor", world_size=2)
    with pytest.raises(ChannelError, match=r"beside 'actor:1': .* after \d+\.\d s"):
        create("actor", 1)


@pytest.mark.interrupted
def test_a_worker_whose_create_is_interrupted_gives_up_what_it_asked_for(session):
    given_up, asked = threading.Event(), threading.Event()

    def on_start(request):
        request.on_cancel(given_up.set)
        asked.set()

    session.messenger.serve(START_CHANNEL, on_start, StartChannel)
    asker = Session(session.secret, "actor:0", home=session.home)
    asker.service(Starter)

    def interrupt(number, frame):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        threading.Thread(
            target=lambda: asked.wait(DEADLINE_S) and signal.setitimer(signal.ITIMER_REAL, 0.01, 0.05)
        ).start()
        with pytest.raises(KeyboardInterrupt):
            asker.service(Starter).start(StartChannel(ChannelSpec("rollouts")))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert given_up.wait(DEADLINE_S)
    asker.close()
