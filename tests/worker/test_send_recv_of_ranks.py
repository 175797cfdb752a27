"""send and recv between workers of any two groups."""

import pytest
from ray_workers import Probe

from launched import launched
from rlinf.scheduler import PackedPlacementStrategy
from rlinf_scheduler.errors import WorkerError


@pytest.fixture
def pair(forked_job):
    """Two groups, on different nodes."""
    with launched(
        forked_job,
        left=(Probe, PackedPlacementStrategy(0, 1)),
        right=(Probe, PackedPlacementStrategy(4, 4)),
    ) as groups:
        yield groups


def test_two_groups_exchange_any_object(pair):
    left, right = pair
    there = left.execute_on(1).exchange("right", 0, {"a": [1, (2, 3)], "b": b"x"})
    back = right.exchange("left", 1, "answer")
    assert there.wait(60) == ["answer"]
    assert back.wait(60) == [{"a": [1, (2, 3)], "b": b"x"}]


def test_objects_arrive_in_the_order_of_their_sends(pair):
    left, right = pair
    sent = left.execute_on(0).send_many("right", 0, 200)
    assert right.recv_many("left", 0, 200).wait(60) == [list(range(200))]
    sent.wait(60)


def test_a_recv_that_nobody_answers_ends_at_its_deadline_naming_the_sender(pair):
    left, _ = pair
    with pytest.raises(WorkerError, match="right:0"):
        left.execute_on(0).recv_with_timeout("right", 0, 0.2).wait(60)


def test_a_group_launched_again_under_its_name_is_found_and_not_taken_for_the_dead_one(pair, forked_job):
    left, _ = pair
    for _ in range(2):
        again = Probe.create_group().launch(
            forked_job, placement_strategy=PackedPlacementStrategy(5, 5), name="again"
        )
        received = again.exchange("left", 0, "hello")
        assert left.execute_on(0).exchange("again", 0, "back").wait(60) == ["hello"]
        assert received.wait(60) == ["back"]
        again.terminate()
