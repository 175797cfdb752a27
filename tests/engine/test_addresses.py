"""Which Ray a program joins."""

import socket

import pytest

from rlinf.scheduler.engine import addresses
from rlinf.scheduler.errors import ClusterError, ClusterTimeout


@pytest.fixture
def announcement(tmp_path, monkeypatch):
    path = tmp_path / "ray_current_cluster"
    monkeypatch.setattr(addresses, "_announcement", lambda: path)
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


def test_a_cluster_that_was_killed_is_passed_over(announcement):
    announcement.write_text(DEAD)
    assert addresses.find_address(None, 1, 1) == "local"
    with pytest.raises(ClusterError, match="ray start --head"):
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


def test_a_simulation_does_not_become_the_cluster_that_others_join(announcement):
    with addresses.unannounced():
        announcement.write_text("10.0.0.1:1234")
    assert not announcement.exists()
    announcement.write_text("10.0.0.9:6379")
    with addresses.unannounced():
        announcement.write_text("10.0.0.1:1234")
    assert announcement.read_text() == "10.0.0.9:6379"
