"""Groups that start side by side."""

import time

import pytest

from rlinf.scheduler import Channel, NodePlacementStrategy, Worker
from rlinf.scheduler.errors import GroupExists, LaunchError

pytestmark = pytest.mark.ray
DEADLINE_S = 60.0


class Sleeper(Worker):
    """Takes a while to be ready."""

    def __init__(self, seconds=0.0, problem=""):
        time.sleep(seconds)
        if problem:
            raise ValueError(problem)

    def where(self):
        return str(self.address)


def launch(cluster, name, *args):
    return Sleeper.create_group(*args).launch(
        cluster, placement_strategy=NodePlacementStrategy([0]), name=name
    )


def test_groups_of_a_block_start_together_and_are_ready_at_its_end(ray_cluster):
    with ray_cluster.starting():
        started = time.monotonic()
        groups = [launch(ray_cluster, f"together-{number}", 3.0) for number in range(3)]
        assert time.monotonic() - started < 3.0, "launch returns before the worker is there"
        assert [group.world_size for group in groups] == [1, 1, 1]
        # A call in the block waits for its group.
        assert groups[0].where().wait(DEADLINE_S) == ["together-0:0"]
    names = [group.where().wait(DEADLINE_S)[0] for group in groups]
    assert names == ["together-0:0", "together-1:0", "together-2:0"]
    for group in groups:
        group.terminate()


def test_a_launch_that_fails_ends_the_others_of_its_block(ray_cluster):
    def start_both():
        with ray_cluster.starting():
            launch(ray_cluster, "good-of-a-block")
            launch(ray_cluster, "bad-of-a-block", 0.0, "no luck")

    with pytest.raises(LaunchError, match="no luck"):
        start_both()
    # Both names are free again.
    deadline = time.monotonic() + DEADLINE_S
    while "good-of-a-block" in ray_cluster.groups:
        assert time.monotonic() < deadline
    again = launch(ray_cluster, "good-of-a-block")
    assert again.where().wait(DEADLINE_S) == ["good-of-a-block:0"]
    again.terminate()


def test_a_channel_of_a_block_is_there_at_once_and_outlives_a_launch_that_fails(ray_cluster):
    def create_and_fail():
        with ray_cluster.starting():
            channel = Channel.create("outlives-a-block")
            channel.put("kept", timeout_s=DEADLINE_S)
            launch(ray_cluster, "bad-beside-a-channel", 0.0, "no luck")

    with pytest.raises(LaunchError, match="no luck"):
        create_and_fail()
    channel = Channel.connect("outlives-a-block", timeout_s=DEADLINE_S)
    assert channel.get(timeout_s=DEADLINE_S) == "kept"
    channel.delete()


def test_a_name_is_refused_at_once_in_a_block(ray_cluster):
    first = launch(ray_cluster, "refused-twice")
    with pytest.raises(GroupExists), ray_cluster.starting():
        launch(ray_cluster, "refused-twice")
    assert first.where().wait(DEADLINE_S) == ["refused-twice:0"]
    first.terminate()
