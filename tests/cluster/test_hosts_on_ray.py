"""Jobs on three hosts with addresses of their own, made one cluster by `rlinf node start`: cut off, lost, and back."""

import contextlib
import json
import re
import select
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hosts_stories import LARGE_BYTES, MISTAKE, NUM_LARGE, NUM_LEFT

from machine_fixtures import made_or_skipped
from programs import Program
from rlinf.testing.hosts import HostFleet

PROGRAM = Path(__file__).with_name("hosts_stories.py")
# A rank is started on a busy machine for a minute, and some are before a story says something again.
DEADLINE_S = 240.0
# As in the stories; what ends then is told a little later on a busy machine.
UNREACHABLE_AFTER_S = 24.0
SOON_S = 30.0
# It was silent before the fault, or is looked at after the limit; and a busy machine takes its time.
LATE_S = 40.0

# The stories are told once, in the set-up of the first test that looks at them.
pytestmark = [pytest.mark.ray(own=True), pytest.mark.timeout(600)]


class Hands:
    """Does to the hosts what a story asks for; remembers what it has seen."""

    def __init__(self, fleet, joining):
        self.fleet = fleet
        self.seen = None
        self.seen_at = 0.0
        self.watched = None
        self.traffic = []
        self._joining = joining

    def do(self, what, *arguments):
        getattr(self, "_" + re.sub(r"\W+", "_", what))(*arguments)

    def _wait_for_nodes(self):
        self._joining.join(DEADLINE_S)

    def _unplug(self, rank):
        self.fleet.network.unplug(self.fleet.hosts[rank].machine)

    def _plug_in(self, rank):
        self.fleet.network.plug_in(self.fleet.hosts[rank].machine)

    def _mute(self, rank, towards):
        self.fleet.network.mute(self.fleet.hosts[rank].machine, self.fleet.hosts[towards].machine)

    def _unmute(self, rank, towards):
        self.fleet.network.unmute(self.fleet.hosts[rank].machine, self.fleet.hosts[towards].machine)

    def _lose_power(self, rank):
        self.fleet.lose_power(rank)

    def _stop_raylet(self, rank):
        signal.pidfd_send_signal(self._raylet(rank), signal.SIGSTOP)

    def _go_on_raylet(self, rank):
        signal.pidfd_send_signal(self._raylet(rank), signal.SIGCONT)

    def _raylet(self, rank):
        return self.fleet.descriptor(self.fleet.hosts[rank].raylet())

    def _lose_the_head(self, pid):
        self.watched = self.fleet.descriptor(pid)
        signal.pidfd_send_signal(self.fleet.descriptor(self.fleet.hosts[0].head()), signal.SIGKILL)

    def _note_traffic(self):
        self.traffic.append([host.machine.traffic() for host in self.fleet.hosts])

    def _seen(self, seen):
        self.seen = seen
        self.seen_at = time.monotonic()


def tell(hands, *stories, host=0):
    """Run a program's stories on a host; what it has seen, how it has ended, and how long after it has said that."""
    its = hands.fleet.hosts[host]
    hands.seen = None
    with Program(PROGRAM, *stories, with_ray=True, env=its.environment, machine=its.machine) as program:
        try:
            while select.select([program.stdout], [], [], DEADLINE_S)[0]:
                line = program.stdout.readline()
                if not line:
                    break
                hands.do(*json.loads(line))
                with contextlib.suppress(BrokenPipeError):
                    program.stdin.write("\n")
                    program.stdin.flush()
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(DEADLINE_S)
            end = {"status": program.returncode, "after_s": time.monotonic() - hands.seen_at}
        finally:
            program.kill()
        end["said"] = program.stderr.read()
        assert hands.seen is not None, end["said"]
    return hands.seen | {"end": end}


@pytest.fixture(scope="module")
def hands():
    with made_or_skipped(lambda: HostFleet(3)) as fleet:
        fleet.start_nodes([0])
        fleet.start_nodes([1])
        joining = threading.Thread(target=fleet.start_nodes, args=([2],))
        joining.start()
        yield Hands(fleet, joining)


@pytest.fixture(scope="module")
def seen(hands):
    return tell(hands, "first")


def test_a_node_that_joins_later_is_found(seen):
    assert seen["joined"] == 3


@pytest.mark.parametrize("rank", ["1", "2"], ids=["of one direction", "of both"])
def test_a_cut_is_told_of_within_seconds(seen, rank):
    after_s, reason = seen["told"][rank]
    assert after_s < SOON_S
    assert re.fullmatch(r"its raylet has not answered for \d+ s", reason)


