"""Planning needs neither Ray nor anything else that running does: it works where none of that is installed."""

import re
import subprocess
import sys

import pytest

FOR_RUNNING = ("ray", "torch", "numpy", "msgspec", "cryptography", "cloudpickle")

WITHOUT_THEM = f"""
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FOR_RUNNING}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""

CONFIG = """
cluster:
  num_nodes: 2
  component_placement:
    rollout: 0-7
    env: {node_group: node, placement: 0-1}
"""


@pytest.fixture
def python(tmp_path):
    """Runs a program where nothing is installed that only running needs."""
    (tmp_path / "placement.yaml").write_text(CONFIG, encoding="utf-8")

    def run(code):
        return subprocess.run(
            [sys.executable, "-c", WITHOUT_THEM + code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_a_program_plans(python):
    done = python("""
from rlinf.scheduler import ComponentPlacement, NodePlacementStrategy, PackedPlacementStrategy, Topology
nodes = Topology.parse("2x4")
print(len(ComponentPlacement("placement.yaml", nodes).placements("rollout")))
print(len(PackedPlacementStrategy(0, 5).get_placement(nodes)), len(NodePlacementStrategy([0]).get_placement(nodes)))
""")
    assert (done.stdout, done.stderr) == ("8\n6 1\n", "")


def test_the_command_plans(python):
    done = python("""
from rlinf_scheduler.cli.main import app
app(["plan", "placement.yaml", "--nodes", "2x4"])
""")
    assert done.returncode == 0, done.stderr
    assert "rollout" in done.stdout


def test_running_says_what_is_not_installed(python):
    done = python("from rlinf.scheduler import Cluster")
    missing = re.fullmatch(
        "ModuleNotFoundError: Cluster needs '(.+)', which is not installed: only planning does without it",
        done.stderr.splitlines()[-1],
    )
    assert missing[1] in FOR_RUNNING
