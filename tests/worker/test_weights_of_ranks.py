"""Weights from the workers of one group to those of another, on both nodes."""

import pytest
from weights_workers import Actor, Learner

from launched import launched
from rlinf.scheduler import PackedPlacementStrategy
from rlinf_scheduler.errors import WorkerDied, WorkerError


@pytest.fixture
def groups(forked_job):
    """One learner, and two ranks on each node that fetch from it."""
    with launched(
        forked_job,
        learner=(Learner, PackedPlacementStrategy(0, 0)),
        fetchers=(Actor, PackedPlacementStrategy(2, 5)),
    ) as groups:
        yield groups


def test_every_rank_gets_every_version_whole(groups):
    learner, actors = groups
    fetching = actors.fetch_until(20)
    waiting = actors.fetch_beside(20)
    learner.publish_until(20).wait(60)
    for seen in fetching.wait(60):
        assert seen[-1][0] == 20
        assert all(values == [version] for version, values in seen)
    assert waiting.wait(60) == [20] * 4


def test_a_dead_publisher_is_noticed_and_another_takes_over(groups, forked_job):
    learner, actors = groups
    learner.publish(5).wait(60)
    assert actors.fetch().wait(60) == [(5, [5.0])] * 4
    assert {kind for kind, _ in actors.fetch_error(min_version=6, timeout_s=0.2).wait(60)} == {"CommTimeout"}
    waiting = actors.fetch_error(min_version=6)
    with pytest.raises(WorkerDied):
        learner.die().wait(60)
    for kind, text in waiting.wait(60):
        assert (kind, "weights/weights-of-a-test" in text) == ("PeerDied", True)
    successor = Learner.create_group().launch(
        forked_job, placement_strategy=PackedPlacementStrategy(6, 7), name="successor"
    )
    successor.execute_on(0).publish(6).wait(60)
    assert actors.fetch().wait(60) == [(6, [6.0])] * 4
    other = Learner.create_group().launch(
        forked_job, placement_strategy=PackedPlacementStrategy(1, 1), name="other"
    )
    with pytest.raises(WorkerError, match="'weights/weights-of-a-test' is taken, by process 'successor:0'"):
        other.publish(7).wait(60)
    successor.execute_on(1).publish(7).wait(60)
    assert actors.fetch().wait(60) == [(7, [7.0])] * 4
    successor.terminate()
    other.terminate()
