"""`rlinf topology` where no cluster runs says that what it shows is this machine alone."""

import pytest
import ray
from typer.testing import CliRunner

from rlinf_scheduler import cluster
from rlinf_scheduler.cli.main import app
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.ray_backend import addresses


@pytest.mark.parametrize("options", [[], ["--simulate", "2x4"], ["--num-nodes", "2"]])
def test_it_says_so_before_anything_starts(monkeypatch, options):
    def start(**_):
        raise ClusterError("nothing is started in this test")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(addresses, "_announced_here", list)
    monkeypatch.setattr(cluster, "Cluster", start)
    for variable in ("RAY_ADDRESS", "RLINF_SIMULATE"):
        monkeypatch.delenv(variable, raising=False)
    done = CliRunner().invoke(app, ["topology", *options])
    assert done.exit_code == 2
    assert "nothing is started in this test" in done.stderr
    assert ("no cluster runs here: this is this machine alone; `rlinf node start" in done.stderr) == (
        not options
    )
