"""Starting and stopping a node: what `ray start` is given, what is refused, and what is left."""

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace

import msgspec
import pytest

from fake_gcs import as_ray, listening
from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.proc import held, living, marked, send, wait_for_ends
from rlinf_scheduler.ray_backend import this_node
from rlinf_scheduler.ray_backend.this_node import (
    NodeOptions,
    keep_record,
    processes_of,
    read_records,
    start_node,
    stop_node,
)

HEAD = NodeOptions(ip="127.0.0.9", port=6555)


def running(record):
    own = processes_of(record)
    return [process for process in living() if process in own]


def left(machine):
    """What runs of a node that did not start: all of it has the test's home."""
    return marked("HOME", machine["HOME"])


def test_a_head_asks_for_a_token_that_is_made_and_is_told_its_rank(machine, private):
    started = start_node(replace(HEAD, node_rank=3), machine)
    said = machine.said()
    assert said["arguments"][:3] == ["start", "--head", "--port=6555"]
    assert "--node-ip-address=127.0.0.9" in said["arguments"]
    assert f"--temp-dir={private}/ray" in said["arguments"]
    assert "--labels=rlinf-copies=around-the-cache" in said["arguments"]
    assert said["environment"]["GLIBC_TUNABLES"].startswith("glibc.cpu.x86_non_temporal_threshold=")
    assert said["environment"]["RAY_AUTH_MODE"] == "token"
    assert said["environment"]["RLINF_NODE_RANK"] == "3"
    assert said["environment"]["RAY_TMPDIR"] == str(private)
    assert started.token.path.stat().st_mode & 0o777 == 0o600
    assert started.token.value not in str(said)
    assert read_records() == [started.record]
    assert len(running(started.record)) == 1
    assert stop_node(started.record) == 1
    assert read_records() == []
    assert running(started.record) == []


def test_authentication_can_be_left_out_and_then_no_token_is_made(machine, tmp_path):
    started = start_node(replace(HEAD, authentication="disabled"), machine)
    assert machine.said()["environment"]["RAY_AUTH_MODE"] == "disabled"
    assert started.token is None
    assert not (tmp_path / "home").exists()
    stop_node(started.record)


@pytest.mark.parametrize(("wanted", "mode"), [(None, "disabled"), ("of-the-other", "token")])
def test_a_node_joins_as_the_other_ray_wants_it(machine, wanted, mode):
    with listening(as_ray(wanted)) as (host, port):
        options = NodeOptions(ip="127.0.0.9", address=f"{host}:{port}")
        started = start_node(options, {**machine, "RAY_AUTH_TOKEN": "of-the-other"})
        said = machine.said()
        assert said["arguments"][:2] == ["start", f"--address={host}:{port}"]
        assert said["environment"]["RAY_AUTH_MODE"] == mode
        assert "RLINF_NODE_RANK" not in said["environment"]
        stop_node(started.record)


def test_a_ray_that_would_refuse_the_node_is_not_tried(machine, tmp_path):
    with listening(as_ray("right")) as (host, port), pytest.raises(ClusterError, match="mode 'token'"):
        start_node(NodeOptions(ip="127.0.0.9", address=f"{host}:{port}"), machine)
    assert not (tmp_path / "said").exists()


