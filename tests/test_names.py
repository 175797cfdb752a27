"""Names: one class of the library, one name."""

import ast
from collections import Counter, defaultdict
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
LIBRARY = ROOT / "src" / "rlinf" / "scheduler"


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
