"""The page on adding hardware: what it shows is installed and planned as it stands there."""

import re
import textwrap
import tomllib
from pathlib import Path

import pytest

from programs import run_program

PAGE = (Path(__file__).parents[2] / "docs/how-to/add-hardware.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path):
    """The page's package as an installer leaves it, and its config."""
    for code in blocks("python"):
        (tmp_path / code.split("\n")[0].removeprefix("# ")).write_text(code)
    project = tomllib.loads(blocks("toml")[0])["project"]
    metadata = tmp_path / "acme_arms-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (entries,) = project["entry-points"].items()
    rows = "\n".join(f"{name} = {value}" for name, value in entries[1].items())
    (metadata / "entry_points.txt").write_text(f"[{entries[0]}]\n{rows}\nAcme = acme_cards:ACME\n")
    (tmp_path / "arms.yaml").write_text(blocks("yaml")[-1])
    return tmp_path


def run(folder, code):
    done = run_program("-c", code, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


PLAN = """
from rlinf.scheduler import ComponentPlacement, Topology
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware import HardwareTable
try:
    placed = ComponentPlacement("arms.yaml", Topology.parse("0,0"))
    for placement in placed.placements("env"):
        print(placement.node_rank, *HardwareTable(placed.topology).views_of(placement))
except ConfigError as error:
    print(error)
"""


def test_arms_of_the_page_are_planned_and_viewed(folder):
    first = "0 {'controller': '10.10.10.1', 'cameras': ['wrist', 'table']}"
    second = "1 {'controller': '10.10.10.2', 'cameras': []}"
    assert run(folder, PLAN).splitlines() == [first, first, second, second]


def test_page_shows_the_answer_to_a_misspelt_key(folder):
    config = folder / "arms.yaml"
    config.write_text(config.read_text().replace("{node_rank: 1, controller:", "{node_rank: 1, adress:"))
    shown = re.search(r"(?:^ {4}.*\n)+", PAGE[PAGE.index("is answered with") :], re.MULTILINE)[0]
    assert textwrap.dedent(shown) in run(folder, PLAN)


def test_vendor_of_the_page_is_found(folder):
    code = """
from rlinf_scheduler.hardware.vendors import find_accelerators
print(find_accelerators({"ACME_VISIBLE_CARDS": "4,5"}, {"ACME": 2.0}))
"""
    assert run(folder, code) == "FoundAccelerators(count=2, type='Acme', mask=('4', '5'))\n"
