"""What is looked at before Ray is joined, and in which order."""

from types import SimpleNamespace

import pytest

from fake_gcs import as_ray, listening
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.ray_backend import addresses, authentication, backend, leaving, raylets


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """A process without a Ray, of a user who has no token."""
    own_ray = SimpleNamespace(is_initialized=lambda: False, shutdown=lambda: None, init=pytest.fail)
    monkeypatch.setattr(backend, "ray", own_ray)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def test_a_process_that_has_not_left_a_silent_head_yet_joins_no_other_ray(monkeypatch):
    left = Promise()
    monkeypatch.setattr(leaving, "_left_alone", [(left, "10.0.0.1:6379")])
    for begin in (lambda: backend.join_or_start("local", None, 60), lambda: backend.simulate_nodes([])):
        with pytest.raises(ClusterError, match=r"whose head at 10\.0\.0\.1:6379 does not answer"):
            begin()
    left.set_result(None)
    leaving.check_left()


def test_a_ray_that_refuses_is_not_joined(monkeypatch):
    with (
        listening(as_ray("right")) as (host, port),
        pytest.raises(ClusterError, match="mode 'token'") as caught,
    ):
        backend.join_or_start(f"{host}:{port}", None, 60)
    assert "address='local'" not in str(caught.value)


def test_one_that_was_found_and_refuses_can_be_passed_over(monkeypatch):
    with listening(as_ray("right")) as (host, port):
        monkeypatch.setattr(addresses, "_announced_here", lambda: [f"{host}:{port}"])
        with pytest.raises(ClusterError, match="address='local' starts a Ray of this program's own"):
            backend.join_or_start(None, None, 60)


def test_one_that_accepts_and_has_no_node_here_is_told_at_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(raylets, "_PROC", tmp_path)
    for limit in ("_SHORTEST_ATTEMPT_S", "_ATTEMPT_TIMEOUT_S"):  # this process may be held up
        monkeypatch.setattr(authentication, limit, 60.0)
    with (
        listening(as_ray()) as (host, port),
        pytest.raises(ClusterTimeout, match="this machine is no node of"),
    ):
        backend.join_or_start(f"{host}:{port}", None, 0.5)


def test_a_join_that_fails_puts_the_mode_back(monkeypatch):
    done = []

    def init(**_options):
        raise RuntimeError("Ray's own")

    backend.ray.init = init
    monkeypatch.setattr(backend, "wait_for_raylet", lambda address, timeout_s: None)
    # Another Ray of this process's may be in use.
    monkeypatch.setattr(
        backend, "use_access", lambda access: done.append(access.mode) or (lambda: done.append("as before"))
    )
    monkeypatch.setenv("RAY_AUTH_TOKEN", "right")
    for wanted, mode in (("right", "token"), (None, "disabled")):
        with listening(as_ray(wanted)) as (host, port), pytest.raises(ClusterError, match="Ray's own"):
            backend.join_or_start(f"{host}:{port}", None, 60)
        assert done == [mode, "as before"]
        done.clear()
