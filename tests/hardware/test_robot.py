"""Robots: their settings, and whether they answer."""

import pickle
import socket

import pytest

from rlinf_scheduler.config import read_cluster_config
from rlinf_scheduler.errors import ClusterError, ConfigError, HardwareUnreachable
from rlinf_scheduler.hardware import RobotConfig, check_reachable
from rlinf_scheduler.planning import HardwareUnit


def robot(**settings):
    return HardwareUnit("Robot", settings.get("node_rank", 0), RobotConfig(**{"node_rank": 0, **settings}))


def mistake(**settings):
    hardware = {"type": "Robot", "configs": [{"node_rank": 0, **settings}]}
    with pytest.raises(ConfigError) as caught:
        read_cluster_config(
            {"cluster": {"node_groups": [{"label": "a", "node_ranks": 0, "hardware": hardware}]}}
        )
    return caught.value


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


@pytest.fixture
def closed_port():
    with socket.socket() as held:
        # Bound, so that nobody else takes it; not listening, so that connections are refused.
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_robot_that_listens_can_be_reached(listener):
    check_reachable([robot(address="127.0.0.1", port=listener.getsockname()[1], check="tcp")], timeout_s=60)
    connection, _ = listener.accept()
    with connection:
        assert connection.recv(1) == b""  # it was connected to, and left again


def test_robot_is_left_alone_unless_its_check_is_asked_for(listener):
    check_reachable([robot(), robot(address="127.0.0.1", port=listener.getsockname()[1])], timeout_s=60)
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_robots_that_do_not_answer_are_all_named(listener, closed_port):
    units = [
        robot(node_rank=3, address="127.0.0.1", port=closed_port, check="tcp"),
        robot(node_rank=4, address="127.0.0.1", port=listener.getsockname()[1], check="tcp"),
        robot(node_rank=5, address="no host", port=1, check="tcp"),
    ]
    with pytest.raises(HardwareUnreachable) as caught:
        check_reachable(units, timeout_s=60)
    first, second = caught.value.failures
    assert first == f"Robot of node 3 at 127.0.0.1:{closed_port}: connection refused"
    assert second.startswith("Robot of node 5 at no host:1: ")
    assert isinstance(caught.value, ClusterError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_robot_that_never_answers_is_given_up_at_the_deadline():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        with socket.create_connection(address), pytest.raises(HardwareUnreachable, match=r"within 0\.3 s"):
            # The one place in the queue is taken: the kernel leaves further connections without an answer.
            check_reachable([robot(address=address[0], port=address[1], check="tcp")], timeout_s=0.3)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"check": "tcp"}, "`check: tcp` connects to the robot: address and port must be given"),
        ({"check": "tcp", "address": "h"}, "`check: tcp` connects to the robot: port must be given"),
        ({"check": "ping"}, "this must be 'tcp' or 'none', not 'ping'"),
        ({"port": 0}, "this must be at least 1, not 0"),
        ({"port": 65536}, "this must be at most 65535, not 65536"),
        ({"port": "ssh"}, "this must be a whole number, not 'ssh'"),
    ],
)
def test_settings_that_cannot_be_are_mistakes(settings, problem):
    assert mistake(**settings).problem == problem
