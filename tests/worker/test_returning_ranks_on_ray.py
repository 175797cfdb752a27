"""A rank that is killed comes back, as a process of Ray's."""

import threading

import pytest
from returning_workers import Mortal

from rlinf.scheduler import Channel, PackedPlacementStrategy
from rlinf_scheduler.errors import WorkerDied
from rlinf_scheduler.events import WorkerReturned
from rlinf_scheduler.proc import birth_of
from waits import wait_until


@pytest.mark.ray
def test_a_killed_rank_comes_back_with_its_devices_and_what_it_had_on_lease_is_there_at_once(ray_cluster):
    returned = threading.Event()
    ray_cluster.subscribe(lambda event: isinstance(event, WorkerReturned) and returned.set())
    masked = PackedPlacementStrategy(4, 5)
    group = Mortal.create_group(7).launch(
        ray_cluster, masked, name="immortal", on_failure="restart", ready_when="load_weights"
    )
    channel = Channel.connect("made by 1 of immortal")
    channel.put("item")
    group.execute_on(0).publish(5).wait(60)
    environment = group.environment().wait(60)
    with pytest.raises(WorkerDied, match=r"rank 1 of 'immortal' died during lease_and_die\(\)"):
        group.execute_on(1).lease_and_die().wait(60)
    with channel.lease(timeout_s=60) as lease:  # long before the lease's own time is over
        assert (lease.item, lease.attempt) == ("item", 2)
    assert group.environment().wait(60) == environment
    assert group.execute_on(1).loaded().wait(60) == [(5, [5.0] * 4)]
    assert returned.wait(60)
    births = {pid: birth_of(pid) for *_, pid in group.who().wait(60)}
    group.terminate()
    wait_until(lambda: not any(birth and birth_of(pid) == birth for pid, birth in births.items()))
    channel.delete()
