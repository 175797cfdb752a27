"""All processes of a job hear which ranks a group has, and what was sent before is not behind that."""

import pytest

from rlinf_scheduler.comm import ClusterSecret
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import GroupMembers

DEADLINE_S = 60.0
CALLS = 500


@pytest.fixture
def sessions():
    """The home, a rank, and who calls that rank; all are connected."""
    secret = ClusterSecret.generate()
    home = Session(secret, "driver")
    others = [Session(secret, name, home=home.home) for name in ("rollout:1", "actor:0")]
    for each in others:
        each.directory.register(each.name, each.messenger.endpoint)
    yield home, *others
    for each in (*others, home):
        each.close()


def test_every_process_hears_of_a_resize_once_and_older_news_changes_nothing(sessions):
    heard = {each.name: [] for each in sessions}
    for each in sessions:
        each.members.on_change.append(lambda members, name=each.name: heard[name].append(members.ranks))
    home, rank, _ = sessions
    home.members.tell(GroupMembers("rollout", (0, 2), epoch=2)).result(DEADLINE_S)
    assert all(each.members.known["rollout"].ranks == (0, 2) for each in sessions)
    rank.members.tell(GroupMembers("rollout", (0, 1, 2), epoch=1)).result(DEADLINE_S)
    home.members.tell(GroupMembers("rollout", (0, 1), epoch=0, launched_ns=1)).result(DEADLINE_S)
    assert heard == {each.name: [(0, 2), (0, 1)] for each in sessions}


def test_what_was_sent_before_its_sender_has_heard_arrives_before_a_rank_has_caught_up(sessions):
    _, rank, caller = sessions
    arrived, there = [], Promise()
    rank.messenger.serve("calls", lambda request: arrived.append(request.head), int)
    rank.messenger.serve("hello", lambda request: request.reply(None), None)
    caller.messenger.request(rank.messenger.endpoint, "hello", None, reply_type=None).result(DEADLINE_S)
    members = GroupMembers("rollout", (0,), epoch=1)

    def catch_up():
        caught_up = rank.members.catch_up(members)
        caught_up.add_done_callback(lambda _: there.set_result(len(arrived)))

    def call():
        for number in range(CALLS):
            caller.messenger.notify(rank.messenger.endpoint, "calls", number)
        assert "rollout" not in caller.members.known
        rank.messenger.submit(catch_up)

    caller.messenger.submit(call)
    assert there.result(DEADLINE_S) == CALLS
    assert caller.members.known["rollout"] == members
