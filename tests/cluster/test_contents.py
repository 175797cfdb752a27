"""What a job has: groups, channels and weights, as whoever asks is told."""

import numpy as np
import pytest

from rlinf.scheduler import Cluster, PackedPlacementStrategy, Worker
from rlinf.testing import LocalRuntime
from rlinf_scheduler.channel import Channel, ChannelSpec, channels_of
from rlinf_scheduler.host.info import group_entry
from rlinf_scheduler.session import Session
from rlinf_scheduler.weights import PublishedWeights, open_weights, published_weights
from rlinf_scheduler.worker.supervision import GroupEntry, groups_in


class Publisher(Worker):
    """Publishes, and says what it sees of the job."""

    def publish(self, version):
        self.publish_weights("listed", {"w": np.zeros(3)}, version)

    def look(self):
        cluster = Cluster()
        return sorted(cluster.groups), sorted(cluster.channels), cluster.weights


def test_groups_are_those_of_workers_by_name(session):
    session.directory.register(group_entry("rollout"), session.messenger.endpoint, {"world_size": 2})
    session.directory.register(group_entry("items"), session.messenger.endpoint)  # holds a channel
    assert groups_in(session) == {"rollout": GroupEntry("rollout", 2)}


def test_channels_are_told_with_what_they_were_created_with():
    with LocalRuntime() as session:
        Channel.create("rollouts", maxsize=7)
        session.directory.register("rollout:0", session.messenger.endpoint)
        (spec,) = channels_of(session).values()
        assert spec == ChannelSpec("rollouts", 7, channel_id=spec.channel_id, creator=spec.creator)
        assert spec.creator == ("driver", session.messenger.endpoint.process_id)
        assert Channel.connect("rollouts").maxsize == 7


def test_weights_are_told_with_the_version_that_their_publisher_has_now(session):
    assert published_weights(session) == {}
    other = Session(session.secret, "actor:0", home=session.home)
    for name, version in (("policy", 1), ("policy", 4), ("critic", 0)):
        other.service(open_weights).publish(name, {"w": np.zeros(3)}, version)
    session.service(open_weights).publish("own", {"w": np.zeros(3)}, 9)
    there = {"critic": (0, "actor:0"), "own": (9, "driver"), "policy": (4, "actor:0")}
    expected = {
        name: PublishedWeights(name, version, {process: 24}) for name, (version, process) in there.items()
    }
    assert published_weights(session) == expected
    assert published_weights(other) == expected
    other.close()


@pytest.mark.ray
def test_driver_and_workers_see_the_same_of_the_job(driver):
    group = Publisher.create_group().launch(driver, PackedPlacementStrategy(0, 0), name="publisher")
    Channel.create("listed", maxsize=3)
    group.publish(5).wait(60)
    assert driver.groups["publisher"] == GroupEntry("publisher", 1)
    assert driver.channels["listed"].maxsize == 3
    assert driver.weights == {"listed": PublishedWeights("listed", 5, {"publisher:0": 24})}
    ((groups, channels, weights),) = group.look().wait(60)
    assert (groups, channels) == (sorted(driver.groups), sorted(driver.channels))
    assert weights == driver.weights
    assert "listed" not in groups
    group.terminate()
    assert driver.weights == {}
    assert "publisher" not in driver.groups
    Channel.connect("listed").delete()
