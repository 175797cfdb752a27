"""Links between machines as the doctor measures them: three machines, one of which has a slow cable."""

import contextlib
import errno
import os
import socket
import threading

import pytest

from rlinf.testing.machines import MachineStar, MachinesUnavailable
from rlinf_scheduler.doctor import links as ways
from rlinf_scheduler.doctor.checks import check_links
from rlinf_scheduler.doctor.facts import ClusterFacts, NodeFacts, ProbedLink
from rlinf_scheduler.doctor.links import ProbeListener, probe_link, rounds_of

DEADLINE_S = 60.0
MB = 1_000_000
TOKEN = b"t" * 32


@pytest.fixture
def star():
    try:
        star = MachineStar(3)
    except MachinesUnavailable as error:
        pytest.skip(f"tests between machines need root or CAP_SYS_ADMIN, and veth and bridge: {error}")
    with star:
        yield star


def measured(one, other):
    """What a probe from one machine measures of the way to another, and back."""
    with other.entered():
        listener = ProbeListener(other.address, TOKEN, None)
    serving = threading.Thread(target=listener.serve)
    serving.start()
    with one.entered():
        speed = probe_link(other.address, listener.port, TOKEN)
    serving.join(DEADLINE_S)
    return ProbedLink(one.address, other.address, speed)


def test_a_cable_that_carries_much_less_is_told_of_with_its_node(star, monkeypatch):
    # What the others carry depends on how busy this machine is.
    monkeypatch.setattr(ways, "SLOW_TIMES", 3.0)
    star.slow_down(star.machines[2], 4 * MB)
    machines = star.machines
    nodes = tuple(NodeFacts(node_id=each.address, ip=each.address) for each in machines)
    pairs = [pair for pairs in rounds_of(range(3), 4) for pair in pairs]
    links = tuple(measured(machines[one], machines[other]) for one, other in pairs)
    there, back = check_links(ClusterFacts(nodes, links=links))
    assert there.node == back.node == nodes[2].name
    assert there.problem.startswith(f"the way to {nodes[0].name}, {nodes[1].name} carries ")
    assert back.problem.startswith(f"the way from {nodes[0].name}, {nodes[1].name} carries ")
    assert not there.is_fault
    assert "--interface" in there.remedy


def test_a_link_that_does_not_answer_is_told_of_with_both_ends():
    nodes = (NodeFacts(node_id="a", ip="10.0.0.1"), NodeFacts(node_id="b", ip="10.0.0.2"))
    (found,) = check_links(ClusterFacts(nodes, links=(ProbedLink("a", "b", error="timed out"),)))
    assert found.node == "node (10.0.0.1)"
    assert found.problem == (
        "what was sent to node (10.0.0.2) to measure the way did not come back: timed out"
    )


def test_who_does_not_know_the_token_is_turned_away_and_the_guest_is_let_in():
    listener = ProbeListener("127.0.0.1", TOKEN, None)
    serving = threading.Thread(target=listener.serve)
    serving.start()
    with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
        stranger.sendall(b"x" * 32)
        stranger.settimeout(DEADLINE_S)
        assert stranger.recv(1) == b""
    speed = probe_link("127.0.0.1", listener.port, TOKEN)
    serving.join(DEADLINE_S)
    assert not serving.is_alive()
    assert speed.round_trip_s > 0
    assert min(speed.sent_bytes_per_s, speed.received_bytes_per_s) > MB
    with pytest.raises(OSError, match="refused"):
        probe_link("127.0.0.1", listener.port, TOKEN)


def test_strangers_who_say_nothing_keep_no_guest_waiting():
    listener = ProbeListener("127.0.0.1", TOKEN, None)
    serving = threading.Thread(target=listener.serve)
    serving.start()
    with contextlib.ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", listener.port))) for _ in range(20)
        ]
        strangers[-1].sendall(TOKEN[:-1])
        for stranger in strangers:
            stranger.settimeout(DEADLINE_S)
        assert strangers[0].recv(1) == b""  # there are many: who came first has to go
        assert probe_link("127.0.0.1", listener.port, TOKEN).round_trip_s > 0
        serving.join(DEADLINE_S)
        assert not serving.is_alive()
        for stranger in strangers[1:]:
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""


def test_a_guest_who_comes_while_no_descriptor_is_left_waits_at_the_listener(monkeypatch):
    accept, refusals = socket.socket.accept, iter(range(2))

    def accept_later(listener):
        if next(refusals, None) is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listener)

    listener = ProbeListener("127.0.0.1", TOKEN, None)
    monkeypatch.setattr(socket.socket, "accept", accept_later)
    serving = threading.Thread(target=listener.serve)
    serving.start()
    assert probe_link("127.0.0.1", listener.port, TOKEN).round_trip_s > 0
    serving.join(DEADLINE_S)
    assert not serving.is_alive()
