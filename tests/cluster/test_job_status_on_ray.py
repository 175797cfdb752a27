"""What a job on a real Ray does, as another terminal sees it."""

import json
import os

import pytest

from programs import RLINF, run_program
from rlinf.scheduler import Channel, PackedPlacementStrategy, Worker
from waits import seen

DEADLINE_S = 60.0


class Producer(Worker):
    def produce(self, channel, number):
        end = self.connect_channel(channel)
        for item in range(number):
            end.put(item)
        return self.info.pid


def top():
    done = run_program("-c", RLINF, "top", "--once", "--json", "--job", os.getpid())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.ray
def test_another_terminal_sees_ranks_devices_and_channels(ray_cluster):
    Channel.create("seen from elsewhere")
    with Producer.create_group().launch(ray_cluster, PackedPlacementStrategy(5, 5), name="producer") as group:
        (pid,) = group.produce("seen from elsewhere", 3).wait(DEADLINE_S)

        def rank_in(data):
            (rank,) = next(each for each in data["groups"] if each["name"] == "producer")["ranks"]
            return rank

        # One that does not get to answer in time is told of so.
        data = seen(top, lambda data: rank_in(data)["state"] == "idle")
        found = ray_cluster.status()
    rank = rank_in(data)
    assert (rank["pid"], rank["state"], rank["node_rank"], rank["devices"]) == (pid, "idle", 1, [1])
    assert data["nodes"][1]["devices"][1]["holders"] == ["producer:0"]
    channel = next(each for each in data["channels"] if each["name"] == "seen from elsewhere")
    assert (channel["depth"], list(channel["putters"])) == (3, ["producer:0"])
    holder = next(each for each in data["groups"] if each["ranks"][0]["address"] == channel["held_by"])
    assert holder["kind"] == "channels"
    assert found.driver_pid == os.getpid()
    assert "producer:0" in [each.address for each in found.ranks]
