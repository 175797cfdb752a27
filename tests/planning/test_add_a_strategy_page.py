"""The page on adding a strategy: what its tables name is there. Its programs run with those of all pages."""

import re
from pathlib import Path

from programs import run_program

PAGE = (Path(__file__).parents[2] / "docs/how-to/add-a-strategy.md").read_text()


def run(folder, program):
    (folder / "program.py").write_text(program)
    done = run_program("program.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_strategies_of_the_page_that_come_along_can_be_made(tmp_path):
    made = re.findall(r"^\| `(\w+PlacementStrategy\(.*?\))` \|", PAGE, re.MULTILINE)
    assert len(made) == 3
    lines = "".join(f"print(len(rlinf.scheduler.{call}.get_placement(8)))\n" for call in made)
    assert run(tmp_path, f"import rlinf.scheduler\n{lines}").split() == ["8", "2", "3"]


def test_names_of_the_page_are_those_of_the_table(tmp_path):
    program = """
from rlinf.scheduler import Topology
from rlinf_scheduler.placement import ResourceTable
resources = ResourceTable(Topology.parse("2x4"), ["cluster"])
resource = resources[5]
print(resource.number, resource.node_rank, resource.hardware_type, resource.local_rank, resource.node_group)
print(len(resources), resources.has_hardware, resources.by_node()[1], resources.topology.num_nodes)
"""
    assert run(tmp_path, program) == "5 1 GPU 1 cluster\n8 True (4, 5, 6, 7) 2\n"
    for name in re.findall(r"`(?:resources\.)?(\w+)(?:\(\))?`", PAGE.split("## The table")[1].split("##")[0]):
        assert name == "Resource" or f".{name}" in program
