"""`rlinf devices`: what it does where there is nothing to ask."""

import pytest
from typer.testing import CliRunner

from rlinf_scheduler import cluster
from rlinf_scheduler.cli import topology
from rlinf_scheduler.cli.main import app
from rlinf_scheduler.ray_backend import addresses


@pytest.mark.parametrize("simulate", [None, "2x4"])
def test_without_a_cluster_it_says_so_and_starts_none(monkeypatch, simulate):
    import ray

    def start(**_):
        raise AssertionError("a Ray was started")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(addresses, "_announced_here", list)
    monkeypatch.setattr(cluster, "Cluster", start)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RLINF_SIMULATE", raising=False)
    if simulate:
        monkeypatch.setenv("RLINF_SIMULATE", simulate)
    done = CliRunner().invoke(app, ["devices"])
    assert done.exit_code == 2
    assert "no cluster runs here" in done.stderr


def test_an_address_where_nobody_answers_is_an_error_within_seconds(monkeypatch, caplog):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(topology, "ANSWER_S", 0.1)  # of the 120 s that the nodes may take
    done = CliRunner().invoke(app, ["devices", "--address", "127.0.0.1:1"])
    assert done.exit_code == 2
    assert "no Ray answers at 127.0.0.1:1 after 0.1 s" in done.stderr
    assert "no Ray answers at 127.0.0.1:1 yet; it is waited for" in caplog.text
