"""broadcast among workers of two groups on two nodes."""

import pytest
from ray_workers import Broadcaster

from launched import launched
from rlinf.scheduler import PackedPlacementStrategy
from rlinf_scheduler.errors import WorkerError

GROUPS = [("learner", [0]), ("player", [0, 1, 2])]


@pytest.fixture
def groups(forked_job):
    """One learner on the first node; two players there and one on the second node."""
    with launched(
        forked_job,
        learner=(Broadcaster, PackedPlacementStrategy(0, 0)),
        player=(Broadcaster, PackedPlacementStrategy(2, 4)),
    ) as groups:
        yield groups


def test_every_member_gets_the_object_of_each_broadcast(groups):
    learner, player = groups
    received = player.receive(GROUPS, ("learner", 0), 5)
    assert learner.spread(GROUPS, ("learner", 0), 5).wait(60) == [True]
    assert received.wait(60) == [[0, 1, 2, 3, 4]] * 3


def test_a_member_that_cannot_exist_is_named_at_once(groups):
    learner, _ = groups
    with pytest.raises(WorkerError, match="there is no 'player:7': group 'player' has ranks 0 to 2"):
        learner.spread([("learner", 0), ("player", [7])], ("learner", 0), 1, timeout_s=1800).wait(60)


def test_a_worker_that_is_no_member_is_told_so(groups):
    _, player = groups
    with pytest.raises(WorkerError, match="'player:2' is none of the members of this broadcast"):
        player.execute_on(2).receive([("learner", 0), ("player", [0, 1])], ("learner", 0), 1).wait(60)
