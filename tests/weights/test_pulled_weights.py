"""Weights of another machine, pulled by NIXL: with real processes, over TCP; and what comes of each that cannot."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

import pull_peers
from pull_peers import SIZE_BYTES
from rlinf_scheduler.comm.pull.agent import PullError, net_devices, nixl_stack
from rlinf_scheduler.comm.pull.records import pull_is_wanted
from rlinf_scheduler.errors import ConfigError, PeerDied
from waits import wait_until
from weights_job import answer_of

needs_nixl = pytest.mark.skipif(
    find_spec("nixl") is None, reason="NIXL is not installed: pip install 'nixl>=1.5.1,<1.6'"
)
pytestmark = pytest.mark.timeout(180)
OPTIONS = {"timeout_s": 60}


class Pair:
    """A publisher here and a reader there, each a process of its own."""

    def __init__(self, job, publisher=(), reader=()):
        self._job = job
        self.publisher, self.publishing, _ = job.start(pull_peers.publish, "actor:0", dict(publisher))
        self.reader, self.reading, _ = job.start(pull_peers.fetch, "rollout:0", dict(reader), machine="there")

    def publish(self, version):
        self.publishing.send(version)
        assert answer_of(self.publishing) == version

    def begin(self, **options):
        self.reading.send(("fetch", OPTIONS | options))

    def fetched(self):
        self.reading.send(("wait",))
        return answer_of(self.reading)

    def fetch(self, **options):
        self.begin(**options)
        return self.fetched()

    def in_the_middle(self):
        """Return when a part of what is fetched is here, and a part is on its way."""
        self.reading.send(("pause",))
        self.begin()
        assert answer_of(self.reading) == "in the middle"

    def go_on(self):
        self.reading.send(("go",))

    def pulled(self):
        """What the reader says that it has pulled."""
        self.reading.send(("pulled",))
        stats, _ = answer_of(self.reading)
        return stats

    def lent(self):
        self.publishing.send(None)
        return answer_of(self.publishing)[1]


@needs_nixl
def test_a_version_is_pulled(job):
    pair = Pair(job, publisher={"wheel": "nixl"}, reader={"wheel": "nixl"})
    for version in range(1, 4):
        pair.publish(version)
        assert pair.fetch(min_version=version) == (version, {float(version)})
    stats = pair.pulled()
    assert (stats.stack, stats.fell_back, stats.why) == (nixl_stack(), 0, "")
    assert 2.9 * SIZE_BYTES < stats.size_bytes <= 3.01 * SIZE_BYTES, "the first bytes come with the answer"
    wait_until(lambda: not pair.lent())


@needs_nixl
def test_neighbours_read_what_one_of_them_has_pulled(job):
    pair = Pair(job)
    _, second, _ = job.start(pull_peers.fetch, "rollout:1", {}, machine="there")
    pair.publish(1)
    assert pair.fetch() == (1, {1.0})
    second.send(("fetch", OPTIONS))
    second.send(("wait",))
    assert answer_of(second) == (1, {1.0})
    second.send(("pulled",))
    assert answer_of(second)[0].pieces == 0


@needs_nixl
def test_a_third_machine_pulls_from_the_second(job):
    pair = Pair(job)
    others = [
        job.start(pull_peers.fetch, f"rollout:{number}", {}, machine=f"there-{number}")[1]
        for number in range(1, 4)
    ]
    pair.publish(1)
    assert pair.fetch() == (1, {1.0})
    for other in others:
        other.send(("fetch", OPTIONS))
    for other in others:
        other.send(("wait",))
        assert answer_of(other) == (1, {1.0})
        other.send(("pulled",))
        stats, _ = answer_of(other)
        assert stats.pieces
        assert (stats.fell_back, stats.why) == (0, "")


@pytest.mark.parametrize(
    ("publisher", "reader", "why"),
    [
        ({"pull": False, "stack": ""}, {"stack": "nixl 1.5.1"}, "'actor:0' does not pull"),
        ({"stack": ""}, {"stack": "nixl 1.5.1"}, "'actor:0' has no nixl, and its reader nixl 1.5.1"),
        (
            {"stack": "nixl 1.5.1"},
            {"stack": "nixl 0.1.0"},
            "'actor:0' has nixl 1.5.1, and its reader nixl 0.1.0",
        ),
        ({"stack": "nixl 0.1.0"}, {"stack": ""}, "nixl is not installed here"),
    ],
    ids=["the publisher does not", "it has none", "versions differ", "the reader has none"],
)
def test_who_cannot_both_pull_sends_bytes_and_says_why(job, publisher, reader, why):
    pair = Pair(job, publisher, reader)
    pair.publish(1)
    assert pair.fetch() == (1, {1.0})
    stats = pair.pulled()
    assert stats.pieces == 0
    assert why in stats.why
    assert bool(stats.fell_back) == bool(stats.stack)


@needs_nixl
@pytest.mark.parametrize("refuse", ["register", "add", "begin", "is_done", "__init__"])
@pytest.mark.parametrize("where", ["publisher", "reader"])
def test_what_nixl_refuses_comes_as_bytes(job, where, refuse):
    pair = Pair(job, **{where: {"refuse": refuse}})
    for version in (1, 2):
        pair.publish(version)
        assert pair.fetch(min_version=version) == (version, {float(version)})
    stats = pair.pulled()
    fails = where == "reader" or refuse in {"register", "__init__"}
    assert (bool(stats.pieces), bool(stats.fell_back)) == (not fails, fails)
    assert ("the test refuses it" in stats.why) == fails
    wait_until(lambda: not pair.lent())


@needs_nixl
def test_a_publisher_that_is_killed_in_the_middle_ends_the_fetch_with_its_death(job):
    pair = Pair(job)
    pair.publish(1)
    pair.in_the_middle()
    pair.publisher.kill()
    pair.publisher.join()
    pair.go_on()
    assert isinstance(pair.fetched(), PeerDied)
    wait_until(lambda: pair.pulled().fell_back)


@needs_nixl
def test_its_successor_is_pulled_from(job):
    pair = Pair(job)
    pair.publish(1)
    pair.in_the_middle()
    pair.publisher.kill()
    pair.publisher.join()
    pair.go_on()
    assert isinstance(pair.fetched(), PeerDied)
    _, publishing, _ = job.start(pull_peers.publish, "actor:1", {})
    publishing.send(2)
    assert answer_of(publishing) == 2
    assert pair.fetch(min_version=2) == (2, {2.0})


@needs_nixl
def test_a_reader_that_is_killed_in_the_middle_holds_nothing(job):
    pair = Pair(job)
    pair.publish(1)
    pair.in_the_middle()
    assert pair.lent()
    pair.reader.kill()
    pair.reader.join()
    _, reading, _ = job.start(pull_peers.fetch, "rollout:1", {}, machine="there")
    reading.send(("fetch", OPTIONS))
    reading.send(("wait",))
    assert answer_of(reading) == (1, {1.0})
    wait_until(lambda: not pair.lent())


@needs_nixl
def test_a_pull_that_stands_still_is_given_up(job):
    pair = Pair(job, reader={"stall_s": 0.5})
    pair.publish(1)
    pair.in_the_middle()
    os.kill(pair.publisher.pid, signal.SIGSTOP)
    try:
        pair.go_on()
        wait_until(lambda: pair.pulled().fell_back)
    finally:
        os.kill(pair.publisher.pid, signal.SIGCONT)
    assert pair.fetched() == (1, {1.0})
    assert "a piece has not arrived in 0.5 s" in pair.pulled().why
    pair.publish(2)
    assert pair.fetch(min_version=2) == (2, {2.0})
    wait_until(lambda: not pair.lent())


@needs_nixl
def test_a_fetch_that_is_dropped_in_the_middle_holds_nothing(job):
    pair = Pair(job)
    pair.publish(1)
    pair.in_the_middle()
    pair.reading.send(("drop",))
    pair.go_on()
    wait_until(lambda: not pair.lent())
    assert pair.fetch() == (1, {1.0})
    wait_until(lambda: not pair.lent())


@needs_nixl
def test_a_version_that_is_replaced_in_the_middle_is_whole(job):
    pair = Pair(job)
    pair.publish(1)
    pair.in_the_middle()
    for version in range(2, 5):
        pair.publish(version)
    pair.go_on()
    assert pair.fetched() == (1, {1.0})
    assert pair.fetch(min_version=4) == (4, {4.0})


@needs_nixl
def test_a_forked_child_ends_and_its_parent_goes_on(job):
    _, publishing, _ = job.start(pull_peers.publish, "actor:0", {})
    publishing.send(1)
    assert answer_of(publishing) == 1
    _, pipe, _ = job.start(pull_peers.fork_while_pulling, "rollout:0", {}, machine="there")
    assert answer_of(pipe) == 1
    ended, version, (stats, _) = answer_of(pipe)
    assert (ended, version, stats.fell_back) == (7, 1, 0)


@needs_nixl
def test_it_listens_on_its_own_address_alone(job):
    pair = Pair(job)
    pair.publish(1)
    assert pair.fetch() == (1, {1.0})
    for process in (pair.publisher, pair.reader):
        assert {address for address, _ in _listens(process.pid)} == {"0100007F"}


def _listens(pid):
    """Addresses and ports (hex, as the kernel writes them) that a process listens on, over IPv4."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        target = str(entry.readlink())
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {tuple(row[1].split(":")) for row in rows if row[3] == "0A" and row[9] in inodes}


def test_an_address_that_no_interface_has_is_refused():
    assert net_devices("127.0.0.1").split(",")[0] == "lo"
    with pytest.raises(PullError, match=r"no network interface has the address 203\.0\.113\.77"):
        net_devices("203.0.113.77")


def test_nothing_is_pulled_unless_a_user_wants_it(monkeypatch):
    monkeypatch.delenv("RLINF_PULL", raising=False)
    assert not pull_is_wanted()
    monkeypatch.setenv("RLINF_PULL", "nixl")
    assert pull_is_wanted()
    monkeypatch.setenv("RLINF_PULL", "ucx")
    with pytest.raises(ConfigError, match="RLINF_PULL is 'ucx'; it takes 'nixl', or 'off'"):
        pull_is_wanted()
