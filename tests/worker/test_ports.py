import socket
import subprocess
import sys

import pytest

from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.host.ports import ReservedPort, _ephemeral_range, acquire_port


def test_two_reservations_never_share_a_port():
    held = [ReservedPort() for _ in range(20)]
    assert len({reserved.port for reserved in held}) == 20
    for reserved in held:
        reserved.release()


def test_a_released_port_can_be_had_again():
    first = ReservedPort()
    port = first.port
    first.release()
    second = ReservedPort()
    assert second.port == port
    second.release()


def test_the_port_of_a_rendezvous_is_the_groups_alone():
    reserved = ReservedPort()
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", reserved.port))
    with socket.socket() as server, socket.socket() as client:  # as torch's store does
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", reserved.port))
        server.listen()
        client.connect(("127.0.0.1", reserved.port))
        server.accept()[0].close()
    reserved.release()


def test_a_port_that_a_worker_asks_for_can_be_bound_in_any_way():
    with socket.socket() as server:
        server.bind(("127.0.0.1", acquire_port()))


def test_a_port_that_a_stranger_listens_on_is_passed_over():
    probe = ReservedPort()
    port = probe.port
    probe.release()
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", port))
        stranger.listen()
        reserved = ReservedPort()
        assert reserved.port != port
        reserved.release()


def test_ports_lie_outside_the_range_of_outgoing_connections():
    low, high = _ephemeral_range()
    reserved = ReservedPort()
    assert not low <= reserved.port <= high
    reserved.release()


# As the first ranks of so many groups, which look in the same order and have folders of their own.
PROCESSES = """
import os, sys, tempfile
from rlinf_scheduler.host import ports

usable = list(ports._candidates(ports._USUAL))
ports._candidates = lambda _: iter(usable)
begin, ended = os.pipe(), os.pipe()
for number in range(20):
    if os.fork() == 0:
        os.close(begin[1])
        os.close(ended[1])
        tempfile.tempdir = f"{sys.argv[1]}/{number}"
        os.mkdir(tempfile.tempdir)
        os.read(begin[0], 1)
        held = [ports.ReservedPort() for _ in range(3)]
        os.write(1, "".join(f"{each.port}\\n" for each in held).encode())
        os.read(ended[0], 1)
        os._exit(0)
os.close(begin[1])
for line in range(60):
    sys.stdin.readline()
"""


def test_twenty_that_reserve_at_once_never_have_the_same_whatever_their_folders(tmp_path):
    command = [sys.executable, "-c", PROCESSES, tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        ports = [process.stdout.readline() for _ in range(60)]
        process.stdin.close()
    assert all(port.strip().isdecimal() for port in ports)
    assert len(set(ports)) == 60


def test_of_a_fixed_range_the_last_quarter_is_lent_and_the_rest_is_for_the_jobs_processes():
    first = ReservedPort()
    ports = (first.port, first.port + 7)
    held = [first]
    with pytest.raises(ClusterError, match=f"no free TCP port between {ports[1] - 1} and {ports[1]} on this"):
        held.extend(ReservedPort(ports=ports) for _ in range(3))
    for reserved in held:
        reserved.release()
