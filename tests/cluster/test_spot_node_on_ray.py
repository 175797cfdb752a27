"""A node in the foreground that is told to end: jobs have the time that it was given to leave it."""

import json
import signal
from pathlib import Path

import pytest

from machine_fixtures import made_or_skipped
from programs import Program
from rlinf.testing.hosts import HostFleet

PROGRAM = Path(__file__).with_name("job_on_a_spot_node.py")
DEADLINE_S, DRAIN_S = 200.0, 120
SETTINGS = ["--num-cpus", "1", "--include-log-monitor", "false", "--object-store-memory", "83886080"]

pytestmark = [pytest.mark.ray(own=True), pytest.mark.timeout(400)]


def test_at_sigterm_ranks_leave_the_node_and_it_ends_as_soon_as_they_have():
    with made_or_skipped(lambda: HostFleet(2)) as fleet:
        fleet.start_nodes([0])
        joining = (
            "node",
            "start",
            "--address",
            fleet.address,
            "--rank",
            "1",
            "--block",
            "--drain-s",
            str(DRAIN_S),
        )
        with fleet.hosts[1].rlinf(*joining, "--", *SETTINGS) as node:
            try:
                assert "started node 1" in node.stdout.readline()
                host = fleet.hosts[0]
                with Program(PROGRAM, with_ray=True, env=host.environment, machine=host.machine) as job:
                    try:
                        assert job.stdout.readline() == "[0, 1]\n"
                        node.send_signal(signal.SIGTERM)
                        assert job.wait(DEADLINE_S) == 0, job.stderr.read()
                        said = job.stdout.read()
                    finally:
                        job.kill()
                assert node.wait(DEADLINE_S) == 128 + signal.SIGTERM
            finally:
                node.kill()
    seen = json.loads(said.splitlines()[-1])
    assert seen["order"] == ["NodeDraining", "GroupResized", "RankDrained", "NodeLost"]
    rank, left_s = seen["draining"]
    assert (rank, 0 < left_s <= DRAIN_S) == (1, True)
    assert not seen["forced"], "it had time enough"
    assert seen["answers"] == [0]
