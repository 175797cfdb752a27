"""Every `>>>` in the package, the examples and the pages runs and gives what stands below it."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Folders with modules, and where their names begin.
FOLDERS = {
    ROOT / "src": ROOT / "src",
    ROOT / "simulator": ROOT,
    ROOT / "examples" / "cartpole": ROOT / "examples" / "cartpole",
    ROOT / "examples" / "grpo": ROOT / "examples" / "grpo",
}


def num_examples(path):
    return sum(line.lstrip().startswith(">>>") for line in path.read_text(encoding="utf-8").splitlines())


def modules_with_examples():
    return [
        pytest.param(path, root, id=str(path.relative_to(root)))
        for folder, root in FOLDERS.items()
        for path in sorted(folder.rglob("*.py"))
        if num_examples(path)
    ]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize(("path", "root"), modules_with_examples())
def test_every_example_of_a_module_runs(path, root):
    parts = path.relative_to(root).with_suffix("").parts
    module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
    results = doctest.testmod(module)
    assert results.failed == 0
    assert results.attempted >= num_examples(path)  # none stands where doctest does not look, none is skipped


def test_every_example_of_a_page_runs():
    results = {page: doctest.testfile(str(page), module_relative=False, encoding="utf-8") for page in PAGES}
    assert [page for page, result in results.items() if result.failed] == []


def test_there_are_examples():
    assert len(modules_with_examples()) > 20
