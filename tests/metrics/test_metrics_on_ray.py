"""A job that is opened with `cluster.metrics`, and one that is not."""

import csv
import os

import pytest

from programs import run_program

pytestmark = [pytest.mark.ray, pytest.mark.system]

PROGRAM = """
import sys
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker


class Actor(Worker):
    def train(self, step):
        self.log_metrics({"loss": float(self.rank)}, step=step)

    def loaded(self):
        return [name for name in sys.modules if name.startswith("rlinf_scheduler.metrics")]


if __name__ == "__main__":
    with Cluster(CONFIG) as cluster:
        actor = Actor.create_group().launch(cluster, NodePlacementStrategy([0, 1]), name="actor")
        assert actor.loaded().wait() == [[], []]
        for step in range(2):
            actor.train(step).wait()
            cluster.log_metrics({"epoch": 0}, step=step)
        print(any(name == "rlinf_scheduler.metrics.writers" for name in sys.modules))
"""


def ran(tmp_path, ray_address, config):
    (tmp_path / "program.py").write_text(PROGRAM.replace("CONFIG", repr(config)))
    done = run_program(
        "program.py", cwd=tmp_path, env={**os.environ, "RAY_ADDRESS": ray_address}, timeout=240, with_ray=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_a_program_leaves_what_its_ranks_have_logged(tmp_path, ray_address):
    assert ran(tmp_path, ray_address, {"metrics": {"folder": "outputs"}}) == "True"
    with (tmp_path / "outputs" / "metrics.csv").open() as file:
        lines = {
            (line["step"], line["name"], line["value"], line["num_ranks"]) for line in csv.DictReader(file)
        }
    assert {(str(step), "actor/loss", "0.5", "2") for step in range(2)} <= lines
    assert {(str(step), "epoch", "0.0", "1") for step in range(2)} <= lines


def test_without_the_section_nobody_writes(tmp_path, ray_address):
    assert ran(tmp_path, ray_address, {"num_nodes": 2}) == "False"
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]
