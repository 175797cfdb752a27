"""Whom a channel may be placed beside."""

import pytest

from rlinf.scheduler.channel import ChannelSpec, StartChannel
from rlinf.scheduler.errors import ChannelError
from rlinf.scheduler.worker.channel_starter import ChannelStarter
from rlinf.scheduler.worker.supervision import group_entry


@pytest.fixture
def create(session):
    """Asks the driver for a channel's process beside a worker."""

    def ask(group, rank=None):
        session.service(ChannelStarter).start(StartChannel(ChannelSpec("rollouts"), group, rank))

    return ask


def begin_launch(session, name, **about):
    session.directory.register(group_entry(name), session.messenger.endpoint, about)


@pytest.mark.timeout(10)
def test_a_group_that_nobody_launches_is_an_error_at_once(create):
    with pytest.raises(ChannelError, match="there is no group 'nope' of workers: none was launched"):
        create("nope")


@pytest.mark.timeout(10)
def test_the_error_names_the_groups_there_are_and_the_nearest(session, create):
    begin_launch(session, "actor", world_size=2)
    begin_launch(session, "rollout", world_size=2)
    begin_launch(session, "rollouts")  # holds a channel
    with pytest.raises(ChannelError, match=r"there are 'actor', 'rollout'; did you mean 'rollout'\?"):
        create("rolout")


@pytest.mark.timeout(10)
@pytest.mark.parametrize("rank", [2, -1])
def test_a_rank_that_the_group_has_not_is_an_error_at_once(session, create, rank):
    begin_launch(session, "actor", world_size=2)
    with pytest.raises(ChannelError, match=f"group 'actor' has ranks 0 to 1, not {rank}"):
        create("actor", rank)


def test_a_group_that_is_being_launched_is_waited_for(session, create, monkeypatch):
    monkeypatch.setattr("rlinf.scheduler.worker.channel_starter._AFFINITY_TIMEOUT_S", 0.3)
    begin_launch(session, "actor", world_size=2)
    with pytest.raises(ChannelError, match=r"beside 'actor:1': .* after 0\.3"):
        create("actor", 1)
