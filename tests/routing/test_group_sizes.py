"""How many ranks a group has is known of the group that there is, not of one that had its name before."""

import threading

import pytest

from comm_fixtures import DEADLINE_S
from rlinf_scheduler.comm import DirectoryClient, Messenger
from rlinf_scheduler.comm.directory import GROUPS, WORLD_SIZE
from rlinf_scheduler.routing.transfer import RanksOfGroups

GROUP = "rollout"


class Launches:
    """Launches a group, again and again, with its first rank as a member of this process."""

    def __init__(self, session):
        self._session = session
        self._first = None

    def launch(self, size):
        """End the group that there is, which the session's process notices, and launch another one."""
        if self._first is not None:
            self.end()
            self._session.directory.unregister(f"{GROUPS}{GROUP}")
        self._first = Messenger(self._session.secret, name=f"{GROUP}:0")
        names = DirectoryClient(self._first, self._session.messenger.endpoint)
        self._session.directory.register(
            f"{GROUPS}{GROUP}", self._session.messenger.endpoint, {WORLD_SIZE: size}
        )
        names.register(f"{GROUP}:0", self._first.endpoint)

    def end(self):
        lost, process_id = threading.Event(), self._first.endpoint.process_id
        self._session.messenger.on_peer_lost(lambda gone: lost.set() if gone == process_id else None)
        self._first.close()
        assert lost.wait(DEADLINE_S)


class Directory:
    """That of the session, and something happens right after one of its answers."""

    def __init__(self, directory, after, then):
        self._directory = directory
        self._left = after
        self._then = then

    def lookup(self, name, timeout_s):
        found = self._directory.lookup(name, timeout_s)
        self._left -= 1
        if self._left == 0:
            self._then()
        return found


@pytest.fixture
def launches(session):
    launches = Launches(session)
    yield launches
    launches.end()


@pytest.mark.parametrize("after", [1, 2], ids=["between the questions", "after the questions"])
def test_a_group_launched_again_while_its_size_is_asked_for_has_its_own_size(session, launches, after):
    launches.launch(2)
    sizes = RanksOfGroups(session)
    sizes._directory = Directory(session.directory, after, lambda: launches.launch(3))
    sizes.of(GROUP, DEADLINE_S)
    assert len(sizes.of(GROUP, DEADLINE_S)) == 3


def test_a_group_that_is_there_is_asked_for_once(session, launches):
    launches.launch(2)
    sizes = RanksOfGroups(session)
    assert len(sizes.of(GROUP, DEADLINE_S)) == 2
    sizes._directory = None
    assert len(sizes.of(GROUP, DEADLINE_S)) == 2