def test_a_port_that_is_taken_is_told_before_anything_is_started(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(this_node, "_ASKED_S", 60.0)
    for answer, what in ((as_ray(), "a Ray listens"), (lambda question: b"", "something listens")):
        with listening(answer) as (host, port), pytest.raises(ClusterError, match=f"{what} at {host}:{port}"):
            start_node(NodeOptions(ip=host, port=port), machine)
    assert not (tmp_path / "said").exists()


def test_a_port_of_rays_workers_is_refused_unless_they_get_others(machine, tmp_path):
    with pytest.raises(
        ClusterError, match="port 16379 is one of those that Ray gives its workers, 10002 to 19999"
    ):
        start_node(NodeOptions(ip="127.0.0.9", port=16379), machine)
    assert not (tmp_path / "said").exists()
    options = NodeOptions(
        ip="127.0.0.9", port=16379, extra=("--min-worker-port=20000", "--max-worker-port=30000")
    )
    stop_node(start_node(options, machine).record)


def test_a_mode_that_the_user_has_set_otherwise_is_told(machine):
    with pytest.raises(ClusterError, match="RAY_AUTH_MODE=disabled is set here, and a Ray of mode 'token'"):
        start_node(HEAD, {**machine, "RAY_AUTH_MODE": "disabled"})


def test_one_machine_is_not_twice_the_same_node(machine):
    started = start_node(HEAD, machine)
    with pytest.raises(
        ClusterError, match=r"node \(127.0.0.9\) of the Ray at 127.0.0.9:6555 runs here already"
    ):
        start_node(HEAD, machine)
    stop_node(started.record)
    stop_node(start_node(HEAD, machine).record)


def test_a_node_that_has_ended_by_itself_can_be_started_again(machine):
    first = start_node(HEAD, machine)
    with held(running(first.record)) as descriptors:
        send(descriptors.values(), signal.SIGKILL)
        assert not wait_for_ends(descriptors.values(), 60)
    second = start_node(HEAD, machine)
    for record in read_records():
        stop_node(record)
    assert running(second.record) == []


def test_a_start_that_fails_says_the_last_lines_and_leaves_nothing(machine):
    with pytest.raises(ClusterError, match=r"failed \(status 7\):\n  the last words of ray start"):
        start_node(HEAD, {**machine, "FAKE_RAY_ENDS": "7", "FAKE_RAY_STARTS": "ends stays worker"})
    assert left(machine) == []
    assert read_records() == []


def test_a_start_that_does_not_end_is_ended_at_the_deadline(machine):
    with pytest.raises(ClusterTimeout, match=r"has not ended after 3 s"):
        start_node(replace(HEAD, timeout_s=3), {**machine, "FAKE_RAY_ENDS": "never"})
    assert left(machine) == []


def test_stopping_ends_what_does_not_want_to_and_what_it_has_started_and_nobody_else(machine):
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as other:
        started = start_node(HEAD, {**machine, "FAKE_RAY_STARTS": "ends stays worker"})
        assert len(running(started.record)) == 4
        assert stop_node(started.record, grace_s=0.2) == 4
        assert running(started.record) == []
        assert other.poll() is None
        other.kill()


def test_a_number_that_was_given_to_another_process_is_left_alone(machine):
    started = start_node(HEAD, machine)
    (process,) = running(started.record)
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as other:
        forged = msgspec.structs.replace(process, pid=other.pid)
        record = msgspec.structs.replace(started.record, mark="another", processes=(forged,))
        keep_record(record)
        stop_node(record)
        assert other.poll() is None
        other.kill()
    stop_node(started.record)


def test_a_folder_of_the_users_own_is_used_privately(machine, tmp_path):
    with tempfile.TemporaryDirectory(dir="/tmp") as given:
        started = start_node(HEAD, {**machine, "RAY_TMPDIR": given})
        folder = machine.said()["environment"]["RAY_TMPDIR"]
        assert folder == f"{given}/rlinf-{os.getuid()}"
        assert os.stat(folder).st_mode & 0o777 == 0o700
        stop_node(started.record)
        os.chmod(folder, 0o755)
        with pytest.raises(ClusterError, match="is not a directory of this user alone"):
            start_node(HEAD, {**machine, "RAY_TMPDIR": given})


def test_a_folder_whose_sockets_would_have_too_long_a_path_is_told(machine, tmp_path):
    with pytest.raises(ClusterError, match="is too long: Ray's sockets have paths of at most 107 bytes"):
        start_node(HEAD, {**machine, "RAY_TMPDIR": str(tmp_path / ("x" * 60))})


def test_a_folder_with_letters_that_ray_does_not_take_is_told(machine):
    with pytest.raises(
        ClusterError, match=r"RAY_TMPDIR=/tmp/ä: Ray takes no folder with letters that are not ASCII"
    ):
        start_node(HEAD, {**machine, "RAY_TMPDIR": "/tmp/ä"})


def test_a_node_of_this_machine_alone_has_ray_listen_nowhere_else(machine):
    started = start_node(replace(HEAD, ip="127.0.0.1", port=6556), machine)
    assert machine.said()["environment"]["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    stop_node(started.record)
