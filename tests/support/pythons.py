"""Runs both suites on each Python that the package promises, and says which were tried, and what came of it.

    make pythons [PYTHONS="/path/to/python3.12 /path/to/python3.13"]

An interpreter that is not named is looked for on the PATH. Exits with 1 if a suite failed, or none could be tried.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
OF_A_VERSION = re.compile(r"Programming Language :: Python :: (\d+\.\d+)$")
SUITES = ("test", "system")
SUMMARY = re.compile(r"=+ (.*\b(?:passed|failed|errors?)\b.*) in .* =+")


def promised():
    """The versions of the classifiers, ascending."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        classifiers = tomllib.load(file)["project"]["classifiers"]
    return [match[1] for classifier in classifiers if (match := OF_A_VERSION.match(classifier))]


def version_of(interpreter):
    """Its version; empty if it does not run, as the stand-ins of some version managers."""
    ask = [interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(ask, capture_output=True, text=True).stdout.strip()


def tried(interpreter):
    """Run both suites; whether they passed, and their summaries."""
    outcomes = [suite(name, interpreter) for name in SUITES]
    return all(passed for passed, _ in outcomes), "; ".join(summary for _, summary in outcomes)


def suite(name, interpreter):
    """Run a suite; whether it passed, and its summary."""
    command = ["make", "--no-print-directory", name, f"PYTHON={interpreter}"]
    summary = "it did not come to its end"
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout:
            sys.stdout.write(line)
            if match := SUMMARY.match(line):
                summary = match[1]
    return running.returncode == 0, f"make {name}: {summary}"


def main(named):
    names = [*filter(None, [shutil.which(f"python{version}") for version in promised()]), *named]
    found = {version_of(interpreter): interpreter for interpreter in names}
    outcomes = {}
    for version in promised():
        interpreter = found.get(version)
        outcomes[version] = tried(interpreter) if interpreter else (None, "not tried: there is none here")
    for version, (_, summary) in outcomes.items():
        sys.stdout.write(f"Python {version}: {summary}\n")
    passed = [is_green for is_green, _ in outcomes.values()]
    return 1 if False in passed or True not in passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
