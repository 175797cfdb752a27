"""Names: one class of the library, one name."""

import ast
import sys
from collections import Counter, defaultdict
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
LIBRARY = ROOT / "src" / "rlinf_scheduler"


def classes_by_name(sources):
    """Where each class is, by its name; `sources` are texts by path."""
    found = defaultdict(list)
    for path, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
    return found


def twice(sources):
    found = classes_by_name(sources)
    # What happens is an event, and may be an error for whoever is in its way: these two are called the same.
    return {n: p for n, p in found.items() if len(p) > 1 and sorted(p) != ["errors/cluster.py", "events.py"]}


def test_no_two_classes_have_one_name():
    assert twice({str(path.relative_to(LIBRARY)): path.read_text() for path in LIBRARY.rglob("*.py")}) == {}


def test_a_name_that_is_used_twice_would_be_found():
    assert twice({"a.py": "class A: ...", "b.py": "def f():\n    class A: ..."}) == {"A": ["a.py", "b.py"]}


def test_no_two_test_files_have_one_name():
    # They are no packages: the second one would be taken for the first.
    names = [path.name for path in TESTS.rglob("*.py") if path.name != "conftest.py"]
    assert sorted(name for name, count in Counter(names).items() if count > 1) == []


def test_no_benchmark_hides_a_module_of_an_example():
    """Benchmarks import examples, and what lies beside a program is found first."""
    modules = {path.stem for path in (ROOT / "examples").glob("*/*.py")} - {"main"}
    assert modules & {path.stem for path in (ROOT / "benchmarks").glob("*.py")} == set()


# With an underscore, and documented all the same.
DOCUMENTED = {"os._exit", "sys._current_frames", "sys._getframe"}


def _called(function):
    return getattr(function, "attr", getattr(function, "id", ""))


def private_names(text):
    """The private names of the standard library that a module uses, as `module.name`."""
    modules, found = {}, set()
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {f"{node.module}.{alias.name}" for alias in node.names if alias.name.startswith("_")}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            found.add(f"{modules.get(ast.unparse(node.value), '')}.{node.attr}")
        elif isinstance(node, ast.Call) and _called(node.func).endswith("setattr") and len(node.args) > 1:
            owner, name = ast.unparse(node.args[0]), getattr(node.args[1], "value", None)
            if isinstance(name, str) and name.startswith("_"):
                found.add(f"{modules.get(owner, '')}.{name}")
    return {name for name in found if name.partition(".")[0] in sys.stdlib_module_names} - DOCUMENTED


def test_tests_reach_for_no_private_name_of_the_standard_library():
    """Such a name is another one, or none, in the next version of Python."""
    paths = TESTS.rglob("*.py")
    used = {str(path.relative_to(TESTS)): private_names(path.read_text(encoding="utf-8")) for path in paths}
    assert {path: names for path, names in used.items() if names} == {}


def test_a_private_name_would_be_found():
    text = (
        "import threading\nfrom os import _exit\nthreading._active\nmonkeypatch.setattr(threading, '_x', 1)"
    )
    assert private_names(text) == {"threading._active", "threading._x"}