def test_a_cut_that_is_mended_in_time_has_cost_nothing(seen):
    assert seen["mended"]["calls"][1] == ""
    assert seen["mended"]["recv"][1:] == ["", ["through"]]
    assert seen["mended"]["items"][2] == list(range(200))
    assert seen["mended"]["lost"] == []


def test_a_consumer_gets_what_a_dead_producers_host_holds_and_the_channels_host_sees_descriptors(hands, seen):
    assert seen["held"]["producer"][1] == "WorkerDied"
    assert seen["held"]["taken"] == [[0], *([number] for number in range(NUM_LARGE - NUM_LEFT))]
    before, after = hands.traffic
    channels, consumers, holders = (
        [now - then for then, now in zip(*ways, strict=True)] for ways in zip(before, after, strict=True)
    )
    moved_bytes = (NUM_LARGE - NUM_LEFT) * LARGE_BYTES
    assert sum(channels) < moved_bytes // 4  # it would be twice that; Ray has much to say on a busy machine
    assert consumers[0] > moved_bytes
    assert holders[1] > moved_bytes


def test_what_a_lost_host_held_is_lost_by_name(seen):
    assert seen["held"]["left"] == NUM_LEFT
    took_s, kind, text = seen["gone"]["held"]
    assert (kind, took_s < SOON_S) == ("ItemsLost", True)
    assert f"{NUM_LEFT} items put by 'producer:0' went with node 192.0.2.3" in text


@pytest.mark.parametrize(
    ("what", "error"),
    [("call", "WorkerDied"), ("its own", "WorkerDied"), ("get", "ChannelLost"), ("recv", "WorkerDied")],
)
def test_every_wait_for_a_lost_host_ends_soon_after_the_grace_with_the_node_as_its_cause(seen, what, error):
    took_s, kind, text = seen["gone"][what]
    assert kind == error
    assert took_s < UNREACHABLE_AFTER_S + LATE_S
    assert re.search("(unreachable|its raylet has not answered) for ", text)
    assert re.search(r"192\.0\.2\.[23]\b", text)
    assert what == "get" or re.search(r"node [12] \(192\.0\.2\.[23], [0-9a-f]{8}\)", text)


def test_a_host_without_power_and_one_whose_raylet_is_stopped_are_both_lost_and_told_apart(seen):
    (one, stopped), (two, silent) = seen["gone"]["both"][2]
    assert (one, two) == (1, 2)
    assert re.search(r"is gone: its raylet has not answered for \d+ s, at ", stopped)
    assert re.search(r"is gone: (unreachable for|its raylet has not answered for) ", silent)


def test_what_is_gone_is_refused_at_once_and_its_names_are_free(seen):
    took_s, kind, text = seen["gone"]["launch"]
    assert kind == "NodeLost"
    assert text.startswith("node 2 (192.0.2.3, ")
    assert seen["gone"]["later call"][1] == "WorkerDied"
    assert took_s < SOON_S
    assert seen["gone"]["its name"][1] == ""


def test_a_node_whose_raylet_goes_on_can_be_used_again(seen):
    assert seen["lost after"] == [2]
    assert seen["back"] == 2


@pytest.fixture(scope="module")
def seen_kept(hands, seen):
    told = tell(hands, "kept", "silent head", host=1)
    hands.do("plug in", 0)
    return told


def test_a_driver_begins_uses_and_ends_a_job_that_is_kept_on_another_host(seen_kept):
    assert seen_kept["group"] == seen_kept["hosts"] == ["192.0.2.1", "192.0.2.2"]


def test_a_driver_whose_head_falls_silent_is_told_and_ends_within_seconds_by_its_own_error(seen_kept):
    for what in ("job", "call"):
        took_s, _, text = seen_kept["silent head"][what]
        assert took_s < 4 + LATE_S
        assert re.search(r"Ray's head at 192\.0\.2\.1:6379 has not answered for \d+ s, at ", text)
    assert seen_kept["end"]["status"] == 1
    assert f"RuntimeError: {MISTAKE}" in seen_kept["end"]["said"]
    assert seen_kept["end"]["after_s"] < LATE_S


@pytest.fixture(scope="module")
def seen_later(hands, seen_kept):
    return tell(hands, "second")


def test_after_a_loss_a_job_takes_the_nodes_that_are_there(seen_later):
    assert seen_later["nodes"] == 1


def test_a_job_whose_ray_has_lost_its_head_is_left_and_says_why(hands, seen_later):
    assert select.select([hands.watched], [], [], 2 * SOON_S)[0]  # its ranks are gone
    for what, error in (("call", "WorkerDied"), ("launch", "ClusterError")):
        took_s, kind, text = seen_later["headless"][what]
        assert (kind, took_s < 4 + LATE_S) == (error, True)
        assert re.search(r"Ray's head at 192\.0\.2\.1:6379 has not answered for \d+ s, at ", text)
