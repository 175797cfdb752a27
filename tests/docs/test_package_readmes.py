"""Each package has a short README that says what its files are: every file stands in it, and no other."""

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "rlinf_scheduler"
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_the_readme_of_a_package_names_its_files(package):
    readme = (package / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.]+\.py)`", readme)) - {"__init__.py"}
    there = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    assert sorted(there - named) == [], "these stand in no README"
    beside = {path.name for path in SOURCE.rglob("*.py")}
    assert sorted(named - there - beside) == [], "these are gone"
    assert len(readme.splitlines()) <= 16


def test_folders_that_a_readme_names_are_there():
    for package in PACKAGES:
        for folder in re.findall(r"`([\w/]+/)`", (package / "README.md").read_text(encoding="utf-8")):
            roots = (package, SOURCE, SOURCE.parents[1])
            assert any((root / folder).is_dir() for root in roots), f"{package.name}: {folder}"
