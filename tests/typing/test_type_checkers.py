"""Type checkers find the mistakes of a program, and nothing else in it."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

HERE = Path(__file__).parent
PROGRAMS = ["program.py", "rlinf_names.py"]
ROOT = HERE.parents[1]
# What the library uses: no type of it is asked for here.
NOT_OURS = (
    "ray",
    "torch",
    "cloudpickle",
    "numpy",
    "msgspec",
    "pydantic",
    "omegaconf",
    "cryptography",
    "yaml",
    "rich",
)


def lines_that_are_wrong(program):
    lines = program.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


@pytest.mark.timeout(300)
def test_mypy_finds_what_is_wrong_and_nothing_else(tmp_path):
    config = tmp_path / "mypy.ini"
    config.write_text(
        "[mypy]\nstrict = true\nmypy_path = src\n"
        # It need not look into the library's functions, which `make check` does.
        "[mypy-rlinf.*]\nignore_errors = true\n"
        f"[mypy-{','.join(f'{name}.*' for name in NOT_OURS)}]\n"
        "follow_imports = skip\nignore_missing_imports = true\n"
    )
    # It looks at what has changed since it was here, and what depends on that.
    options = ["--config-file", config, "--cache-dir", ROOT / ".mypy_cache" / "tests"]
    programs = [HERE / program for program in PROGRAMS]
    found = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *programs], capture_output=True, text=True, cwd=ROOT
    )
    for program in programs:
        errors = re.findall(rf"{program.name}:(\d+): error: ", found.stdout)
        assert set(map(int, errors)) == lines_that_are_wrong(program), found.stdout + found.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", ["pyright", "basedpyright"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_pyright_finds_what_is_wrong_and_nothing_else(program, checker, tmp_path):
    command = shutil.which(checker) or shutil.which(checker, path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip(f"{checker} is not installed")
    settings = {
        "include": [str(HERE / program)],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
    }
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    options = ["--outputjson", "--pythonpath", sys.executable, "--project", str(config)]
    found = subprocess.run([command, *options], capture_output=True, text=True, cwd=ROOT)
    report = json.loads(found.stdout)
    errors = [each for each in report["generalDiagnostics"] if each["severity"] == "error"]
    text = "\n".join(f"{each['range']['start']['line'] + 1}: {each['message']}" for each in errors)
    assert {each["range"]["start"]["line"] + 1 for each in errors} == lines_that_are_wrong(HERE / program), (
        text
    )
