"""Which Ray a program joins."""

import contextlib
import os
import socket

import pytest
import ray._common.utils
import ray._private.utils

from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.ray_backend import addresses


@pytest.fixture
def announcement(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # Ray's
    monkeypatch.setattr(addresses, "private_directory", lambda longest: tmp_path / "private")
    path = tmp_path / "ray" / "ray_current_cluster"
    path.parent.mkdir()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return path


@pytest.fixture
def answering():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


DEAD = "127.0.0.1:1"


def test_with_nothing_given_and_nothing_there_a_new_one_is_started(announcement):
    assert addresses.find_address(None, 1, 1) == "local"
    assert addresses.find_address(None, None, 1) == "local"


def test_a_cluster_that_runs_here_is_joined(announcement, answering):
    announcement.write_text(answering)
    assert addresses.find_address(None, None, 1) == answering
    assert addresses.find_address("auto", 2, 1) == answering
    assert addresses.find_address("local", 1, 1) == "local"


def test_of_rays_own_and_what_rlinf_started_the_newer_one_is_joined(announcement, answering, tmp_path):
    private = tmp_path / "private" / "ray" / announcement.name
    private.parent.mkdir(parents=True)
    private.write_text(answering)
    announcement.write_text("127.0.0.1:2")
    os.utime(announcement, (1, 1))
    assert addresses.find_address(None, None, 1) == answering
    os.utime(private, (0, 0))
    assert addresses.find_address(None, None, 1) == answering  # the newer one does not answer
    announcement.write_text(answering)
    private.write_text(DEAD)
    assert addresses.find_address(None, None, 1) == answering


def test_a_cluster_that_was_killed_is_passed_over(announcement):
    announcement.write_text(DEAD)
    assert addresses.find_address(None, 1, 1) == "local"
    with pytest.raises(ClusterError, match="rlinf node start --head"):
        addresses.find_address("auto", 1, 1)


def test_several_nodes_are_never_started_but_joined(announcement):
    with pytest.raises(ClusterError, match="no Ray cluster runs on this machine"):
        addresses.find_address(None, 2, 1)


def test_an_address_where_nothing_answers_is_an_error_at_the_deadline(announcement):
    with pytest.raises(ClusterTimeout, match=r"127\.0\.0\.1:1 after 0 s"):
        addresses.find_address(DEAD, None, 0)


def test_the_variable_counts_where_no_address_is_given(announcement, answering, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", answering)
    assert addresses.find_address(None, None, 1) == answering


@pytest.mark.parametrize("text", ["ray://127.0.0.1:10001", "127.0.0.1", "host:port"])
def test_text_that_is_no_address_is_refused_at_once(announcement, text):
    with pytest.raises(ClusterError, match="'HOST:PORT'"):
        addresses.find_address(text, None, 60)


def starts(address):
    """What Ray notes and forgets where a cluster of its own starts, or ends, in a process."""
    ray._private.utils.write_ray_address(address)


def ends():
    ray._common.utils.reset_ray_address()


def test_a_simulation_does_not_become_the_cluster_that_others_join(announcement):
    with addresses.unannounced():
        starts("10.0.0.1:1234")
    assert not announcement.exists()
    starts("10.0.0.9:6379")
    with addresses.unannounced():
        starts("10.0.0.1:1234")
    assert announcement.read_text() == "10.0.0.9:6379"


def test_simulations_that_start_at_once_leave_none_announced(announcement):
    one, other = addresses.unannounced(), addresses.unannounced()
    with contextlib.ExitStack() as second, one:
        starts("10.0.0.1:1")
        second.enter_context(other)
        starts("10.0.0.1:2")
    assert not announcement.exists()
    starts("10.0.0.9:6379")
    assert announcement.read_text() == "10.0.0.9:6379"


def test_what_others_announce_while_a_simulation_starts_stays_announced(announcement):
    with addresses.unannounced():
        starts("10.0.0.1:1234")
        announcement.write_text("10.0.0.9:6379")
    assert announcement.read_text() == "10.0.0.9:6379"


def test_the_end_of_a_simulation_forgets_nobody_elses_cluster(announcement):
    announcement.write_text("10.0.0.9:6379")
    with addresses.unannounced():
        ends()
    assert announcement.read_text() == "10.0.0.9:6379"
    ends()
    assert not announcement.exists()
