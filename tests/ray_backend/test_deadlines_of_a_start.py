"""What Ray waits for has the deadline of the start, not Ray's own, and Ray is afterwards as it was."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray._private import services
from ray._private.node import Node

from fake_gcs import listening
from rlinf_scheduler.errors import ClusterTimeout
from rlinf_scheduler.ray_backend import backend
from rlinf_scheduler.ray_backend.patches import ended_within

VARIABLE = "RAY_gcs_server_port_wait_time_s"
ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from rlinf.scheduler import Cluster
from rlinf_scheduler.errors import ClusterError
try:
    Cluster(start_timeout_s=8, **{sys.argv[1]: sys.argv[2]})
except ClusterError as error:
    print(error)
"""


def test_a_service_that_does_not_answer_is_waited_for_until_the_deadline():
    with listening(lambda question: b"no word of Ray's") as (host, port):
        began = time.monotonic()
        node = SimpleNamespace(gcs_address=f"{host}:{port}")
        with (
            pytest.raises(ClusterTimeout, match=f"what listens at {host}:{port} does not answer"),
            ended_within(1),
        ):
            Node._init_gcs_client(node)
    assert time.monotonic() - began < 30


def test_nodes_are_not_asked_for_longer_than_the_deadline_where_rays_service_is_silent(monkeypatch):
    with listening(lambda question: b"no word of Ray's") as (host, port):
        monkeypatch.setattr(backend, "ray_address", lambda: f"{host}:{port}")
        with pytest.raises(ClusterTimeout, match=f"what listens at {host}:{port} does not answer"):
            backend.wait_for_nodes(1, 0.5)


def test_a_node_that_does_not_join_is_waited_for_until_the_deadline():
    with pytest.raises(ClusterTimeout, match="has not joined its Ray after 0 s"), ended_within(0):
        services.get_node("127.0.0.1:1", "some node")


def test_ray_is_as_it_was_afterwards(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    before = Node._init_gcs_client, services.get_node, services.get_node_to_connect_for_driver
    with ended_within(2.5):
        assert os.environ[VARIABLE] == "3"
    assert before == (Node._init_gcs_client, services.get_node, services.get_node_to_connect_for_driver)
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("wanted", [("simulate", "1x2"), ("address", "local")])
def test_where_the_loopback_is_down_no_ray_is_started(wanted):
    command = [shutil.which("unshare") or "unshare", "-n", sys.executable, "-c", PROGRAM, *wanted]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=100,
        )
    except FileNotFoundError:
        pytest.skip("there is no `unshare` here")
    if "unshare failed" in done.stderr:
        pytest.skip(f"no namespace can be had: {done.stderr}")
    assert (
        "127.0.0.1, which leads nowhere here (Network is unreachable): bring the loopback up" in done.stdout
    )
    assert done.stderr == ""
