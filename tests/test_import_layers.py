"""The tree's imports, statement by statement: no circle, and none goes up, not even by a string or in a function."""

import textwrap
from pathlib import Path

import pytest

from import_graph import Import, circles, imports_of, module_files
from rlinf_scheduler.rooms import ROOMS

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src", ROOT / "simulator"

# The parts in import order: each may import those of the lines before its own, and nothing of its neighbours.
LAYERS = (
    ("wording", "addresses", "proc", "version"),
    ("lazy",),
    ("errors", "events"),
    ("log_level", "rooms"),
    ("checks", "extension", "face"),
    ("planning", "queueing"),
    ("hardware",),
    ("config",),
    ("placement",),
    ("comm",),
    ("record_log",),
    ("session",),
    ("observe",),
    ("channel", "mailbox", "weights"),
    ("routing",),
    ("ray_backend",),
    ("host",),
    ("worker",),
    ("scaling",),
    ("opening",),
    ("job_server",),
    ("detached",),
    ("cluster",),
    tuple(ROOMS),  # the parts before work without them
    ("(names)",),  # rlinf_scheduler/__init__.py: the public names
    ("(face)",),  # rlinf/scheduler/: what programs import
    ("(testing)", "cli", "engines"),
    ("(__main__)", "__main__"),  # `python -m rlinf`, `python -m rlinf_scheduler`
    ("(simulator)",),  # simulator/, which is not installed
)
LEVELS = {part: level for level, layer in enumerate(LAYERS) for part in layer}


@pytest.fixture(scope="module")
def imports():
    return imports_of(*SOURCES)


def part_of(module):
    names = module.split(".")
    if names[0] == "rlinf_scheduler":
        return names[1] if len(names) > 1 else "(names)"
    if names[0] == "simulator":
        return "(simulator)"
    if len(names) == 1:
        return ""  # `rlinf` has nothing of its own
    return "(face)" if names[1] == "scheduler" else f"({names[1]})"


def goes_up(each):
    importer, imported = part_of(each.importer), part_of(each.imported)
    return "" not in (importer, imported) and importer != imported and LEVELS[imported] >= LEVELS[importer]


def test_every_module_has_a_place_among_the_layers():
    assert {part_of(module) for module in module_files(*SOURCES)} - {""} <= set(LEVELS)


def test_no_import_goes_up(imports):
    assert [str(each) for each in imports if goes_up(each)] == []


def test_there_is_no_circle(imports):
    assert circles([each for each in imports if not each.types_only]) == []


def test_there_is_no_circle_with_the_imports_for_types_either(imports):
    assert circles(imports) == []


@pytest.fixture
def tree(tmp_path):
    """A small package of two parts, whose first module is written by a test."""
    for name, text in {
        "__init__": "",
        "low/__init__": "",
        "low/one": "",
        "high": "import pack.low.one",
    }.items():
        file = tmp_path / f"pack/{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def written(text):
        (tmp_path / "pack/low/one.py").write_text(textwrap.dedent(text))
        return imports_of(tmp_path)

    return written


@pytest.mark.parametrize(
    "text",
    [
        "import pack.high",
        "from pack import high",
        "from .. import high",
        "from pack.high import anything",
        "def f():\n    import pack.high",
        "class A:\n    def f(self):\n        from pack.high import g",
        "from importlib import import_module\nimport_module('pack.high')",
        "import importlib\ndef f():\n    return importlib.import_module('pack.high')",
        "__import__('pack.high')",
        "NAMES = {'G': 'pack.high'}",
        "from importlib import import_module\nNAMES = {'G': 'high'}\nf = lambda n: import_module(f'pack.{NAMES[n]}')",
    ],
)
def test_import_is_found_wherever_it_stands(tree, text):
    found = tree(text)
    assert ("pack.low.one", "pack.high") in {(e.importer, e.imported) for e in found if not e.types_only}
    assert circles(found) == [["pack.high", "pack.low.one"]]


def test_import_for_types_is_told_apart(tree):
    found = tree(
        """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from pack import high
        else:
            import pack.low
        """
    )
    assert Import("pack.low.one", "pack.high", 4, types_only=True) in found
    assert circles([each for each in found if not each.types_only]) == []
    assert circles(found) == [["pack.high", "pack.low.one"]]


def test_package_that_is_imported_on_the_way_counts(tree):
    assert ("pack.high", "pack.low") in {(e.importer, e.imported) for e in tree("")}
